"""An owner of its own: memory that outlives the server, warm restarts, one server at a time, and `tandem inspect`."""
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BINARY, MODEL, Server, gone, wait_until

WORDS = "river stone light market garden engine winter letter mountain paper silver window".split()
NAMES = itertools.count()
FLAGS = ["--kv-cache-tokens", "16384"]


def text(seed, words):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


PROMPT = text("a thousand", 1000)


class Owner:
    def __init__(self, address=None):
        self.address = address or f"@tandem-e2e-{os.getpid()}-{next(NAMES)}"
        self.process = subprocess.Popen([BINARY, "owner", "--socket", self.address])

    def server(self, *flags, **fields):
        return Server("--owner-socket", self.address, *FLAGS, *flags, **fields)

    def inspect(self, *flags):
        return subprocess.run([BINARY, "inspect", "--owner-socket", self.address, *flags], capture_output=True, text=True,
                              timeout=10)

    def state(self):
        run = self.inspect("--json")
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(5)


@pytest.fixture
def owner():
    with Owner() as running:
        yield running


def complete(server, prompt=PROMPT, max_tokens=12, timeout=30):
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.7, "seed": 5, "logprobs": 1, "ignore_eos": True}
    reply = server.post("/v1/completions", body, timeout=timeout)
    assert reply.status_code == 200, reply.text
    reply = reply.json()
    choice = reply["choices"][0]
    return ((choice["text"], choice["logprobs"]["token_logprobs"]),
            reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def stream_until_cut(server, seed):
    """Streams an answer to its end, or to the server's."""
    body = {"prompt": text(seed, 120), "max_tokens": 400, "temperature": 1, "ignore_eos": True, "stream": True}
    try:
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=10) as reply:
            return reply.status_code, "".join(reply.iter_text())
    except httpx.TransportError as error:
        return None, repr(error)


def refused(owner, *flags, model=MODEL):
    """The last words of a server that does not start."""
    run = subprocess.run([BINARY, "serve", "--model", model, "--port", "0", "--owner-socket", owner.address, *flags],
                         capture_output=True, text=True, timeout=20)
    assert run.returncode == 1, (run.returncode, run.stderr)
    return run.stderr


def test_a_killed_server_is_back_in_two_seconds_with_its_cache_and_no_weight_load(owner):
    with owner.server() as first:
        assert "loading weights" in first.read(first.log)
        want, cached = complete(first)
        assert cached == 0
        pids = first.pids()
        assert len(pids) == 3, "front end and two workers"
        first.kill()
    started = time.monotonic()
    with owner.server() as second:
        ready = time.monotonic() - started
        got, cached = complete(second)
        seconds = time.monotonic() - started
        print(f"ready after {ready:.2f} s, first answer after {seconds:.2f} s, {cached} tokens cached")
        assert seconds < 2
        assert got == want and cached > 900
        assert "loading weights" not in second.read(second.log)
        assert all(gone(pid) for pid in pids)
        assert second.stop() == 0, "a drained server leaves the owner alone"
    with owner.server("--placement", "fused") as third:
        got, cached = complete(third)
        assert got == want and cached > 900, "whatever the placement"
        assert third.stop() == 0
    assert owner.stop() == 0


def test_kills_under_load_lose_no_block_and_no_byte(owner):
    with contextlib.ExitStack() as servers, concurrent.futures.ThreadPoolExecutor(6) as clients:
        server = servers.enter_context(owner.server())
        want, _ = complete(server)
        for round_idx in range(5):
            streams = [clients.submit(stream_until_cut, server, f"{round_idx} {n}") for n in range(6)]
            wait_until(lambda: server.metric("tandem_num_requests_running") >= 3, what="running requests")
            time.sleep(0.1 * round_idx)
            server.kill()
            started = time.monotonic()
            server = servers.enter_context(owner.server())
            got, cached = complete(server)
            print(f"round {round_idx}: answered after {time.monotonic() - started:.2f} s, {cached} tokens cached")
            for stream in streams:
                status, told = stream.result(timeout=10)
                assert status in (None, 200), told
            assert got == want and cached > 900
            wait_until(server.idle, what="an idle server")
            blocks = owner.state()["blocks"]
            assert blocks["held"] == 0 and blocks["retiring"] == 0, blocks
            assert blocks["free"] + blocks["published"] == 1024
        state = owner.state()
        assert [lane["epoch"] for lane in state["lanes"]] == [6, 6], "the lives of a lane go on counting"
        channels = [region["name"] for region in state["regions"] if region["name"].startswith("channel.")]
        assert channels == ["channel.0.6", "channel.1.6"], "channels of earlier lives are dropped"
        assert server.stop() == 0


def test_a_second_server_is_refused_and_the_first_goes_on(owner):
    with owner.server() as server:
        want, _ = complete(server)
        with concurrent.futures.ThreadPoolExecutor(1) as clients:
            running = clients.submit(complete, server, "Once", 200)
            assert f"another server, pid {server.process.pid}, uses the owner" in refused(owner)
            running.result(timeout=30)
        assert complete(server)[0] == want
        assert server.stop() == 0


def test_memory_made_for_something_else_is_refused_with_both_values(owner, tmp_path):
    link = tmp_path / "link.gguf"
    link.symlink_to(MODEL)
    with owner.server() as server:
        want, _ = complete(server)
        server.kill()
    why = refused(owner, "--block-tokens", "32")
    assert "have 16 tokens, block-tokens is 32; leave it out to use what is there, or start another owner" in why
    assert "has 1024 blocks (16384 tokens), the size asked for is 512" in refused(owner, "--kv-cache-tokens", "8192")
    assert "are f16, kv-dtype is q8_0" in refused(owner, "--kv-dtype", "q8_0")
    # The same layout, size and time, other weights: a fine-tune that was unpacked from an archive.
    other = tmp_path / "other.gguf"
    shutil.copy2(MODEL, other)
    with open(other, "r+b") as file:
        file.seek(other.stat().st_size // 2)
        part = file.read(1 << 23)
        file.seek(other.stat().st_size // 2)
        file.write(bytes(reversed(part)))
    time_ns = os.stat(MODEL).st_mtime_ns
    os.utime(other, ns=(time_ns, time_ns))
    why = refused(owner, model=str(other))
    assert f"holds the weights of {MODEL}, the model asked for is {other}" in why
    # Nothing of this did any harm, and where the file lies does not matter. Sizes may be left out.
    with Server("--owner-socket", owner.address, model=str(link)) as server:
        got, cached = complete(server)
        assert got == want and cached > 900
        assert "loading weights" not in server.read(server.log)
        assert server.stop() == 0


def test_what_is_not_set_is_taken_over_from_the_memory_that_is_there(owner, tmp_path):
    made = ("--block-tokens", "32", "--kv-dtype", "q8_0")
    with owner.server(*made) as server:
        want, _ = complete(server)
        assert server.stop() == 0
    told = "512 KV blocks of 32 tokens in q8_0"
    size = 512 * owner.state()["pool"]["block_bytes"] / (1 << 30)
    file = tmp_path / "tandem.yaml"
    file.write_text("block-tokens: auto\nkv-dtype: auto\nkv-cache-tokens: auto\n")
    # Nothing, each of them, all of them, and a size in other words: in tokens that fill half a block, in GiB.
    for flags in ([], ["--config", str(file)], ["--block-tokens", "32"], ["--kv-dtype", "q8_0"], [*made, *FLAGS],
                  ["--kv-cache-tokens", "16370"], ["--kv-cache-gib", f"{size + 1e-7:.9f}"]):
        with Server("--owner-socket", owner.address, *flags) as server:
            assert told in server.read(server.log), server.read(server.log)
            got, cached = complete(server)
            assert got == want and cached > 900, flags
            assert server.stop() == 0
    file.write_text("block-tokens: 16\n")
    assert "have 32 tokens, block-tokens is 16" in refused(owner, "--config", str(file))
    assert "have 32 tokens, block-tokens is 16" in refused(owner, "--block-tokens", "16")
    assert "are q8_0, kv-dtype is f16" in refused(owner, "--kv-dtype", "f16")
    for flags in (["--kv-cache-tokens", "16320"], ["--kv-cache-gib", "0.05"]):
        assert "has 512 blocks (16384 tokens), the size asked for is " in refused(owner, *flags)


def test_the_owners_death_ends_the_instance_with_errors(owner):
    with owner.server() as server, concurrent.futures.ThreadPoolExecutor(4) as clients:
        pids = server.pids()
        streams = [clients.submit(stream_until_cut, server, n) for n in range(4)]
        wait_until(lambda: server.metric("tandem_num_requests_running") > 0, what="running requests")
        owner.process.kill()
        killed = time.monotonic()
        assert server.process.wait(10) != 0
        seconds = time.monotonic() - killed
        for stream in streams:
            status, told = stream.result(timeout=10)
            assert status is None or status >= 500 or "error" in told, (status, told[-300:])
        print(f"ended {seconds:.2f} s after the owner")
        assert seconds < 2
        assert time.monotonic() - killed < 2, "the clients know"
        wait_until(lambda: all(gone(pid) for pid in pids), what="every process gone")


def test_a_path_as_the_address_and_no_owner_there(tmp_path):
    path = str(tmp_path / "owner.sock")
    with Owner(path) as owner:
        with owner.server() as server:
            assert complete(server, "Once", 2)[1] == 0
            assert server.stop() == 0
        assert owner.stop() == 0
    assert not pathlib.Path(path).exists()
    why = refused(owner)
    assert "no owner answered at " + path in why
    assert owner.inspect().returncode == 1


def test_inspect_shows_the_memory(owner):
    wait_until(lambda: owner.inspect().returncode == 0, what="the owner")
    empty = owner.state()
    assert empty["server_pid"] is None and empty["pool"] is None and empty["regions"] == [] and empty["use"] is None
    with owner.server() as server:
        complete(server)
        wait_until(server.idle, what="an idle server")
        state = owner.state()
        assert state["server_pid"] == server.process.pid
        assert [(w["lane"], w["epoch"], w["pid"]) for w in state["workers"]] == [
            (0, 1, server.worker(0)), (1, 1, server.worker(1))]
        assert state["pool"] | {"model": ""} == {"model": "", "kv_dtype": "f16", "block_tokens": 16,
                                                 "block_bytes": 368640, "num_blocks": 1024}
        blocks = state["blocks"]
        assert sum(blocks.values()) == 1024 and blocks["published"] >= 60 and blocks["held"] == 0
        runs = state["fragmentation"]
        assert 1 <= runs["num_free_runs"] <= 3 and 800 < runs["longest_free_run"] <= blocks["free"]
        regions = {r["name"]: r for r in state["regions"]}
        assert {"record", "control", "ledger", "kv", "prefix", "weights"} <= set(regions)
        assert regions["weights"]["state"] == "sealed" and regions["kv"]["bytes"] == 1024 * 368640
        for lane in state["lanes"]:
            assert lane["issued_step"] == lane["completed_step"] > 0
        told = owner.inspect().stdout
        for part in (f"server pid {server.process.pid}", "published", "free runs", "weights", "sealed"):
            assert part in told, told
        assert server.stop() == 0
    assert owner.state()["server_pid"] is None


def reader(server, seed):
    """Has a long new prompt read, in a thread."""
    thread = threading.Thread(target=complete, args=(server, text(f"read {seed}", 2500), 1))
    thread.start()
    return thread


def test_inspect_shows_who_uses_the_blocks_and_what_the_prefix_cache_saved(owner):
    with owner.server() as server, concurrent.futures.ThreadPoolExecutor(1) as clients:
        for _ in range(2):
            complete(server)
        wait_until(server.idle, what="an idle server")
        state = owner.state()
        use = state["use"]
        none = {"sequences": 0, "blocks": 0}
        assert use["prefill"] == none and use["decode"] == none and use["waiting_sequences"] == 0
        assert use["evictable_blocks"] == state["blocks"]["published"] >= 60
        assert use["prefix_tokens_asked"] == server.metric("tandem_prefix_cache_queries_total") >= 2000
        assert use["prefix_tokens_hit"] == server.metric("tandem_prefix_cache_hits_total") > 900
        told = owner.inspect().stdout
        for part in ("prefill", "decode", "waiting", "evictable",
                     f"{use['prefix_tokens_hit']} of {use['prefix_tokens_asked']} prompt tokens"):
            assert part in told, told

        running = clients.submit(complete, server, max_tokens=400)
        wait_until(lambda: owner.state()["use"]["decode"]["sequences"] == 1, what="a generating sequence")
        use = owner.state()["use"]
        if not running.done():
            assert use["decode"]["blocks"] >= 60 > use["evictable_blocks"], use
        running.result(timeout=30)
        server.kill()
    wait_until(lambda: owner.state()["server_pid"] is None, what="the server's end")
    assert owner.state()["use"] is None, "nobody's numbers are not shown"
    with owner.server() as server:
        use = owner.state()["use"]
        assert use["prefix_tokens_asked"] == use["prefix_tokens_hit"] == 0, "since the start of this server"
        assert use["evictable_blocks"] >= 60
        # A long prompt with nothing cached is seen being read, if one looks at the right moment.
        seen, rounds = 0, 0
        while not seen and rounds < 20:
            running = reader(server, rounds)
            while running.is_alive():
                seen = max(seen, owner.state()["use"]["prefill"]["blocks"])
            rounds += 1
        assert seen >= 100, (seen, rounds)
        assert server.stop() == 0
