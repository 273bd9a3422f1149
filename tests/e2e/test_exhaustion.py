"""A KV pool that the streams of the moment do not fit in: they wait, evict and preempt, and the clients see nothing of it
but the time it takes."""
import concurrent.futures
import json
import random
import threading

import httpx
import pytest

from conftest import Server, wait_until

WORDS = "river stone light market garden engine winter letter mountain paper silver window".split()
STREAMS = 16
REQUESTS = 48
BLOCK_TOKENS = 16


def text(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def mixed_requests():
    """Short and long prompts and answers, some with a common beginning, some of another priority."""
    draw = random.Random(110400)
    common = text(draw, 60)
    for n in range(REQUESTS):
        prompt = f"{n} " + text(draw, draw.choice([5, 20, 60, 250]))
        body = {"prompt": common + " " + prompt if n % 4 == 0 else prompt, "max_tokens": draw.choice([4, 25, 60, 120]),
                "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        yield body | {"priority": n % 3} if n % 5 == 0 else body


def stream(server, body):
    """The text, why it ended and the usage. Every event counts: an error in the stream has no choices."""
    pieces, reason, usage = [], None, None
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=120) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                pieces.append(choice["text"])
                reason = choice["finish_reason"] or reason
    assert usage, "the stream broke off"
    return "".join(pieces), reason, usage["prompt_tokens"], usage["completion_tokens"]


@pytest.fixture(scope="module")
def alone():
    """What each request gets by itself on a server with room for all."""
    with Server("--prefix-cache=false") as server:
        answers = [stream(server, body) for body in mixed_requests()]
        assert server.metric("tandem_num_preemptions_total") == 0
        assert server.stop() == 0
    return answers


def ask_what_never_fits(server, words, until):
    """Again and again while the load runs; gives the replies."""
    replies = []
    while not until.wait(0.2):
        replies.append(server.post("/v1/completions", {"prompt": " ".join(["river"] * words), "max_tokens": 4}))
    return replies


@pytest.mark.parametrize("placement", ["semi", "fused"])
@pytest.mark.parametrize("percent", [110, 400])
def test_mixed_streams_beyond_the_pool_all_get_their_answer(alone, placement, percent):
    sizes = [prompt + answer for _, _, prompt, answer in alone]
    pool_tokens = sum(sizes) * STREAMS * 100 // REQUESTS // percent // BLOCK_TOKENS * BLOCK_TOKENS
    assert max(sizes) < pool_tokens * 14 // 16, "each request fits by itself, also beside the decode reserve"
    with Server("--placement", placement, "--kv-cache-tokens", str(pool_tokens)) as server:
        over = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(STREAMS + 1) as pool:
            refused = pool.submit(ask_what_never_fits, server, pool_tokens + 1, over)
            answers = [pool.submit(stream, server, body) for body in mixed_requests()]
            try:
                got = [answer.result(timeout=120) for answer in answers]
            finally:
                over.set()
        assert got == alone
        for reply in refused.result():
            assert reply.status_code == 400
            error = reply.json()["error"]
            assert error["code"] == "context_length_exceeded", error
            assert "KV pool holds" in error["message"] and "shorten" in error["message"], error
        assert refused.result(), "it was asked while the load ran"

        wait_until(server.idle, what="an empty pool")
        if percent >= 400:
            assert server.metric("tandem_num_preemptions_total") > 0
        # What ended is cached until its memory is needed: less of it is there than was computed.
        whole_blocks = sum((size - 1) // BLOCK_TOKENS for size in sizes)
        assert 0 < server.metric("tandem_prefix_cache_blocks") <= pool_tokens // BLOCK_TOKENS < whole_blocks
        assert httpx.post(server.url + "/flush_cache", timeout=20).status_code == 200
        wait_until(lambda: server.metric("tandem_prefix_cache_blocks") == 0, what="an empty cache")
        assert stream(server, next(mixed_requests())) == alone[0]
        assert server.stop() == 0
