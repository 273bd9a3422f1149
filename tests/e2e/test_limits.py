"""A server under its machine's limits: few descriptors, addresses of both families, names that end in a slash.
"""
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BINARY, DATA, MODEL, Server, wait_until

POOL = ("--kv-cache-tokens", "4096")
TINY = DATA / "models" / "tiny-llama"
IDLE = 1200


def descriptors(soft, hard):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def many_files():
    """This process may hold its own ends of the connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 3000:
        pytest.skip(f"a hard limit of {before[1]} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 3000), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def ask(connection, path="/health"):
    """The status of a reply on this connection; None: it was closed."""
    try:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        head = connection.recv(65536)
    except OSError:
        return None
    return int(head.split()[1]) if head else None


class Stream:
    """A stream in a thread of its own."""

    def __init__(self, server, connection=None):
        self.lines, self.ended = [], False
        self.connection = connection or connect(server)
        body = json.dumps({"prompt": "Count: one,", "max_tokens": 3000, "temperature": 0,
                           "ignore_eos": True, "stream": True})
        self.connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                                f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        self.connection.settimeout(None)
        while chunk := self.connection.recv(65536):
            self.lines += chunk.split(b"data: ")[1:]
        self.ended = True

    def goes_on(self):
        seen = len(self.lines)
        wait_until(lambda: len(self.lines) > seen, 30, "more of the stream")
        assert not self.ended and not any(line.startswith(b'{"error"') for line in self.lines)


def test_silent_connections_leave_room_for_health_and_recovery(many_files):
    with Server(*POOL, preexec_fn=descriptors(1024, 1024)) as server:
        early = connect(server)
        stream = Stream(server)
        began = time.monotonic()
        idle = [connect(server) for _ in range(IDLE)]
        stream.goes_on()
        for _ in range(5):  # on new connections
            asked = time.monotonic()
            assert httpx.get(server.url + "/health", timeout=10).status_code == 200
            print(f"health after {time.monotonic() - asked:.3f} s")
        reply = server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2})
        if time.monotonic() - began < 4:  # later the longest idle ones make room
            assert reply.status_code == 503 and reply.headers["retry-after"] == "1", reply.text
            assert ask(early) == 200, "connections within the limit stay"
        for lane in (0, 1):
            victim = server.worker(lane)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: server.worker(lane) not in (None, victim), 30, "a new worker")
        wait_until(lambda: httpx.get(server.url + "/ready", timeout=10).status_code == 200, 30, "readiness")
        stream.goes_on()

        # In time the idle ones make room: whoever comes is served.
        def served():
            return server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2}).status_code == 200

        wait_until(served, 30, "room for a request")
        changed = server.post("/v1/admin/placement", {"replace": ["prefill", "decode"]}, timeout=60)
        assert changed.status_code == 200, changed.text
        stream.goes_on()
        log = server.read(server.log)
        assert len([line for line in log.splitlines() if "http:" in line]) <= 4, log
        assert re.search(r"at most \d+ HTTP connections; 1024 open files are allowed", log)
        del idle


def test_the_limit_of_descriptors_is_raised_where_it_may_be(many_files):
    with Server(*POOL, preexec_fn=descriptors(256, 3000)) as server:
        idle = [connect(server) for _ in range(IDLE)]
        assert all(ask(connection) == 200 for connection in idle[::100]), "all are connections like any other"
        assert server.metric("tandem_http_connections") > IDLE
        assert "at most 8192" not in server.read(server.log)


def test_a_limit_that_is_too_low_is_said():
    run = subprocess.run([BINARY, "serve", "--model", MODEL, "--port", "0", *POOL], capture_output=True, text=True,
                         timeout=60, preexec_fn=descriptors(120, 120))
    assert run.returncode == 1
    assert "raise it (ulimit -n)" in run.stderr


def test_asked_connections_are_the_limit():
    with Server(*POOL, "--max-connections", "8") as server:
        held = [connect(server) for _ in range(8)]
        assert [ask(connection) for connection in held] == [200] * 8
        assert httpx.get(server.url + "/health").status_code == 200
        assert httpx.get(server.url + "/v1/models").status_code == 503
        assert "at most 8 HTTP connections" in server.read(server.log)


def test_slow_uploads_have_one_bound():
    with Server(*POOL, "--max-pending-body-bytes", "1000000", "--max-body-bytes", "1000000") as server:
        uploads = []
        for _ in range(4):
            uploads.append(connect(server))
            uploads[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n" + b" " * 400_000)
        replies = [connection.recv(65536) for connection in uploads[2:]]
        assert all(b" 503 " in reply and b"Retry-After" in reply and b"1000000 bytes" in reply for reply in replies)
        assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2}).status_code == 200
        del uploads
        wait_until(lambda: server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "user": "u" * 900_000})
                   .status_code == 200, what="room for a large body")


# ---- addresses


def reached(address, port):
    """Whether /health answers there."""
    url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    try:
        return httpx.get(url + "/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


@needs_ipv6
@pytest.mark.parametrize("host, served", (("::", "both"), ("::1", "::1"), ("[::1]", "::1"), ("0.0.0.0", "127.0.0.1"),
                                          ("127.0.0.1", "127.0.0.1")))
def test_addresses_are_served_as_given(host, served):
    with Server("--host", host, *POOL, model=TINY) as server:
        assert [a for a in ("127.0.0.1", "::1") if reached(a, server.port)] == \
            (["127.0.0.1", "::1"] if served == "both" else [served])
        bare = host.strip("[]")
        assert f"HTTP listens on {f'[{bare}]' if ':' in bare else bare}:{server.port}" in server.read(server.log)


@needs_ipv6
@pytest.mark.parametrize("names", ("127.0.0.1 localhost\n::1 localhost\n", "::1 localhost\n127.0.0.1 localhost\n"))
def test_a_name_is_served_on_each_of_its_addresses(names, tmp_path):
    """In a mount namespace with a names file of its own."""
    hosts = tmp_path / "hosts"
    hosts.write_text(names)
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
             f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*mount, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    log = open(tmp_path / "log", "w+")
    process = subprocess.Popen([*mount, BINARY, "serve", "--model", TINY, "--host", "localhost", "--port", "0", *POOL],
                               stdout=log, stderr=log)
    try:
        wait_until(lambda: "tandem serves" in Server.read(log) or process.poll() is not None, 30, "the start")
        port = re.search(r"http://localhost:(\d+)", Server.read(log)).group(1)
        assert reached("127.0.0.1", port) and reached("::1", port), Server.read(log)
        assert f"HTTP listens on 127.0.0.1:{port}" in Server.read(log)
        assert f"HTTP listens on [::1]:{port}" in Server.read(log)
        # A port that is taken on one of the addresses is taken.
        with socket.socket(socket.AF_INET6) as other:
            other.bind(("::1", 0))
            other.listen()
            run = subprocess.run([*mount, BINARY, "serve", "--model", TINY, "--host", "localhost", "--port",
                                  str(other.getsockname()[1]), *POOL], capture_output=True, text=True, timeout=60)
            assert run.returncode == 1 and "cannot listen on [::1]" in run.stderr, run.stderr
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("host", ("/tmp/socket", "no.such.host.invalid", "300.1.1.1", "203.0.113.7"))
def test_what_cannot_be_listened_on_is_refused_by_name(host):
    run = subprocess.run([BINARY, "serve", "--model", TINY, "--host", host, "--port", "0", *POOL], capture_output=True,
                         text=True, timeout=60)
    assert run.returncode == 1
    assert "cannot listen on" in run.stderr and host in run.stderr


# ---- names


@pytest.mark.parametrize("end", ("", "/", "//", "/."))
def test_a_model_folder_gives_its_name_in_any_form(end):
    with Server(*POOL, model=str(TINY) + end) as server:
        assert [m["id"] for m in httpx.get(server.url + "/v1/models").json()["data"]] == ["tiny-llama"]
        assert httpx.get(server.url + "/v1/models/tiny-llama").status_code == 200
        reply = server.post("/v1/completions", {"model": "tiny-llama", "prompt": "Hi", "max_tokens": 1})
        assert reply.status_code == 200 and reply.json()["model"] == "tiny-llama"


def test_the_log_says_what_the_machine_allows():
    with Server(*POOL, model=TINY) as server:
        line = next(line for line in server.read(server.log).splitlines() if "GiB of memory available" in line)
        assert re.search(r"\d+ cores, (a quota of \d+(\.\d+)?|no quota was found): \d+ threads; \d+\.\d\d GiB of memory "
                         r"available, (a limit of \d+\.\d\d GiB|no limit was found)", line), line
