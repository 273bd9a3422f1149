"""kill -9 of every process, alone and together, under load: nothing hangs, nothing is left behind."""
import concurrent.futures
import contextlib
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BINARY, MODEL, Server, children, command_line, gone, wait_until

LONG = {"prompt": "Once upon a time", "max_tokens": 150, "temperature": 0, "ignore_eos": True}


def complete(server, body=None, timeout=60):
    """The reply's status and text; a refused connection counts as 503."""
    try:
        reply = server.post("/v1/completions", body or LONG, timeout=timeout)
    except httpx.TransportError as error:
        return 503, repr(error)
    return reply.status_code, reply.json()["choices"][0]["text"] if reply.status_code == 200 else reply.text


def sockets(pid):
    """The inodes of a process' sockets."""
    links = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) > 2)
    return {link for link in links if link.startswith("socket:")}


class HealthPoller:
    """Asks /health all the time, in a thread, and remembers what it got."""

    def __init__(self, server):
        self.server, self.answers, self.stop = server, [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            started = time.monotonic()
            try:
                status = httpx.get(self.server.url + "/health", timeout=5).status_code
            except httpx.HTTPError as error:
                status = repr(error)
            self.answers.append((status, time.monotonic() - started))
            time.sleep(0.02)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


@pytest.mark.parametrize("lane", [0, 1], ids=["prefill", "decode"])
def test_a_killed_worker_is_replaced_and_requests_go_on(lane):
    with Server() as server:
        expected = complete(server)
        assert expected[0] == 200
        with HealthPoller(server) as health, concurrent.futures.ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                running = [pool.submit(complete, server) for _ in range(8)]
                wait_until(lambda: server.metric("tandem_num_requests_running") > 0, what="running requests")
                victim = server.worker(lane)
                os.kill(victim, signal.SIGKILL)
                for reply in running:
                    assert reply.result(timeout=60) == expected, "KV survived, so the answer is whole and the same"
                wait_until(lambda: server.worker(lane) not in (None, victim), what="a new worker")
        for pid in children(server.process.pid):
            shared = sockets(pid) & sockets(server.process.pid)
            assert not shared, f"a child holds the server's sockets: {command_line(pid)}"
        assert {status for status, _ in health.answers} == {200}
        assert max(seconds for _, seconds in health.answers) < 2
        assert complete(server) == expected
        wait_until(server.idle, what="an idle server")
        assert server.stop() == 0


@pytest.mark.parametrize("lane", [0, 1], ids=["prefill", "decode"])
def test_a_stopped_worker_is_replaced_at_once(lane, capsys):
    with Server() as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        expected = complete(server)
        running = [pool.submit(complete, server) for _ in range(4)]
        wait_until(lambda: server.metric("tandem_num_requests_running") > 0, what="running requests")
        victim = server.worker(lane)
        os.kill(victim, signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: server.worker(lane) not in (None, victim), 6, "a new worker, before a heartbeat is missed")
        seconds = time.monotonic() - stopped
        for reply in running:
            assert reply.result(timeout=20) == expected
        assert f"worker {lane}, pid {victim}, is stopped" in server.read(server.log)
        assert "it hangs in a step" not in server.read(server.log)
        with capsys.disabled():
            print(f"\nlane {lane}: a new worker {seconds:.2f} s after the old one was stopped")
        assert server.stop() == 0


def test_workers_stopped_for_a_moment_live():
    with Server() as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        expected = complete(server)
        running = [pool.submit(complete, server) for _ in range(4)]
        before = [server.worker(lane) for lane in (0, 1)]
        for _ in range(10):  # more of it in all than a worker may take at a time
            for pid in before:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(0.1)
            for pid in before:
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.12)
        for reply in running:
            assert reply.result(timeout=60) == expected
        assert [server.worker(lane) for lane in (0, 1)] == before
        assert "is stopped" not in server.read(server.log)
        assert server.stop() == 0


def test_a_pause_of_the_whole_instance_is_nobodys_hang():
    """As `docker pause` does, or a machine that is suspended: longer than a worker may be silent."""
    with Server() as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        expected = complete(server)
        before = [server.worker(lane) for lane in (0, 1)]
        running = [pool.submit(complete, server) for _ in range(4)]
        wait_until(lambda: server.metric("tandem_num_requests_running") > 0, what="running requests")
        paused = server.pids()
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(10)
        for pid in paused:  # the front end first: it looks at workers that still stand
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.05)
        for reply in running:
            assert reply.result(timeout=60) == expected
        assert [server.worker(lane) for lane in (0, 1)] == before
        told = server.read(server.log)
        assert "it hangs in a step" not in told and "is stopped" not in told
        assert server.stop() == 0


def make_hang(pid):
    """Lets a process' first thread turn on the spot from its next instruction on, as a debugger would: nothing about the
    process looks wrong but that it gets nothing done. x86-64."""
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes, trace.restype = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long
    peek, poke, get_registers, seize, interrupt, detach = 1, 4, 12, 0x4206, 0x4207, 17
    registers = (ctypes.c_ulonglong * 27)()

    def call(request, address=None, data=None):
        ctypes.set_errno(0)
        result = trace(request, pid, address, data)
        assert ctypes.get_errno() == 0, os.strerror(ctypes.get_errno())
        return result

    call(seize)
    call(interrupt)
    assert os.waitpid(pid, 0x40000000)[0] == pid  # __WALL: it is no child of ours
    call(get_registers, None, ctypes.addressof(registers))
    rip = registers[16]
    jump_to_itself = call(peek, rip) & ~0xFFFF | 0xFEEB
    call(poke, rip, jump_to_itself & (1 << 64) - 1)
    call(detach)


@pytest.mark.parametrize("lane", [0, 1], ids=["prefill", "decode"])
def test_a_worker_that_hangs_is_replaced_within_seconds(lane):
    with Server() as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        expected = complete(server)
        victim = server.worker(lane)
        make_hang(victim)
        running = [pool.submit(complete, server) for _ in range(4)]
        for reply in running:
            assert reply.result(timeout=55) == expected
        wait_until(lambda: gone(victim), 5, "the hung worker's end")
        told = server.read(server.log)
        assert f"lane {lane} is given up: it hangs in a step" in told and "is stopped" not in told
        assert server.stop() == 0


def test_both_workers_killed_at_once():
    with Server() as server:
        expected = complete(server)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            running = [pool.submit(complete, server) for _ in range(4)]
            wait_until(lambda: server.metric("tandem_num_requests_running") > 0, what="running requests")
            for lane in (0, 1):
                os.kill(server.worker(lane), signal.SIGKILL)
            for reply in running:
                assert reply.result(timeout=60) == expected
        assert server.stop() == 0


def test_the_owners_death_ends_the_instance_with_errors():
    with Server() as server:
        pids = server.pids()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            running = [pool.submit(complete, server) for _ in range(4)]
            wait_until(lambda: server.metric("tandem_num_requests_running") == 4, what="running requests")
            os.kill(server.owner(), signal.SIGKILL)
            killed = time.monotonic()
            for reply in running:
                status, text = reply.result(timeout=10)
                assert status == 200 or "the memory owner ended" in text, (status, text)
        assert server.process.wait(10) != 0
        assert time.monotonic() - killed < 5
        wait_until(lambda: all(gone(pid) for pid in pids), what="every process gone")


@contextlib.contextmanager
def stopped_process(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def healthy(server):
    return [httpx.get(server.url + path, timeout=5).status_code for path in ("/health", "/ready")] == [200, 200]


def told_of(server, pid):
    """What the log says of a stopped owner."""
    return len(re.findall(rf"owner, pid {pid}, is stopped.* `kill -CONT {pid}`", server.read(server.log)))


@pytest.mark.parametrize("attached", [False, True], ids=["own", "attached"])
def test_a_stopped_owner_holds_up_nothing_but_new_workers(attached):
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(4) as pool:
        flags, address = [], f"@tandem-faults-{os.getpid()}"
        if attached:
            process = stack.enter_context(subprocess.Popen([BINARY, "owner", "--socket", address]))
            stack.callback(process.kill)
            flags = ["--owner-socket", address]
        server = stack.enter_context(Server(*flags))
        owner = process.pid if attached else server.owner()
        expected = complete(server)
        assert server.metric("tandem_owner_up") == 1
        with stopped_process(owner):
            wait_until(lambda: told_of(server, owner), what="a warning")
            assert server.metric("tandem_owner_up") == 0 and healthy(server)
            assert complete(server) == expected, "requests do not need the owner"
            reply = server.post("/v1/admin/placement", {"replace": ["decode"]})
            assert reply.status_code == 503 and f"kill -CONT {owner}" in reply.json()["error"]["message"]
            # Every request goes on, in the other lane; then they wait for one.
            for lane in (1, 0):
                running = [pool.submit(complete, server) for _ in range(4)]
                wait_until(lambda: server.metric("tandem_num_requests_running") > 0, what="running requests")
                os.kill(server.worker(lane), signal.SIGKILL)
                wait_until(lambda: f"worker {lane} cannot be replaced yet: the memory owner, pid {owner}"
                           in server.read(server.log), what="the reason why no worker comes")
                if lane == 1:
                    assert all(reply.result(timeout=30) == expected for reply in running)
                assert healthy(server) and server.worker(lane) is None
        assert all(reply.result(timeout=30) == expected for reply in running)
        wait_until(lambda: server.metric("tandem_owner_up") == 1, what="the owner's return")
        wait_until(lambda: server.worker(0) and server.worker(1), what="both workers")
        assert server.post("/v1/admin/placement", {"replace": ["decode"]}).status_code == 200
        assert f"owner, pid {owner}, goes on" in server.read(server.log) and told_of(server, owner) <= 4
        wait_until(server.idle, what="an idle server")
        with stopped_process(owner):
            wait_until(lambda: server.metric("tandem_owner_up") == 0, what="the second stop")
            assert server.stop() == 0, "a server can end without its owner"
        assert attached or gone(owner)


def test_a_worker_that_dies_with_the_owner_just_stopped_stops_no_request():
    """Before the server can know of the stop."""
    with Server() as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        expected = complete(server)
        for lane in (0, 1):
            running = [pool.submit(complete, server) for _ in range(4)]
            wait_until(lambda: server.metric("tandem_num_requests_running") > 0, what="running requests")
            before = server.worker(lane)
            with stopped_process(server.owner()):
                os.kill(before, signal.SIGKILL)
                for reply in running:
                    assert reply.result(timeout=30) == expected
            wait_until(lambda: server.worker(lane) not in (None, before), what="a new worker")
        assert server.stop() == 0


def shared_memory_names():
    return {p.name for p in pathlib.Path("/dev/shm").iterdir()}


def test_nothing_is_left_after_killing_the_front_end():
    before = shared_memory_names()
    for _ in range(3):
        with Server() as server:
            assert complete(server)[0] == 200
            pids = server.pids()
            assert len(pids) == 4, "front end, owner and two workers"
            server.kill()
            wait_until(lambda: all(gone(pid) for pid in pids), 5, "every process gone")
    assert shared_memory_names() == before


def test_two_instances_do_not_touch_each_other():
    with Server() as one, Server() as other:
        expected = complete(other)
        one.kill()
        assert complete(other) == expected
        assert other.stop() == 0


def test_sigterm_lets_running_requests_end_and_refuses_new_ones():
    with Server() as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
        expected = complete(server)
        running = pool.submit(complete, server)
        wait_until(lambda: server.metric("tandem_num_requests_running") > 0, what="a running request")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        assert complete(server, timeout=5)[0] == 503
        assert running.result(timeout=60) == expected
        assert server.process.wait(20) == 0


def test_sigterm_to_the_whole_group_drains_too():
    """What a service manager sends: the children leave the decision to the front end."""
    with Server() as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
        expected = complete(server)
        running = pool.submit(complete, server)
        wait_until(lambda: server.metric("tandem_num_requests_running") > 0, what="a running request")
        for pid in server.pids():
            os.kill(pid, signal.SIGTERM)
        assert running.result(timeout=60) == expected
        assert server.process.wait(20) == 0
        assert "ended (" not in server.read(server.log)


def test_a_bad_model_gives_one_clear_line_and_exit_code_1(tmp_path):
    truncated = tmp_path / "cut.gguf"
    truncated.write_bytes(pathlib.Path(MODEL).read_bytes()[:100_000])
    for path in (truncated, tmp_path / "missing.gguf"):
        run = subprocess.run([BINARY, "serve", "--model", path, "--port", "0"], capture_output=True, text=True, timeout=20)
        assert run.returncode == 1
        assert path.name in run.stderr and "terminate" not in run.stderr


@pytest.mark.parametrize("flags", [["--served-model-name", "name"], ["--admin-api-key", "key"], ["--api-keys", "key"],
                                   ["--cors-allow-origins", "*"], ["--port", "0"]], ids=lambda flags: flags[0])
def test_a_flag_takes_one_value_and_the_model_may_follow(flags):
    run = subprocess.run([BINARY, "serve", *flags, "missing.gguf"], capture_output=True, text=True, timeout=20)
    assert run.returncode == 1 and "missing.gguf" in run.stderr, "the model is not a second value of the flag"
    run = subprocess.run([BINARY, "serve", "--model", "other.gguf", *flags, "missing.gguf"], capture_output=True, text=True,
                         timeout=20)
    assert run.returncode == 2 and "two models" in run.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores, to take one away")
def test_workers_that_start_on_fewer_cores_serve_as_before():
    with Server() as server:
        before = complete(server)
        one_core = {min(os.sched_getaffinity(0))}
        for thread in os.listdir(f"/proc/{server.process.pid}/task"):
            os.sched_setaffinity(int(thread), one_core)
        for lane in (0, 1):
            victim = server.worker(lane)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: server.worker(lane) not in (None, victim), 20, "a new worker")
        wait_until(lambda: complete(server)[0] == 200, 20, "an answer")
        assert complete(server) == before
        assert server.stop() == 0
