"""Help for cases in which processes die: streams that are read beside them, servers that are started under limits."""
import contextlib
import os
import signal

import httpx

import conftest
from conftest import wait_until

from .client import CHAT, Stream, background, get, good, user

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
