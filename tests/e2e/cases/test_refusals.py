"""Requests that make no sense: refused at once, by name, and forgotten."""
import time

from .client import CHAT, COMPLETE, alive, chat, complete, get, good, post, refused, text, user
from .registry import case, reported_body

PATIENCE = 10  # seconds: the reports ask for two, on a machine that does nothing else


@case("BC-013")
def test_negative_token_ids_are_refused(server):
    for prompt in ([1, -1, 2], [[-1]], [[1], [-1]], [1, "a", 2], ["a", 1], [1, None], [[1], "a"], [1.5], [True]):
        refused(post(server, COMPLETE, reported_body("BC-013", prompt=prompt)), param="prompt")
    alive(server)


@case("BC-014")
def test_token_ids_past_the_vocabulary_are_refused(server):
    body = reported_body("BC-014")
    size = 49152
    for wrong in (2147483647, size, 4294967297, 2**32 + 2**31, 5279552648203111001, 2**64, -(2**63), -(2**64)):
        refused(post(server, COMPLETE, body | {"prompt": [1, wrong, 2]}))
    for prompt in ([1, size - 1, 2], [size - 1]):
        assert complete(server, body | {"prompt": prompt})["usage"]["prompt_tokens"] == len(prompt)
    alive(server)


@case("BC-061")
def test_messages_must_be_a_list_of_messages(server):
    for wrong in ([], None, {}, "hi", [None], [[]], [{}], 5, True, [5], ["hi"]):
        refused(post(server, CHAT, {"messages": wrong}), param="messages")
    refused(post(server, CHAT, {}), param="messages")
    alive(server)


@case("BC-062")
def test_empty_prompts_are_refused_or_answered(server):
    body = reported_body("BC-062")
    for prompt in ([""], "", [], [[]], [[], [1]], ["a", ""]):
        reply = post(server, COMPLETE, body | {"prompt": prompt})
        assert reply.status_code == 200 or refused(reply, param="prompt")
    reply = post(server, CHAT, {"messages": user(""), "max_tokens": 5})
    assert reply.status_code == 200 or refused(reply, param="messages")
    alive(server)


@case("BC-068")
def test_content_parts_of_text_and_of_other_kinds(server):
    def content(parts):
        return post(server, CHAT, reported_body("BC-068", messages=[{"role": "user", "content": parts}], temperature=0))

    hello = {"type": "text", "text": "hello"}
    assert text(good(content([hello]))) == text(good(content("hello")))
    assert good(content([hello, hello]))["usage"]["prompt_tokens"] > good(content([hello]))["usage"]["prompt_tokens"]
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    for odd in ([], [{"type": "video"}], [hello, image], [{"type": "text"}], [{"type": "text", "text": 5}], [{}], [None],
                ["hello"], [hello, {"text": "no type"}], {"type": "text"}, 5):
        refused(content(odd), param="messages[0].content")
    alive(server)


@case("BC-094")
def test_no_value_of_any_field_breaks_the_server(server):
    good_body = {"messages": user("hi"), "max_tokens": 2, "temperature": 0}
    values = [None, True, 5, -1, 1.5, "x", [], {}, [[]], {"a": {}}]
    legal = {  # what may be answered; None and what means "off" is absent
        "model": [None], "stream": [None, True], "stream_options": [None], "stop": [None, "x", []], "n": [None, 5],
        "seed": [None, 5, -1], "response_format": [None], "logit_bias": [None, {}], "tools": [None, []],
        "tool_choice": [None],
        "user": values, "metadata": values}
    for name, allowed in legal.items():
        for value in values:
            reply = post(server, CHAT, good_body | {name: value})
            if value in allowed and not (value is True and True not in [v for v in allowed if v is True]):
                assert reply.status_code == 200 or name in ("user", "metadata") and refused(reply, param=name), (name, value)
            elif not (reply.status_code == 404 and name == "model"):
                refused(reply, param=name)
    for value in values:
        refused(post(server, CHAT, good_body | {"messages": value}), param="messages")
        refused(post(server, CHAT, good_body | {"messages": [{"role": value, "content": "hi"}]}), param="messages[0].role")
        reply = post(server, CHAT, good_body | {"messages": [{"role": "user", "content": value}]})
        assert value == "x" and reply.status_code == 200 or refused(reply, param="messages[0].content")
        reply = post(server, COMPLETE, {"prompt": value, "max_tokens": 2})
        assert value == "x" and reply.status_code == 200 or refused(reply, param="prompt")
    for whole in (b"", b"null", b"[]", b"5", b'"x"', b"{", b"{}x", b"\x00", b'{"messages"}', b"{'a':1}"):
        refused(post(server, CHAT, whole))
    alive(server)


@case("BC-095")
def test_long_prompts_are_judged_by_tokens_not_bytes(server):
    for size in (8 << 10, 64 << 10, 1 << 20, 4 << 20):
        started = time.monotonic()
        reply = post(server, COMPLETE, reported_body("BC-095", prompt=("word " * size)[:size]))
        if size // 5 < 8000:
            assert good(reply)["usage"]["prompt_tokens"] > size // 6
        else:
            refused(reply, code="context_length_exceeded")
            assert time.monotonic() - started < PATIENCE, size
    alive(server)


@case("BC-088")
def test_bodies_nested_deep_are_refused_quickly(server):
    started = time.monotonic()
    for deep in (b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b"[" * 100_000):
        for name in (b"metadata", b"messages", b"stop"):
            refused(post(server, CHAT, b'{"messages":[{"role":"user","content":"hi"}],"' + name + b'":' + deep + b"}"))
    def schema(inner):
        return {"type": "json_schema", "json_schema": {"name": "deep", "schema": inner}}

    pattern = {"type": "string", "pattern": "^" + "(" * 20_000 + "a" + ")" * 20_000 + "$"}
    nested = b'{"type":"object","properties":{"p":' * 5000 + b'{"type":"string"}' + b"}}" * 5000
    refused(post(server, CHAT, {"messages": user("hi"), "response_format": schema({"properties": {"s": pattern}})}))
    refused(post(server, CHAT, b'{"messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema",'
                 b'"json_schema":{"name":"deep","schema":' + nested + b"}}}"))
    assert time.monotonic() - started < PATIENCE
    alive(server)


@case("BC-061")
def test_a_model_that_is_not_served_is_not_found(server):
    refused(post(server, CHAT, {"model": "other", "messages": user("hi")}), status=404, param="model")
    refused(get(server, "/v1/models/other"), status=404)
    assert chat(server, {"model": good(get(server, "/v1/models"))["data"][0]["id"], "messages": user("hi"),
                         "max_tokens": 1})["usage"]["completion_tokens"] == 1
