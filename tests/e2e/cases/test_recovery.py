"""Processes that die, hang, or want what is not there: what clients see of it, and what is left afterwards."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time

import grpc
import httpx
import pytest

import conftest
from conftest import BINARY, Server, gone, wait_until

from .client import (CHAT, COMPLETE, HTTP, Raw, Stream, alive, background, chat, complete, get, good, metric, post, refused,
                     request_bytes, text, user)
from .models import TINY, Gguf, tiny_model
from .registry import case, reported_body

STORY = {"messages": user("Write a long story."), "temperature": 0, "ignore_eos": True}
GREEDY = {"prompt": [5, 6, 7, 100, 200, 300], "max_tokens": 24, "temperature": 0, "logprobs": 1}


class Listener:
    """A client with an open stream: `wait(n)` until n events have come, `end()` for what the whole stream was."""

    def __init__(self, server, body, path=CHAT):
        self.raw, self.status = b"", None
        self.finished = background(self.run, server, path, body | {"stream": True})

    def run(self, server, path, body):
        try:
            with httpx.Client(trust_env=False, verify=False, timeout=60) as client:
                with client.stream("POST", server.url + path, json=body) as reply:
                    self.status = reply.status_code
                    for data in reply.iter_raw():
                        self.raw += data
        except httpx.TransportError as error:
            return error
        return None

    def wait(self, events=10):
        wait_until(lambda: self.raw.count(b"\n\n") >= events or self.finished.done(), 30, f"{events} events")
        return self

    def end(self, seconds=60):
        """What was read, and how the connection ended: None, or the error of a broken one."""
        broken = self.finished.result(timeout=seconds)
        return self.raw, broken

    def stream(self, seconds=60):
        raw, broken = self.end(seconds)
        assert self.status == 200 and broken is None, (self.status, broken, raw[-300:])
        return Stream(raw)


def ask(server, body, path=CHAT, timeout=30):
    """The status of a request, 503 for a refused connection, and its JSON."""
    try:
        with httpx.Client(trust_env=False, verify=False, timeout=timeout) as client:
            reply = client.post(server.url + path, json=body)
    except httpx.ConnectError:
        return 503, None
    return reply.status_code, reply.json()


def healthy(server):
    try:
        return httpx.get(server.url + "/health", timeout=5, trust_env=False).status_code
    except httpx.TransportError:
        return 503


@contextlib.contextmanager
def limited(monkeypatch, tmp_path, *commands):
    """Servers are started by a shell that runs these commands first."""
    wrapper = tmp_path / "wrapped-tandem"
    wrapper.write_text("\n".join(["#!/bin/bash", "set -e", *commands, f'exec {conftest.BINARY} "$@"', ""]))
    wrapper.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(conftest, "BINARY", str(wrapper))
        yield


def replaced(server, lane, kill=True):
    """Kills a lane's worker and waits for the next one."""
    victim = server.worker(lane)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: server.worker(lane) not in (None, victim), 20, "a new worker")


def both_serve(server):
    state = good(get(server, "/v1/admin/placement"))
    return all(lane["up"] for lane in state["lanes"])


@case("BC-109")
def test_an_engine_that_ends_in_mid_stream_ends_it_with_an_error():
    with Server() as server:
        body = STORY | {"max_tokens": 3000}
        streams = [Listener(server, body) for _ in range(3)]
        whole = background(ask, server, body)
        for each in streams:
            each.wait()
        os.kill(server.owner(), signal.SIGKILL)  # workers may die; without the memory nothing goes on
        killed = time.monotonic()
        for each in streams:
            events = each.stream(10)
            assert events.error and events.error["message"] and not events.done
            assert all(choice["finish_reason"] is None for choice in events.choices())
            assert not any(chunk.get("usage") for chunk in events.chunks)
        status, error = whole.result(timeout=10)
        assert status in (500, 503) and error["error"]["message"]
        assert time.monotonic() - killed < 10
        assert server.process.wait(10) > 0


@case("BC-109", slow=True)
def test_a_worker_that_ends_in_mid_stream_is_not_noticed():
    with Server() as server:
        body = STORY | {"max_tokens": 150}
        expected = text(chat(server, body))
        for lane in (0, 1):
            listener = Listener(server, body).wait()
            os.kill(server.worker(lane), signal.SIGKILL)
            events = listener.stream()
            assert events.done and events.text() == expected and events.reason() == "length"
        wait_until(lambda: both_serve(server), what="both lanes")
        assert server.stop() == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)], ids=["killed", "stopped"])
@case("BC-116")
def test_health_is_good_only_while_chats_are_answered(how):
    with Server(grpc=True) as server, grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        before = [server.worker(0), server.worker(1)]
        flying = [background(ask, server, STORY | {"max_tokens": 100}) for _ in range(4)]
        wait_until(lambda: metric(server, "num_requests_running") == 4, what="running requests")
        for victim in before:
            os.kill(victim, how)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            state = healthy(server)
            assert state in (200, 503)
            started = time.monotonic()
            status, reply = ask(server, {"messages": user("Hi"), "max_tokens": 1}, timeout=20)
            assert status in (200, 500, 503) and time.monotonic() - started < 10, "no hang"
            assert state == 503 or status == 200, reply
            time.sleep(0.2)
        for one in flying:
            assert one.result(timeout=20)[0] in (200, 500, 503)
        wait_until(lambda: all(server.worker(lane) not in (None, *before) for lane in (0, 1)), what="new workers")
        assert healthy(server) == 200 and check(b"", timeout=10) == b"\x08\x01"
        alive(server)
        assert server.stop() == 0


@case("BC-124")
def test_streams_end_well_after_sigterm():
    with Server() as server:
        listener = Listener(server, STORY | {"max_tokens": 300}).wait()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        if not listener.finished.done():
            assert healthy(server) == 503 and ask(server, {"messages": user("Hi")}, timeout=5)[0] == 503
        events = listener.stream()
        assert events.done and events.reason() == "length" and len([p for p in events.pieces() if p]) > 200
        assert server.process.wait(20) == 0


@case("BC-124")
def test_sigterm_to_a_worker_ends_no_stream():
    with Server() as server:
        expected = text(chat(server, STORY | {"max_tokens": 150}))
        listener = Listener(server, STORY | {"max_tokens": 150}).wait()
        os.kill(server.worker(1), signal.SIGTERM)
        events = listener.stream()
        assert events.done and events.text() == expected
        alive(server)
        assert server.stop() == 0


@case("BC-124")
def test_a_second_sigterm_ends_at_once_with_an_error_event():
    with Server() as server:
        listener = Listener(server, STORY | {"max_tokens": 6000}).wait()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        events = listener.stream(10)
        assert events.error and not events.done
        server.process.wait(10)
        assert time.monotonic() - started < 8


@pytest.mark.parametrize("grace", [60, 1])
@case("BC-125")
def test_requests_that_wait_get_the_grace_time(grace):
    shared = set(os.listdir("/dev/shm"))
    with Server("--max-running-sequences", "1", "--drain-grace-s", str(grace)) as server:
        pids = server.pids()
        body = STORY | {"max_tokens": 60 if grace == 60 else 1500}
        sent = [background(ask, server, body) for _ in range(6)]
        wait_until(lambda: metric(server, "num_requests_waiting") + metric(server, "num_requests_running") == 6,
                   what="one running and five queued")
        server.process.send_signal(signal.SIGTERM)
        answers = [each.result(timeout=60) for each in sent]
        statuses = [status for status, _ in answers]
        if grace == 60:
            assert statuses == [200] * 6
        else:
            assert set(statuses) <= {200, 503} and statuses.count(503) >= 4
            assert all(reply["error"]["message"] for status, reply in answers if status == 503)
        server.process.wait(20)
        wait_until(lambda: all(map(gone, pids)), what="every process gone")
    assert set(os.listdir("/dev/shm")) <= shared


@case("BC-136")
def test_killed_servers_leave_nothing_and_touch_nobody():
    shared = set(os.listdir("/dev/shm"))
    with Server(model=str(TINY)) as other:
        expected = complete(other, GREEDY)["choices"]
        for _ in range(4):
            with Server(model=str(TINY)) as server:
                assert complete(server, GREEDY)["choices"] == expected
                pids = server.pids()
                for pid in reversed(pids):
                    os.kill(pid, signal.SIGKILL)
                server.process.wait(10)
                wait_until(lambda: all(map(gone, pids)), what="every process gone")
        with Server(model=str(TINY)) as server:  # the front end alone
            pids = server.pids()
            server.kill()
            wait_until(lambda: all(map(gone, pids)), what="every process gone")
        assert complete(other, GREEDY)["choices"] == expected
        assert other.stop() == 0
    assert set(os.listdir("/dev/shm")) == shared


@case("BC-136")
def test_memory_that_is_not_there_is_refused_at_start():
    for flags in (["--kv-cache-gib", "100000000"], ["--kv-cache-tokens", "999999999999"]):
        run = subprocess.run([BINARY, "serve", "--model", str(TINY), "--port", "0", *flags], capture_output=True, text=True,
                             timeout=30)
        assert run.returncode > 0, f"a refusal and no signal: {run.returncode} {run.stderr}"
        assert "kv-cache" in run.stderr or "memory" in run.stderr, run.stderr


@case("BC-137")
def test_streams_outlive_workers_and_tell_of_a_dead_owner():
    with Server() as server:
        body = STORY | {"max_tokens": 150}
        expected = text(chat(server, body))
        for lane in (0, 1):
            listeners = [Listener(server, body).wait(3) for _ in range(3)]
            replaced(server, lane)
            assert [each.stream().text() for each in listeners] == [expected] * 3
        listener = Listener(server, body | {"max_tokens": 3000}).wait()
        pids = server.pids()
        os.kill(server.owner(), signal.SIGKILL)
        assert listener.stream(10).error
        server.process.wait(10)
        wait_until(lambda: all(map(gone, pids)), what="no process that waits for memory")


@case("BC-140")
def test_all_workers_gone_and_back():
    """There is no router; the front end is what keeps the clients while the workers are away."""
    with Server() as server:
        body = STORY | {"max_tokens": 60}
        expected = text(chat(server, body))
        listeners = [Listener(server, body) for _ in range(20)]
        listeners[0].wait(5)
        before = [server.worker(0), server.worker(1)]
        for victim in before:
            os.kill(victim, signal.SIGKILL)
        for _ in range(5):
            status, reply = ask(server, body)
            assert status == 503 or (status == 200 and text(reply) == expected)
        for listener in listeners:
            events = listener.stream()
            assert expected.startswith(events.text()) and (events.done or events.error), "and no replay"
            assert not events.done or events.text() == expected
        wait_until(lambda: all(server.worker(lane) not in (None, *before) for lane in (0, 1)), what="new workers")
        assert text(chat(server, body)) == expected
        assert server.stop() == 0


# ---- what a replacement needs

def silent_connections(server, count):
    """Clients that connect and send nothing. The server may refuse or close some of them."""
    connections = []
    for _ in range(count):
        try:
            connections.append(Raw(server, timeout=5))
        except OSError:
            break
    return connections


@case("BC-157")
def test_silent_connections_stop_neither_clients_nor_recovery(monkeypatch, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this machine lets no client open 1,200 connections")
    with contextlib.ExitStack() as stack, limited(monkeypatch, tmp_path, "ulimit -n 1024"), Server() as server:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        administrator = stack.enter_context(Raw(server, timeout=40))
        administrator.send(request_bytes("/health", method="GET")).reply()
        body = STORY | {"max_tokens": 300}
        expected = text(chat(server, body))
        listener = Listener(server, body).wait(3)
        for connection in silent_connections(server, 1200):
            stack.enter_context(connection)
        started = time.monotonic()
        with Raw(server, timeout=5) as probe:
            probe.send(request_bytes("/health", method="GET"))
            assert probe.reply().status_code in (200, 503) and time.monotonic() - started < 5
        before = [server.worker(0), server.worker(1)]
        os.kill(before[1], signal.SIGKILL)
        assert listener.stream().text() == expected
        wait_until(lambda: server.worker(1) not in (None, before[1]), 20, "a new worker beside 1,200 connections")
        administrator.send(request_bytes("/v1/admin/placement", {"replace": ["prefill"]}))
        assert administrator.reply().status_code in (200, 503)
        assert server.process.poll() is None
        log = server.read(server.log)
        assert len(log.splitlines()) < 40, "a few lines, not one for each attempt"
        stack.close()
        wait_until(lambda: healthy(server) == 200, what="health")
        assert text(chat(server, body)) == expected
        assert server.stop() == 0


@case("BC-157")
def test_the_soft_limit_of_descriptors_is_raised(monkeypatch, tmp_path):
    with limited(monkeypatch, tmp_path, "ulimit -Sn 256"), Server(model=str(TINY)) as server:
        limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
        soft, hard = next(line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files"))
        assert int(soft) > 256, (soft, hard)
        assert server.stop() == 0


@pytest.fixture
def readable_folder():
    """A folder that another user may read; pytest's own are private."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


@case("BC-175")
def test_a_worker_that_cannot_be_forked_is_tried_again(monkeypatch, readable_folder):
    """RLIMIT_NPROC binds no administrator, so the server runs as somebody else if the test runs as root."""
    somebody = ["setpriv", "--reuid=54321", "--clear-groups"] if os.getuid() == 0 else []
    shutil.copy(BINARY, readable_folder / "tandem")
    model = tiny_model(readable_folder / "model")
    run = f'exec {" ".join(somebody)} {readable_folder / "tandem"} "$@"'
    with limited(monkeypatch, readable_folder, "cd /", run), Server(model=model) as server:
        def limit(soft):
            subprocess.run([*somebody, "prlimit", f"--pid={server.process.pid}", f"--nproc={soft}:"], check=True)

        expected = complete(server, GREEDY)["choices"]
        soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        limit(1)
        victim = server.worker(1)
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 1.2
        while time.monotonic() < deadline:
            assert complete(server, GREEDY)["choices"] == expected, "the other lane serves"
            assert server.process.poll() is None
            time.sleep(0.1)
        assert server.worker(1) is None, "the limit holds"
        state = good(get(server, "/v1/admin/placement"))
        assert [lane["up"] for lane in state["lanes"]] == [True, False], "the missing lane is shown"
        limit(soft if soft >= 0 else "unlimited")
        wait_until(lambda: server.worker(1) is not None and both_serve(server), 30, "the worker's return")
        assert complete(server, GREEDY)["choices"] == expected
        assert server.stop() == 0


@pytest.mark.parametrize("form", ["gguf", pytest.param("folder", marks=pytest.mark.slow)])
@case("BC-178")
def test_a_model_file_that_is_gone_is_not_needed(tmp_path, form):
    if form == "gguf":
        model = Gguf().write(tmp_path / "model.gguf")
    else:
        model = tiny_model(tmp_path / "model")
    away = tmp_path / "elsewhere"
    with Server(model=model) as server:
        expected = complete(server, GREEDY)["choices"]
        os.rename(model, away)
        assert complete(server, GREEDY)["choices"] == expected
        for lane in (1, 0):
            victim = server.worker(lane)
            os.kill(victim, signal.SIGKILL)
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                assert complete(server, GREEDY)["choices"] == expected
                time.sleep(0.05)
            assert server.process.poll() is None, "the server does not end for a file"
        os.rename(away, model)
        wait_until(lambda: both_serve(server), 30, "both workers")
        assert complete(server, GREEDY)["choices"] == expected
        assert server.stop() == 0


@pytest.mark.parametrize("key, value", [("rope_theta", 500.0), ("rms_norm_eps", 0.5)])
@case("BC-179")
def test_settings_that_change_on_disk_change_no_answer(tmp_path, key, value):
    model = pathlib.Path(tiny_model(tmp_path / "model"))
    with Server("--prefix-cache=false", model=str(model)) as server:
        # The prompt is long enough for another theta to show.
        body = GREEDY | {"prompt": [5, 6, 7, 100, 200, 300] * 10}
        expected = complete(server, body)["choices"]
        config = json.loads((model / "config.json").read_text())
        if key == "rope_theta":
            config["rope_parameters"]["rope_theta"] = value
        else:
            config[key] = value
        (model / "config.json").write_text(json.dumps(config))

        def unchanged():
            status, reply = ask(server, body, COMPLETE)
            if status == 200:
                assert reply["choices"] == expected, "new settings over old weights"
            else:
                assert status == 503 and "config.json" in reply["error"]["message"], reply

        for lane in (0, 1):
            victim = server.worker(lane)
            os.kill(victim, signal.SIGKILL)
            unchanged()
            wait_until(lambda: server.worker(lane) not in (None, victim), 20, "a new worker")
            wait_until(lambda: both_serve(server), 20, "both lanes")
            unchanged()
        reply = post(server, "/v1/admin/placement", {"replace": ["prefill", "decode"]})
        assert reply.status_code == 200 or "config.json" in refused(reply, status=reply.status_code)
        unchanged()
        with Server("--prefix-cache=false", model=str(model)) as changed:
            assert complete(changed, body)["choices"] != expected, "the change would show"
            assert changed.stop() == 0
        assert server.stop() == 0
