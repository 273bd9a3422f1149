"""Many clients, impatient clients, a full pool: everybody is served, nothing is left taken, the counters tell the truth."""
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import time

import httpx

from conftest import wait_until

from .client import (CHAT, COMPLETE, Raw, alive, background, chat, complete, get, metric, open_stream, post, refused,
                     request_bytes, stream, text, user, words)
from .registry import case, reported_body

STORY = {"messages": user("Write a very long story."), "temperature": 0, "ignore_eos": True}


def busy(server, count=1):
    wait_until(lambda: metric(server, "num_requests_running") >= count, what=f"{count} running")


@case("BC-112")
def test_who_leaves_frees_the_blocks_and_who_half_closes_stays(server):
    with Raw(server) as connection:
        connection.send(request_bytes(CHAT, STORY | {"max_tokens": 4000}))
        busy(server)
    wait_until(server.idle, 3, "free blocks after the close")
    body = STORY | {"max_tokens": 80}
    expected = text(chat(server, body))
    with Raw(server) as connection:
        connection.send(request_bytes(CHAT, body))
        connection.socket.shutdown(1)  # SHUT_WR: the client has sent everything, and waits
        assert text(good_raw(connection.reply())) == expected


def good_raw(reply):
    assert reply.status_code == 200, reply.text
    return json.loads(reply.content)


@case("BC-113")
def test_a_cut_stream_leaves_its_prefix_in_the_cache(server, servers):
    first = user(words(113, 300))
    tokens = chat(server, {"messages": first, "max_tokens": 1, "cache_prompt": False})["usage"]["prompt_tokens"]
    with open_stream(server, CHAT, {"messages": first, "max_tokens": 300, "temperature": 0, "ignore_eos": True}) as lines:
        for _ in range(5):
            next(lines)
    wait_until(server.idle, what="an idle server")
    turns = [*first, {"role": "assistant", "content": "I see."}, *user("Go on.")]
    again = {"messages": turns, "max_tokens": 12, "temperature": 0}
    reply = chat(server, again)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= (tokens - 1) // 16 * 16 > 300
    assert text(reply) == text(chat(servers("--prefix-cache=false"), again)) != ""


@case("BC-131")
def test_the_next_turn_finds_the_reply_in_the_cache(server, servers):
    messages = user("Tell a story.")
    body = {"temperature": 0, "max_tokens": 60}
    first = chat(server, body | {"messages": messages})
    turn = [*messages, {"role": "assistant", "content": text(first)}, *user("Go on.")]
    reply = chat(server, body | {"messages": turn})
    known = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= known // 16 * 16 >= 48
    assert text(reply) == text(chat(servers("--prefix-cache=false"), body | {"messages": turn})) != ""


@case("BC-115", slow=True)
def test_clients_that_do_not_read_hold_up_nobody(servers):
    server = servers("--max-context-tokens", "4096")
    body = STORY | {"max_tokens": 2000, "n": 2, "logprobs": True, "top_logprobs": 20}
    normal = STORY | {"max_tokens": 100}
    expected = text(chat(server, normal))
    right = stream(server, CHAT, body).text(0)

    def resident():
        with open(f"/proc/{server.process.pid}/status") as status:
            return int(status.read().split("VmRSS:")[1].split()[0]) / 1024

    def read(connection, count):
        with contextlib.suppress(BlockingIOError, ConnectionError):
            data = connection.socket.recv(count)
            connection.input += data
            return data

    before = resident()
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(Raw(server, receive_buffer=1024)) for _ in range(20)]
        for connection in slow:
            connection.send(request_bytes(CHAT, body | {"stream": True}))
            connection.socket.setblocking(False)
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            replies = [pool.submit(chat, server, normal) for _ in range(5)]
            started, worst = time.monotonic(), 0
            while time.monotonic() - started < 45 and not (started + 5 < time.monotonic() and server.idle()):
                time.sleep(1)
                worst = max(worst, resident() - before)
                for connection in slow:
                    read(connection, 20)
            assert all(text(reply.result(timeout=60)) == expected for reply in replies)
        wait_until(server.idle, 90, "the end of streams that nobody reads")
        assert worst < 20 * 4 + 60, f"{worst} MiB for 20 slow clients: about 1 MiB each is the limit"
        for connection in slow:
            while read(connection, 65536):
                pass
            head, events = connection.input.split(b"\r\n\r\n", 1)
            assert head.startswith(b"HTTP/1.1 200 ")
            whole_events = [json.loads(line[6:]) for line in events.split(b"\n\n")[:-1]
                            for line in line.splitlines() if line.startswith(b"data: {")]
            choices = [choice for event in whole_events for choice in event.get("choices", []) if choice["index"] == 0]
            assert choices, "what was sent begins with whole events"
            assert right.startswith("".join(choice["delta"].get("content", "") for choice in choices))
    alive(server)


@case("BC-118", slow=True)
def test_a_busy_server_is_healthy(servers):
    server = servers("--threads", "1", "--prefix-cache=false")
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        sent = [pool.submit(complete, server, {"prompt": words(n, 1000), "max_tokens": 2}) for n in range(20)]
        polls = []
        while not all(reply.done() for reply in sent):
            started = time.monotonic()
            assert get(server, "/health", timeout=5).status_code == 200
            polls.append(time.monotonic() - started)
            time.sleep(0.2)
        assert len(polls) > 5 and sorted(polls)[len(polls) * 9 // 10] < 1, polls
        for reply in sent:
            assert reply.result()["usage"]["completion_tokens"] == 2


def burst(server, count, body):
    """`count` requests at once on connections of their own; checks each answer and returns the statuses."""
    with httpx.Client(trust_env=False, verify=False, timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            replies = list(pool.map(lambda _: client.post(server.url + CHAT, json=body), range(count)))
    for reply in replies:
        if reply.status_code != 200:
            assert reply.status_code in (429, 503)
            refused(reply, status=reply.status_code)
            assert int(reply.headers["retry-after"]) >= 0
    return [reply.status_code for reply in replies]


@case("BC-119")
def test_over_the_queue_limit_the_answer_comes_at_once(servers):
    server = servers("--max-running-sequences", "2", "--max-queued-requests", "2")
    body = reported_body("BC-119", ignore_eos=True)
    for _ in range(2):
        statuses = burst(server, 50, body)
        assert 2 <= statuses.count(200) < 50, statuses
    wait_until(server.idle, what="an idle server")
    assert metric(server, "num_requests_waiting") == 0
    wait_until(lambda: metric(server, "http_connections") <= 2, what="no open sockets but the scraper's")


@case("BC-139")
def test_a_server_that_was_full_is_not_dead(servers):
    server = servers("--max-running-sequences", "1", "--max-queued-requests", "1")
    statuses = burst(server, 30, reported_body("BC-139", ignore_eos=True))
    assert 200 in statuses and 30 > statuses.count(200) >= 2, statuses
    assert get(server, "/health").status_code == 200
    wait_until(server.idle, what="an idle server")
    assert chat(server, reported_body("BC-139", max_tokens=5))["usage"]["completion_tokens"] >= 1


@case("BC-121")
def test_gauges_fall_to_zero_when_all_leave_at_once(server):
    with contextlib.ExitStack() as stack:
        for n in range(10):
            connection = stack.enter_context(Raw(server))
            connection.send(request_bytes(CHAT, {"messages": user(words(n, 30)), "max_tokens": 2000, "stream": True,
                                                      "ignore_eos": True}))
        busy(server, 10)
        assert not server.idle()
    wait_until(lambda: metric(server, "num_requests_running") == 0, 3, "no running request")
    for _ in range(3):  # and they stay there
        assert metric(server, "num_requests_waiting") == 0
        wait_until(server.idle, 3, "no used block")
        time.sleep(0.1)
    assert metric(server, "prefix_cache_blocks") > 0, "what the cache holds is a series of its own"


COUNTERS = ("requests_accepted_total", "requests_refused_total", "prompt_tokens_total", "generation_tokens_total",
            "request_prompt_tokens_sum", "request_prompt_tokens_count", "request_generation_tokens_sum",
            "request_generation_tokens_count", "e2e_request_latency_seconds_count")
REASONS = ("stop", "length", "cancelled", "failed")


@case("BC-122")
def test_counters_agree_with_what_clients_got(servers):
    server = servers("--max-queued-requests", "100")

    def counters():
        return {name: metric(server, name) for name in COUNTERS} | {
            reason: metric(server, "requests_finished_total", reason=reason) for reason in REASONS}

    before = counters()
    usage, prompt_of_cut = [], 0
    for n in range(5):
        prompt = {"messages": user(words(n, 25))}
        with open_stream(server, CHAT, prompt | {"max_tokens": 2000, "ignore_eos": True}) as lines:
            for _ in range(3):
                next(lines)
        refused(post(server, CHAT, prompt | {"max_tokens": -1}))
        usage.append(chat(server, prompt | {"max_tokens": 4, "ignore_eos": True})["usage"])
        prompt_of_cut += usage[-1]["prompt_tokens"]
        usage.append(chat(server, {"messages": user("Name the capital of France."), "temperature": 0})["usage"])
    usage.append(chat(server, {"messages": user("A colour."), "max_tokens": 3, "n": 3, "ignore_eos": True})["usage"])
    wait_until(server.idle, what="an idle server")
    rise = {name: value - before[name] for name, value in counters().items()}
    assert {reason: rise[reason] for reason in REASONS} == {"stop": 5, "length": 6, "cancelled": 5, "failed": 0}
    assert rise["requests_accepted_total"] == 16 and rise["requests_refused_total"] == 5
    prompts = sum(each["prompt_tokens"] for each in usage) + prompt_of_cut
    generated = sum(each["completion_tokens"] for each in usage)
    assert rise["prompt_tokens_total"] == rise["request_prompt_tokens_sum"] == prompts
    # Of each stream that was cut the client saw at least two tokens, and the server had made no more than a few ahead.
    assert generated + 10 <= rise["generation_tokens_total"] == rise["request_generation_tokens_sum"] < generated + 5 * 2000
    for name in ("request_prompt_tokens_count", "request_generation_tokens_count", "e2e_request_latency_seconds_count"):
        assert rise[name] == 16, name
    described = get(server, "/metrics").text
    for name in ("requests_finished_total", "prompt_tokens_total", "generation_tokens_total"):
        assert re.search(rf"# HELP tandem[:_]{name} \S+", described), f"{name} says what it counts"


@case("BC-127", slow=True)
def test_a_full_pool_serves_everybody_with_the_right_text(servers):
    roomy = servers("--prefix-cache=false")
    tight = servers("--kv-cache-tokens", "1536", "--max-context-tokens", "1024")
    common = words("common", 120)
    bodies = [{"prompt": (common if n % 2 else "") + words(n, 60 if n % 2 else 180), "max_tokens": 150, "temperature": 0,
               "ignore_eos": True} for n in range(24)]
    started = time.monotonic()
    alone = [text(complete(roomy, body)) for body in bodies]
    seconds = time.monotonic() - started
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(28) as pool:
        sent = [pool.submit(complete, tight, body) for body in bodies]
        for n in range(4):
            with contextlib.suppress(httpx.TimeoutException):
                post(tight, COMPLETE, bodies[n] | {"max_tokens": 400}, timeout=random.Random(n).uniform(0.2, 2))
        assert [text(reply.result()) for reply in sent] == alone
    assert time.monotonic() - started < 3 * seconds + 10, "no circle of preemptions"
    wait_until(tight.idle, what="every block free")


@case("BC-128", slow=True)
def test_a_long_prompt_holds_up_neither_streams_nor_short_prompts(servers):
    server = servers("--prefix-cache=false")
    prompt = words(128, 1000)
    tokens = complete(server, {"prompt": prompt, "max_tokens": 1})["usage"]["prompt_tokens"]
    long_prompt = words(1, 7300 * 1000 // tokens)
    started = time.monotonic()
    usage = complete(server, {"prompt": long_prompt, "max_tokens": 1})["usage"]
    long_alone = time.monotonic() - started
    assert usage["prompt_tokens"] > 6500
    gaps = []

    def run_stream():
        with open_stream(server, CHAT, STORY | {"max_tokens": 4000}) as lines:
            last = time.monotonic()
            for _ in lines:
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
                if stop_at and last > stop_at[0]:
                    return

    stop_at = []
    running = background(run_stream)
    wait_until(lambda: len(gaps) > 20, what="a running stream")
    gaps.clear()
    reading = background(complete, server, {"prompt": long_prompt, "max_tokens": 16})
    time.sleep(0.2)

    def first_token(n):
        started = time.monotonic()
        with open_stream(server, CHAT, {"messages": user(f"Hi {n}"), "max_tokens": 16}) as lines:
            next(line for line in lines if '"content":"' in line and '"content":""' not in line)
            return time.monotonic() - started

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        times = list(pool.map(first_token, range(10)))
        while not reading.done():  # a steady flow of short ones
            first_token(99)
    assert reading.result(timeout=60)["usage"]["completion_tokens"] >= 1, "the long one ends too"
    stop_at.append(time.monotonic())
    running.result(timeout=60)
    assert sorted(times)[5] < long_alone / 2, (times, long_alone)
    assert max(gaps) < long_alone / 2, (max(gaps), long_alone)


def leave_at_random(server, count, longest, clients):
    draw = random.Random(133)
    plan = [(draw.uniform(0, longest), words(n, draw.choice([5, 200, 900]))) for n in range(count)]

    def leave(item):
        seconds, prompt = item
        with Raw(server) as connection:
            connection.send(request_bytes(CHAT, {"messages": user(prompt), "max_tokens": 200, "stream": True}))
            time.sleep(seconds)

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(leave, plan))


@case("BC-133")
def test_clients_that_leave_between_the_phases_leave_no_block(server):
    leave_at_random(server, 40, 0.3, 10)
    wait_until(server.idle, 15, "free blocks")
    alive(server)


@case("BC-133", slow=True)
def test_clients_that_leave_while_workers_die_leave_no_block(servers):
    server = servers("--max-queued-requests", "400")
    flood = background(leave_at_random, server, 300, 2.0, 30)
    for _ in range(3):
        time.sleep(2)
        victim = server.worker(1)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: server.worker(1) not in (None, victim), what="a new decode worker")
    flood.result(timeout=120)
    wait_until(server.idle, 15, "free blocks")
    alive(server)


@case("BC-134")
def test_what_ends_in_prefill_is_not_decoded(servers):
    server = servers("--prefix-cache=false", "--prefill-chunk-tokens", "64")
    before = metric(server, "generation_tokens_total")
    refused(post(server, COMPLETE, {"prompt": "word " * 9000, "max_tokens": 20}), code="context_length_exceeded")
    with Raw(server) as connection:
        connection.send(request_bytes(COMPLETE, {"prompt": words(134, 3000), "max_tokens": 20, "stream": True}))
        busy(server)
    wait_until(server.idle, what="an idle server")
    assert metric(server, "generation_tokens_total") == before, "it was cut while its prompt was read"
    alive(server)
