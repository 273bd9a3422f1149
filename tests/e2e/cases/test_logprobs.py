"""Log-probabilities: their shapes, their number, their keys."""
import json

import pytest

from .client import CHAT, COMPLETE, alive, chat, complete, post, refused, stream, text, user
from .models import TINY
from .registry import case, reported_body


def content(reply):
    """The entries of a chat, their shape checked."""
    logprobs = reply["choices"][0]["logprobs"]
    assert "text_offset" not in logprobs and "token_logprobs" not in logprobs
    entries = logprobs["content"]
    for entry in entries:
        assert {"token", "logprob", "bytes", "top_logprobs"} <= entry.keys()
        for each in (entry, *entry["top_logprobs"]):
            assert isinstance(each["token"], str) and each["logprob"] <= 0
            assert all(isinstance(byte, int) and 0 <= byte <= 255 for byte in each["bytes"])
            assert bytes(each["bytes"]).decode(errors="replace") == each["token"]
    assert len(entries) == reply["usage"]["completion_tokens"]
    return entries


def lists(reply):
    """The lists of a completion, their lengths checked."""
    logprobs = reply["choices"][0]["logprobs"]
    count = reply["usage"]["completion_tokens"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert len(logprobs[name]) == count, name
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    return logprobs


@case("BC-037")
def test_logprobs_alone_has_no_alternatives(server):
    body = reported_body("BC-037", temperature=0)
    entries = content(chat(server, body))
    assert len(entries) == 4 and all(entry["top_logprobs"] == [] for entry in entries)
    refused(post(server, CHAT, {"messages": user("Hi!"), "max_tokens": 4, "top_logprobs": 2}), param="top_logprobs")
    for wrong in (21, -1, 1.5, "2"):
        refused(post(server, CHAT, body | {"top_logprobs": wrong}), param="top_logprobs")
    assert all(len(entry["top_logprobs"]) == 20 for entry in content(chat(server, body | {"top_logprobs": 20})))


@case("BC-038")
def test_completions_have_the_legacy_lists(server):
    reply = complete(server, reported_body("BC-038"))
    logprobs = lists(reply)
    assert "".join(logprobs["tokens"]) == text(reply) and len(logprobs["tokens"]) == 3
    for token, value, tops, offset in zip(*(logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs",
                                                                      "text_offset"))):
        assert text(reply)[offset:offset + len(token)] == token and tops[token] == value
    assert logprobs["text_offset"][0] == 0
    assert complete(server, {"prompt": "a", "max_tokens": 2})["choices"][0]["logprobs"] is None


@case("BC-040")
def test_chats_have_content_and_bytes(servers, server):
    assert all(len(entry["top_logprobs"]) == 2 for entry in content(chat(server, reported_body("BC-040"))))
    # A model that knows no words: most of its tokens are parts of characters.
    entries = content(chat(servers(model=str(TINY)), reported_body("BC-040", max_tokens=60, temperature=0)))
    assert any(b"\xef\xbf\xbd" not in bytes(entry["bytes"]) and "\ufffd" in entry["token"] for entry in entries)


@case("BC-041")
def test_streamed_logprobs_are_the_same(server):
    body = reported_body("BC-041", stream=False)
    whole = complete(server, body)
    events = stream(server, COMPLETE, body)
    assert all(choice["logprobs"] for choice in events.choices() if choice["text"])
    assert events.logprobs() == lists(whole)
    assert len(events.logprobs()["tokens"]) == 5


@case("BC-160")
def test_no_alternatives_of_no_logprobs(server):
    body = reported_body("BC-160", temperature=0)
    plain = {"messages": body["messages"], "max_tokens": 2, "temperature": 0}
    expected = chat(server, plain)["choices"]
    for fields in ({"logprobs": False, "top_logprobs": 0}, {"top_logprobs": 0}, {"logprobs": None, "top_logprobs": 0},
                   {"logprobs": None, "top_logprobs": None}, {"logprobs": False, "top_logprobs": None}):
        assert chat(server, plain | fields)["choices"] == expected, fields
        assert stream(server, CHAT, plain | fields).text() == text({"choices": expected})
    for fields in ({"top_logprobs": 1}, {"logprobs": False, "top_logprobs": 1}):
        refused(post(server, CHAT, plain | fields), param="top_logprobs")


@case("BC-161")
def test_zero_alternatives_are_still_logprobs(server):
    body = reported_body("BC-161")
    logprobs = lists(complete(server, body))
    assert len(logprobs["tokens"]) == 3
    for token, value, tops in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert not tops or tops == {token: value}
    assert stream(server, COMPLETE, body).logprobs() == logprobs
    for none in (0, None):
        fields = {"messages": user("Hello"), "max_tokens": 3, "temperature": 0, "logprobs": True, "top_logprobs": none}
        entries = content(chat(server, fields))
        assert len(entries) == 3 and all(entry["top_logprobs"] == [] for entry in entries)
        assert stream(server, CHAT, fields).logprobs() == entries


@pytest.mark.parametrize("model", [None, str(TINY)], ids=["default", "tiny"])
@case("BC-173")
def test_every_alternative_keeps_a_key_of_its_own(server, servers, model):
    """Tokens that are parts of characters all read as U+FFFD; the tiny model has many of them."""
    running = servers(model=model) if model else server
    body = reported_body("BC-173")
    logprobs = lists(complete(running, body))
    assert json.dumps(logprobs)
    # The chosen token is the likeliest here, so it is one of the alternatives.
    assert [len(tops) for tops in logprobs["top_logprobs"]] == [20] * 12
    for token, value, tops in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert tops.get(token) == value or max(tops.values()) == value
    assert stream(running, COMPLETE, body).logprobs() == logprobs
    entries = content(chat(running, {"messages": user(body["prompt"]), "max_tokens": 12, "temperature": 0,
                                     "logprobs": True, "top_logprobs": 20}))
    assert all(len(entry["top_logprobs"]) == 20 for entry in entries)


@case("BC-130")
def test_prompt_logprobs_survive_a_cached_prefix(server):
    body = reported_body("BC-130", prompt=[1] + [5] * 256, temperature=0)
    replies = [complete(server, body) for _ in range(3)]
    assert len(replies[0]["choices"][0]["logprobs"]["tokens"]) == 258
    assert replies[0]["choices"] == replies[1]["choices"] == replies[2]["choices"]
    plain = {name: value for name, value in body.items() if name not in ("echo", "logprobs")}
    cached = [complete(server, plain)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    assert cached[1] >= 240, "the prefix is cached"
    assert complete(server, body)["choices"] == replies[0]["choices"]
    alive(server)
