"""Seeds, biases and values of the sampling fields at their edges."""
import concurrent.futures
import math

import grpc
import pytest

from test_grpc_client import Client

from .client import CHAT, COMPLETE, alive, chat, complete, good, post, refused, text, user
from .registry import case, reported_body


@case("BC-034")
def test_a_seed_repeats_the_text(server):
    body = reported_body("BC-034", max_tokens=10)
    first, *rest = [text(chat(server, body)) for _ in range(10)]
    assert set(rest) == {first} and first
    other = {text(chat(server, body | {"seed": 43})) for _ in range(3)}
    assert len(other) == 1 and other != {first}
    large = {text(chat(server, body | {"seed": seed})) for seed in (0, 2**31, 2**31 + 1, 2**63 - 1)}
    assert len(large) == 4, "no two seeds are cut to the same one"
    assert chat(server, body)["system_fingerprint"]


@case("BC-035")
def test_without_a_seed_texts_differ(server):
    body = reported_body("BC-035", max_tokens=8)
    assert len({text(chat(server, body)) for _ in range(10)}) >= 3
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        assert len({text(reply) for reply in pool.map(lambda _: chat(server, body), range(10))}) >= 3


@case("BC-043")
def test_a_bias_outside_the_vocabulary_is_refused(server):
    body = reported_body("BC-043")
    for key in ("99999999", "-1", "abc", "1.5", "", "49152", "4294967297", " 5", "5 ", "0x5"):
        refused(post(server, CHAT, body | {"logit_bias": {key: 5}}), param="logit_bias")
    for value in (101, -101, "5", None, True, [1]):
        refused(post(server, CHAT, body | {"logit_bias": {"5": value}}), param="logit_bias")
    for wrong in ([5], "5", 5):
        refused(post(server, CHAT, body | {"logit_bias": wrong}), param="logit_bias")
    last = chat(server, body | {"logit_bias": {"49151": 100}, "temperature": 0, "logprobs": True})
    tokens = last["choices"][0]["logprobs"]["content"]
    assert len(tokens) == 4 and len({entry["token"] for entry in tokens}) == 1, "the last id is one"
    alive(server)


@case("BC-044")
def test_an_empty_bias_is_no_bias(server):
    body = reported_body("BC-044")
    del body["logit_bias"]
    plain = text(chat(server, body))
    for nothing in ({}, None):
        assert text(chat(server, body | {"logit_bias": nothing})) == plain != ""
    assert text(chat(server, body | {"logit_bias": {"5": 100}})) != plain, "one that is there counts"


@case("BC-053")
def test_numbers_that_are_none_are_refused(server):
    def raw(name, value):
        fields = f'"messages":[{{"role":"user","content":"hi"}}],"max_tokens":4,"{name}":{value}'
        return post(server, CHAT, f"{{{fields}}}".encode())

    for name, over, under in (("temperature", 2.5, -0.5), ("top_p", 1.5, -0.5), ("presence_penalty", 2.5, -2.5),
                              ("frequency_penalty", 2.5, -2.5), ("min_p", 1.5, -0.5), ("repetition_penalty", 1e9, -1)):
        for value in ("NaN", "Infinity", "-Infinity", "nan", "1e999", "-1e999"):
            refused(raw(name, value))
        for value in ('"nan"', "true", "[1]", over, under, 1e308, -1e308):
            refused(raw(name, value), param=name)
    alive(server)


@case("BC-053")
def test_grpc_refuses_numbers_that_are_none(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        client = Client(channel)
        generate = client.method("tandem.v1.Inference", "Generate")

        def code(**fields):
            sampling = client.message("tandem.v1.SamplingParams", **fields)
            request = client.message("tandem.v1.GenerateRequest", text="Hi", max_tokens=2, sampling=sampling)
            try:
                return list(generate(request, timeout=20)) and grpc.StatusCode.OK
            except grpc.RpcError as error:
                return error.code()

        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            for value in (math.nan, math.inf, -math.inf):
                assert code(**{name: value}) == grpc.StatusCode.INVALID_ARGUMENT, (name, value)
        for value in (math.nan, math.inf):
            assert code(logit_bias={5: value}) == grpc.StatusCode.INVALID_ARGUMENT
        assert code(temperature=1.0) == grpc.StatusCode.OK
    alive(server)


@case("BC-055")
def test_a_tiny_temperature_is_greedy(server):
    body = reported_body("BC-055", logprobs=3)
    plain = complete(server, body | {"temperature": 0})
    assert len(text(plain)) > 12
    for values in ({"temperature": 1e-4}, {"temperature": 1e-6}, {"temperature": 1e-30}, {"temperature": 5e-324},
                   {"temperature": 1, "top_p": 1e-9}):
        reply = complete(server, body | values)
        assert text(reply) == text(plain), values
        assert all(math.isfinite(value) for value in reply["choices"][0]["logprobs"]["token_logprobs"]), values
    reply = post(server, COMPLETE, body | {"temperature": 1, "top_p": 0})
    assert text(good(reply)) == text(plain) if reply.status_code == 200 else refused(reply, param="top_p")


@pytest.mark.parametrize("path", [CHAT, COMPLETE])
@case("BC-053")
def test_the_limits_themselves_are_accepted(server, path):
    prompt = {"messages": user("hi")} if path == CHAT else {"prompt": "hi"}
    for fields in ({"temperature": 2}, {"temperature": 0}, {"top_p": 1}, {"presence_penalty": -2, "frequency_penalty": 2}):
        assert post(server, path, prompt | {"max_tokens": 2} | fields).status_code == 200, fields
