"""Choices, why they end, how many tokens they have and how many they may have."""
import concurrent.futures
import random

import grpc
import pytest

from test_grpc_client import Client

from .client import (CHAT, COMPLETE, alive, both_ways, chat, complete, good, post, reason, refused, stream, text,
                     user)
from .models import scripted_model
from .registry import case, reported_body

WITH_USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def short_server(servers):
    """The default model with a context of 256 tokens."""
    return servers("--max-context-tokens", "256", grpc=True)


@case("BC-023")
def test_the_usage_chunk_of_a_stream(server):
    body = reported_body("BC-023", temperature=0)
    events = stream(server, CHAT, body)
    usage = events.usage()
    assert all("usage" in chunk and chunk["usage"] is None for chunk in events.chunks[:-1])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    whole = chat(server, {name: value for name, value in body.items() if name not in ("stream", "stream_options")})["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[name] == whole[name] > 0
    plain = stream(server, CHAT, {"messages": user("Hello"), "max_tokens": 4})
    assert not any(chunk.get("usage") for chunk in plain.chunks), "nobody asked for it"


@case("BC-025")
def test_tokens_are_counted_alike_when_several_share_a_chunk(servers, tmp_path_factory):
    pieces = ["🫠".encode()[:2], "🫠".encode()[2:], *(bytes([b]) for b in "龜".encode()), b"end"]
    server = servers(model=scripted_model(tmp_path_factory.getbasetemp() / "counted", pieces))
    body = {"messages": user("Copy the text."), "temperature": 0, "max_tokens": 40}
    whole, events = both_ways(server, CHAT, body)
    assert whole["usage"]["completion_tokens"] == len(pieces) + 1, "the end token counts"
    assert len([piece for piece in events.pieces() if piece]) == 3
    whole, _ = both_ways(server, CHAT, body | {"max_tokens": 4})
    assert whole["usage"]["completion_tokens"] == 4, "held back, but generated"


@case("BC-026")
def test_usage_counts_every_choice(server):
    body = reported_body("BC-026", stream=False)
    del body["stream_options"]
    whole, events = both_ways(server, CHAT, body | {"logprobs": True})
    counts = [len(events.logprobs(choice)) for choice in range(3)]
    assert min(counts) >= 1 and events.usage()["completion_tokens"] == sum(counts)
    assert whole["usage"]["prompt_tokens"] == chat(server, body | {"n": 1})["usage"]["prompt_tokens"]


@case("BC-028")
def test_every_choice_says_once_why_it_ended(server):
    body = {"messages": user("Hello"), "temperature": 0}
    cut = stream(server, CHAT, body | {"max_tokens": 5})
    assert cut.reason() == "length"
    both = stream(server, CHAT, body | {"max_tokens": 5, "n": 2, "temperature": 1})
    assert {both.reason(0), both.reason(1)} <= {"length", "stop"}
    word = cut.text()[2:5]
    assert stream(server, CHAT, body | {"max_tokens": 5, "stop": [word]}).reason() == "stop"
    ended = stream(server, CHAT, {"messages": user("Name the capital of France."), "temperature": 0, "max_tokens": 64})
    assert ended.reason() == "stop", "by the model's own end token"
    assert stream(server, COMPLETE, {"prompt": "Hello", "max_tokens": 5, "temperature": 0}).reason() == "length"


@case("BC-031")
def test_there_are_always_as_many_choices_as_asked_for(server):
    body = reported_body("BC-031")
    draw = random.Random(31)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(complete, server, body | {"max_tokens": draw.randint(1, 12)}) for _ in range(20)]
        for reply in sent:
            assert [choice["index"] for choice in reply.result()["choices"]] == [0, 1, 2, 3, 4]


@case("BC-032")
def test_streamed_choices_keep_their_index(server):
    body = reported_body("BC-032", stream=False)
    whole, events = both_ways(server, CHAT, body)
    texts = {text(whole, index) for index in (0, 1)}
    assert len(texts) == 2, "else an exchange would not show"
    for index in (0, 1):
        assert [c["delta"].get("role") for c in events.choices(index)].count("assistant") == 1
        assert events.choices(index)[0]["delta"]["role"] == "assistant"
        assert events.logprobs(index) == whole["choices"][index]["logprobs"]["content"]
    assert {choice["index"] for chunk in events.chunks for choice in chunk["choices"]} == {0, 1}


@case("BC-046")
def test_zero_tokens_is_not_taken_for_no_limit(server):
    body = reported_body("BC-046")
    for fields in ({"max_tokens": 0}, {"max_completion_tokens": 0}):
        reply = post(server, CHAT, {"messages": body["messages"]} | fields)
        if reply.status_code == 400:
            refused(reply, param=next(iter(fields)))
        else:
            assert (text(good(reply)), reason(good(reply))) == ("", "length")
            assert good(reply)["usage"]["completion_tokens"] == 0


@case("BC-047")
def test_only_the_prompts_logprobs(server):
    body = reported_body("BC-047")
    reply = complete(server, body)
    lists = reply["choices"][0]["logprobs"]
    assert text(reply) == body["prompt"] == "".join(lists["tokens"]) and reply["usage"]["completion_tokens"] == 0
    assert {len(each) for each in lists.values()} == {reply["usage"]["prompt_tokens"]}
    assert lists["token_logprobs"][0] is None and all(value < 0 for value in lists["token_logprobs"][1:])
    alive(server)


@case("BC-049")
def test_without_a_limit_the_context_is_the_limit(server, short_server):
    reply = chat(server, reported_body("BC-049"))
    assert reason(reply) == "stop" and text(reply)
    full = chat(short_server, reported_body("BC-049", ignore_eos=True))
    assert reason(full) == "length" and full["usage"]["total_tokens"] == 256
    for fields, expected in (({"max_completion_tokens": 3}, 3), ({"max_completion_tokens": 3, "max_tokens": 9}, 3),
                             ({"max_completion_tokens": 9, "max_tokens": 3}, 9)):
        reply = chat(server, {"messages": user("Tell a story."), "temperature": 0, "ignore_eos": True} | fields)
        assert reply["usage"]["completion_tokens"] == expected and reason(reply) == "length"


def too_long(words):
    return user("word " * words)


@case("BC-050")
def test_a_prompt_over_the_context_is_named_and_not_a_limit(short_server):
    message = refused(post(short_server, CHAT, {"messages": too_long(5000)}), code="context_length_exceeded")
    assert "256" in message and "-" not in message.replace("context-", ""), message
    assert any(5000 <= int(number) <= 5100 for number in message.replace(",", " ").replace(".", " ").split()
               if number.isdigit()), message


@case("BC-056")
def test_an_overlong_prompt_is_refused_before_the_stream(short_server):
    reply = post(short_server, CHAT, {"messages": too_long(5000), "stream": True, "max_tokens": 4})
    refused(reply, code="context_length_exceeded")
    assert b"data:" not in reply.content
    alive(short_server)


@case("BC-058")
def test_an_overlong_prompt_gives_no_empty_stream(short_server):
    server = short_server
    refused(post(server, CHAT, {"messages": too_long(5000), "stream": True}), code="context_length_exceeded")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        client = Client(channel)
        request = client.message("tandem.v1.GenerateRequest", text="word " * 5000)
        with pytest.raises(grpc.RpcError) as error:
            list(client.method("tandem.v1.Inference", "Generate")(request, timeout=20))
    assert error.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE)
    assert "256" in error.value.details()


@case("BC-059")
def test_overlong_prompts_leave_nothing_behind(short_server):
    body = {"messages": too_long(20000), "max_tokens": 4}
    for _ in range(5):
        refused(post(short_server, CHAT, body), code="context_length_exceeded")
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        for reply in [pool.submit(post, short_server, CHAT, body) for _ in range(5)]:
            refused(reply.result(), code="context_length_exceeded")
    alive(short_server)
    assert short_server.idle()


@case("BC-052")
def test_numbers_that_fit_no_integer(server):
    def raw(name, value):
        more = b',"logprobs":true' if name == "top_logprobs" else b""
        return post(server, CHAT, b'{"messages":[{"role":"user","content":"hi"}],"temperature":0,"stop":["e","a"],"' +
                    name.encode() + b'":' + value + more + b"}")

    for name in ("max_tokens", "seed", "top_logprobs", "n"):
        for value in (b"1.5", b'"8"', b"true", b"[8]", b"18446744073709551616", b"1e40", b"-9223372036854775809"):
            refused(raw(name, value), param=name)
    for value in (b"9223372036854775807", b"18446744073709551615", b"-1"):
        refused(raw("max_tokens", value), param="max_tokens")
        refused(raw("top_logprobs", value), param="top_logprobs")
    large = raw("max_tokens", b"2147483648")
    assert large.status_code == 200 or refused(large, param="max_tokens")
    exponent = raw("max_tokens", b"1e3")
    assert exponent.status_code == 200 or refused(exponent, param="max_tokens")
    assert raw("seed", b"9223372036854775807").status_code == 200
    alive(server)
