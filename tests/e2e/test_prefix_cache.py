"""The prefix cache as clients see it: the same bytes with and without a hit, cached tokens in the usage, isolation."""
import concurrent.futures
import itertools
import random

import httpx
import pytest

from conftest import Server, wait_until

WORDS = "river stone light market garden engine winter letter mountain paper silver window".split()


def text(seed, words):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def complete(server, prompt, **fields):
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0.7, "seed": 5, "logprobs": 1, "ignore_eos": True} | fields
    reply = server.post("/v1/completions", body, timeout=120)
    assert reply.status_code == 200, reply.text
    reply = reply.json()
    choices = [(c["text"], c["logprobs"]["token_logprobs"]) for c in reply["choices"]]
    return choices, reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["usage"]["prompt_tokens"]


def whole_blocks(tokens):
    """All but the last token, in blocks of 16."""
    return (tokens - 1) // 16 * 16


@pytest.fixture(scope="module", params=[["--placement", "semi"], ["--placement", "fused", "--prefill-chunk-tokens", "48"]],
                ids=["semi", "fused"])
def cached_server(request):
    with Server(*request.param) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module")
def plain_server():
    with Server("--prefix-cache=false") as running:
        yield running
        assert running.stop() == 0


def test_a_hit_changes_no_byte(cached_server, plain_server):
    for seed, words in itertools.product(range(3), (5, 15, 40, 300)):
        prompt = text(seed, words)
        want, none, tokens = complete(plain_server, prompt)
        assert none == 0
        first, _, _ = complete(cached_server, prompt)
        second, cached, _ = complete(cached_server, prompt)
        assert first == want and second == want, f"{words} words"
        assert cached == whole_blocks(tokens)


def test_partial_hits_share_the_common_blocks_only(cached_server, plain_server):
    common = text("common", 200)
    complete(cached_server, common)
    for ending in (" and then the river", " market", " " + text("end", 90)):
        want, _, _ = complete(plain_server, common + ending)
        got, cached, tokens = complete(cached_server, common + ending)
        assert got == want
        assert 0 < cached <= whole_blocks(tokens) and cached % 16 == 0


def test_eight_turns_of_a_chat_grow_their_cached_tokens(cached_server):
    messages, last = [], -1
    for turn in range(8):
        messages.append({"role": "user", "content": text(f"turn {turn}", 25)})
        reply = cached_server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 20, "temperature": 0,
                                                            "ignore_eos": True}, timeout=120).json()
        usage = reply["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if turn:
            # What the turn before had in its prompt is there again; its answer may be split into other tokens.
            assert cached >= before // 16 * 16 - 16 and cached > last, (turn, cached, before)
        last, before = cached, usage["prompt_tokens"]
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})


def test_salts_isolate_and_requests_can_opt_out(cached_server):
    prompt = text("salted", 100)
    assert complete(cached_server, prompt, cache_salt="a")[1] == 0
    assert complete(cached_server, prompt, cache_salt="b")[1] == 0
    assert complete(cached_server, prompt)[1] == 0
    choices, cached, tokens = complete(cached_server, prompt, cache_salt="a")
    assert cached == whole_blocks(tokens)
    assert complete(cached_server, prompt, cache_prompt=False)[:2] == (choices, 0)


def test_flush_empties_the_cache(cached_server):
    prompt = text("flushed", 100)
    for path in ("/flush_cache", "/reset_prefix_cache"):
        complete(cached_server, prompt)
        assert complete(cached_server, prompt)[1] > 0
        assert httpx.post(cached_server.url + path, timeout=20).status_code == 200
        assert complete(cached_server, prompt)[1] == 0
    assert httpx.get(cached_server.url + "/flush_cache", timeout=20).status_code == 405


def test_stops_cancels_and_errors_leave_nothing_false(cached_server, plain_server):
    prompt = text("poison", 150)
    want, _, _ = complete(plain_server, prompt, max_tokens=40)
    full = want[0][0]
    httpx.post(cached_server.url + "/flush_cache", timeout=20)
    complete(cached_server, prompt, max_tokens=40, stop=full[10:14])
    for wait in (0.001, 0.01, 0.03, 0.1):
        with pytest.raises(httpx.TimeoutException):  # the client goes away in the middle
            httpx.post(cached_server.url + "/v1/completions", timeout=wait,
                       json={"prompt": prompt + text(wait, 1200), "max_tokens": 400, "ignore_eos": True})
        assert complete(cached_server, prompt, max_tokens=40)[0] == want
    assert cached_server.post("/v1/completions", {"prompt": prompt, "max_tokens": -1}).status_code == 400
    assert complete(cached_server, prompt, max_tokens=40)[0] == want
    assert complete(cached_server, full and prompt + full)[0] == complete(plain_server, prompt + full)[0]


def test_64_requests_with_one_long_prefix_read_it_once(cached_server):
    prefix = text("shared by all", 1000)
    httpx.post(cached_server.url + "/flush_cache", timeout=20)
    hits = cached_server.metric("tandem_prefix_cache_hits_total")
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda i: complete(cached_server, f"{prefix} number {i}", max_tokens=4), range(64)))
    tokens = answers[0][2]
    assert sorted(cached > 900 for _, cached, _ in answers).count(False) == 1  # the first one
    assert cached_server.metric("tandem_prefix_cache_hits_total") - hits > 60 * whole_blocks(tokens - 16)
    wait_until(cached_server.idle, what="an idle server")


def test_choices_of_one_request_share_its_prompt(cached_server, plain_server):
    prompt = text("choices", 120)
    want, _, _ = complete(plain_server, prompt, n=4)
    got, cached, _ = complete(cached_server, prompt, n=4)
    assert got == want and cached == 0
    assert complete(cached_server, prompt, n=4)[1] > 0


def test_flushing_is_for_administrators():
    with Server("--api-keys", "user-key", "--admin-api-key", "admin-key") as server:
        def flush(key):
            return httpx.post(server.url + "/flush_cache", headers={"Authorization": f"Bearer {key}"}, timeout=20).status_code
        assert (flush("user-key"), flush("none"), flush("admin-key")) == (401, 401, 200)
        assert server.stop() == 0


def test_keys_do_not_share_their_prompts():
    with Server("--api-keys", "alice", "--api-keys", "bob") as server:
        def cached(key):
            reply = httpx.post(server.url + "/v1/completions", headers={"Authorization": f"Bearer {key}"},
                               json={"prompt": text("tenants", 200), "max_tokens": 1}, timeout=60)
            assert reply.status_code == 200, reply.text
            return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached("alice") == 0
        assert cached("alice") > 100
        assert cached("bob") == 0, "another key's prompt is not found out"
        assert cached("bob") > 100
