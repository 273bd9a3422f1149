"""Stop strings: where the text ends, and that nothing of it is lost or sent too early."""
import re

import pytest

from .client import CHAT, COMPLETE, both_ways, chat, complete, good, post, reason, refused, text, user
from .models import END_OF_TURN, TURN, scripted_model
from .registry import case, reported_body


@case("BC-016")
def test_a_stop_string_over_two_tokens_sends_no_part_of_itself(server):
    body = reported_body("BC-016", stream=False)
    del body["stop"]
    first = chat(server, body | {"logprobs": True})
    pieces = [bytes(entry["bytes"]) for entry in first["choices"][0]["logprobs"]["content"]]
    whole = text(first)
    tried = 0
    for n in range(15, len(pieces) - 1):
        stop = (pieces[n][-2:] + pieces[n + 1][:2]).decode(errors="replace")
        if len(stop) < 4 or not stop.isascii():
            continue
        tried += 1
        reply, events = both_ways(server, CHAT, body | {"stop": [stop]})
        assert text(reply) == whole[:whole.index(stop)] and reason(reply) == "stop"
        assert not any(events.text().endswith(stop[:length]) for length in (4, 3))
        if tried == 3:
            return
    raise AssertionError("the text has no place to try")


@case("BC-017")
def test_a_stop_string_of_several_words_matches(server):
    body = reported_body("BC-017")
    del body["stop"]
    first = complete(server, body)
    stop = re.search(r"(?<=\s)\S+\s+\S+\s+\S+\s+\S+", text(first)[8:]).group()
    reply, _ = both_ways(server, COMPLETE, body | {"stop": [stop]})
    assert text(reply) == text(first)[:text(first).index(stop)] and reason(reply) == "stop"
    assert reply["usage"]["completion_tokens"] < first["usage"]["completion_tokens"]


@case("BC-019")
def test_held_text_is_sent_when_the_model_ends_by_itself(servers, tmp_path_factory):
    said = [b'{"t":"alpha', b" beta", b" gam", b"ma", b'"', b"}"]
    server = servers(model=scripted_model(tmp_path_factory.getbasetemp() / "held", said))
    whole, _ = both_ways(server, CHAT, {"messages": user("Copy the text."), "temperature": 0, "max_tokens": 60,
                                        "stop": ['gamma"}#####']})
    assert text(whole) == '{"t":"alpha beta gamma"}' and reason(whole) == "stop"
    cut, _ = both_ways(server, CHAT, {"messages": user("Copy the text."), "max_tokens": 60, "stop": ['gamma"}']})
    assert text(cut) == '{"t":"alpha beta ', "the stop string does match where it is whole"


@case("BC-020")
def test_held_text_is_sent_when_the_limit_ends_the_request(server):
    body = reported_body("BC-020", stream=False, ignore_eos=True)
    whole, _ = both_ways(server, CHAT, body)
    assert reason(whole) == "length" and whole["usage"]["completion_tokens"] == 17
    del body["stop"]
    assert text(whole) == text(chat(server, body))


@case("BC-022")
def test_odd_values_of_stop(server):
    body = reported_body("BC-022")
    del body["stop"]
    plain = text(chat(server, body))
    assert len(plain) > 12
    for nothing in (None, []):
        assert text(chat(server, body | {"stop": nothing})) == plain
    word = plain[6:9]
    for given in (word, [word]):
        assert text(chat(server, body | {"stop": given})) == plain[:plain.index(word)]
    for empty in ("", ["", ""]):
        reply = post(server, CHAT, body | {"stop": empty})
        assert text(good(reply)) == plain if reply.status_code == 200 else refused(reply, param="stop")
    for wrong in ([None], [5], 5, {"a": 1}, [["a"]]):
        refused(post(server, CHAT, body | {"stop": wrong}), param="stop")
    for many in (["~~1", "~~2", "~~3", "~~4", word], [word] + ["~~"] * 4):  # more than OpenAI's four are allowed
        assert text(chat(server, body | {"stop": many})) == plain[:plain.index(word)]
    reply = post(server, CHAT, body | {"stop": "x" * 100_000})
    assert text(good(reply)) == plain if reply.status_code == 200 else refused(reply, param="stop")


@pytest.fixture(scope="module")
def turns(servers, tmp_path_factory):
    """A model that goes on with an invented turn, as if the end of a turn were no end."""
    folder = tmp_path_factory.getbasetemp()
    script = [b"one", TURN, b"two", END_OF_TURN, b"three"]
    return servers(model=scripted_model(folder / "turns", script, ends=(), loop=True))


@case("BC-163")
def test_the_text_of_a_control_token_stops_there(turns):
    for skip in (True, False):
        common = {"max_tokens": 6, "temperature": 0, "skip_special_tokens": skip}
        chats = common | {"messages": user("Hi"), "stop": [TURN]}
        raw = common | {"prompt": "Hi", "stop": [TURN, "never"]}
        for path, body in ((CHAT, chats), (COMPLETE, raw)):
            whole, _ = both_ways(turns, path, body)
            assert (text(whole), reason(whole)) == ("one", "stop"), (path, skip)
            assert whole["usage"]["completion_tokens"] <= 3
        # The end of the turn is no end with ignore_eos, but it is still what the client asked to stop at.
        whole, _ = both_ways(turns, CHAT, common | {"messages": user("Hi"), "stop": END_OF_TURN, "ignore_eos": True})
        assert reason(whole) == "stop" and text(whole) == ("onetwo" if skip else f"one{TURN}two")
        # Without a stop string the control tokens are passed over.
        whole, _ = both_ways(turns, CHAT, common | {"messages": user("Hi"), "ignore_eos": True})
        assert reason(whole) == "length" and text(whole).replace(TURN, "").replace(END_OF_TURN, "") == "onetwothreeone"


@case("BC-163")
def test_a_biased_turn_marker_stops_and_typed_markers_do_not(server):
    body = reported_body("BC-163", stop=[TURN], logit_bias={"1": 100})
    whole, _ = both_ways(server, CHAT, body)
    assert (text(whole), reason(whole), whole["usage"]["completion_tokens"]) == ("", "stop", 1)
    typed = {"messages": user(f"Say {TURN} and {END_OF_TURN}, please."), "temperature": 0, "max_tokens": 8}
    assert text(chat(server, typed | {"stop": [TURN]})) == text(chat(server, typed)) != ""
