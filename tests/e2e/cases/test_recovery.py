"""Processes that die, hang, or want what is not there: what clients see of it, and what is left afterwards."""
import os
import signal
import subprocess
import time

import grpc
import pytest

from conftest import BINARY, Server, gone, wait_until

from .client import alive, background, chat, complete, metric, text, user
from .models import TINY
from .processes import GREEDY, STORY, Listener, ask, both_serve, healthy, replaced
from .registry import case


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


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)],
                         ids=["killed", "stopped"])
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
        listener = Listener(server, STORY | {"max_tokens": 200}).wait()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        if not listener.finished.done():
            assert healthy(server) == 503 and ask(server, {"messages": user("Hi")}, timeout=5)[0] == 503
        events = listener.stream()
        assert events.done and events.reason() == "length" and len([p for p in events.pieces() if p]) > 150
        assert server.process.wait(20) == 0


@case("BC-124")
def test_sigterm_to_a_worker_ends_no_stream():
    with Server() as server:
        body = STORY | {"max_tokens": 100}
        expected = text(chat(server, body))
        listener = Listener(server, body).wait()
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
        body = STORY | {"max_tokens": 300 if grace == 60 else 1500}
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
        body = STORY | {"max_tokens": 100}
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
        body = STORY | {"max_tokens": 40}
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
