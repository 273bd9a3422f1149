"""Starts real `tandem serve` instances on loopback for the end-to-end tests.

Environment: TANDEM_BINARY (the built binary) and TANDEM_TEST_MODEL (the default model's file).
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import httpx
import pytest

BINARY = os.environ["TANDEM_BINARY"]
MODEL = os.environ["TANDEM_TEST_MODEL"]
DATA = pathlib.Path(__file__).resolve().parent.parent / "data"


def children(pid):
    """The pids of a process' direct children."""
    try:
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + [
            int(p)
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            if task.name != str(pid)
            for p in (task / "children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except FileNotFoundError:
        return []


def gone(pid):
    """True once a process has ended (a zombie that nobody reaps counts)."""
    try:
        return "\nState:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def wait_until(condition, seconds=20.0, what="a condition"):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"{what} did not hold within {seconds} s")


class Server:
    """One instance. Prints its log when a test fails, through pytest's captured output."""

    def __init__(self, *flags, model=MODEL, grpc=False):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.out = tempfile.NamedTemporaryFile("w+", suffix=".out")
        command = [BINARY, "serve", "--model", model, "--port", "0", *flags]
        if grpc:
            command += ["--grpc-port", "0"]
        self.process = subprocess.Popen(command, stdout=self.out, stderr=self.log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = re.search(r" on http://127\.0\.0\.1:(\d+)", self.read(self.out))
            if found:
                self.port = int(found.group(1))
                break
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended with {self.process.returncode}: {self.read(self.log)}")
            time.sleep(0.02)
        else:
            self.kill()
            raise AssertionError(f"serve did not start: {self.read(self.log)}")
        found = re.search(r"gRPC listens on 127\.0\.0\.1:(\d+)", self.read(self.log))
        self.grpc_port = int(found.group(1)) if found else None
        self.url = f"http://127.0.0.1:{self.port}"

    @staticmethod
    def read(file):
        return pathlib.Path(file.name).read_text(errors="replace")

    def worker(self, lane):
        """The pid of a lane's present worker, or None."""
        for pid in children(self.process.pid):
            line = command_line(pid)
            if "worker" in line and line[line.index("--lane") + 1] == str(lane) and not gone(pid):
                return pid
        return None

    def owner(self):
        for pid in children(self.process.pid):
            if command_line(pid)[1:2] == ["owner"]:
                return pid
        return None

    def pids(self):
        return [self.process.pid, *children(self.process.pid)]

    def post(self, path, body, timeout=60.0):
        return httpx.post(self.url + path, json=body, timeout=timeout)

    def metric(self, name):
        """The sum of a metric's series."""
        text = httpx.get(self.url + "/metrics", timeout=10).text
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        assert values, f"no metric {name}"
        return sum(float(v) for v in values)

    def idle(self):
        return self.metric("tandem_num_requests_running") == 0 and self.metric("tandem_kv_cache_usage_ratio") == 0

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self.process.returncode

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(self.read(self.out), self.read(self.log))
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture(scope="module")
def server():
    with Server(grpc=True) as running:
        yield running
        assert running.stop() == 0, "a drained server exits with 0"


def score(cases, *flags, model=MODEL):
    """Runs `tandem score` over a list of case objects."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "in.jsonl"
        target = pathlib.Path(folder) / "out.jsonl"
        source.write_text("".join(json.dumps(case) + "\n" for case in cases))
        run = subprocess.run(
            [BINARY, "score", "--model", model, "--input", source, "--output", target, *flags],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert run.returncode == 0, run.stderr
        return [json.loads(line) for line in target.read_text().splitlines()]
