"""SIGTERM and SIGINT at any time of a command's run: it ends soon, with a line and an exit status, and leaves no process
behind. A server that was told to stop has not failed (0); what a signal cut off says so as shells do (128 + signal).
"""
import os
import random
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BINARY, MODEL, Server, children, gone, wait_until

BOUND = 6.0  # a second is promised; this machine may do much else
POOL = ("--kv-cache-tokens", "4096")


class Command:
    def __init__(self, *arguments, log):
        self.log = open(log, "w+")
        self.process = subprocess.Popen([BINARY, *map(str, arguments)], stdout=self.log, stderr=self.log)

    def told(self):
        return Server.read(self.log)

    def end(self, number):
        """Sends the signal; the exit status."""
        family = [self.process.pid, *children(self.process.pid)]
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(BOUND)
        print(f"ended with {status} after {time.monotonic() - began:.3f} s")
        wait_until(lambda: all(gone(pid) for pid in family), BOUND, "the end of every process")
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            print(self.told())
            self.process.kill()
            self.process.wait(10)


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT))
@pytest.mark.parametrize("name", ("serve", "generate", "score"))
def test_a_signal_ends_a_start_that_hangs(name, number, tmp_path):
    """It waits for an owner that takes connections and never answers."""
    address = f"@tandem-test-{os.getpid()}-{name}"
    (tmp_path / "in.jsonl").write_text('{"text": "Hi"}\n')
    arguments = {
        "serve": ("serve", "--model", MODEL, "--port", "0"),
        "generate": ("generate", "--model", MODEL, "--prompt", "Hi"),
        "score": ("score", "--model", MODEL, "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out"),
    }[name]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as owner:
        owner.bind(b"\0" + address[1:].encode())
        owner.listen(8)
        with Command(*arguments, "--owner-socket", address, log=tmp_path / "log") as command:
            owner.settimeout(20)
            connection, _ = owner.accept()
            assert command.end(number) == (0 if name == "serve" else 128 + number)
            assert f"{number.name} while loading the model" in command.told()
            connection.close()


def test_a_signal_ends_a_start_at_any_moment(tmp_path):
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for round_idx in range(8):
        with Command("serve", "--model", MODEL, "--port", "0", *POOL, log=tmp_path / f"log{round_idx}") as command:
            time.sleep(draw.uniform(0.05, 1.0))  # at 0 the program has not run yet, and ends as every program does
            assert command.end(signal.SIGTERM) == 0
            assert "SIGTERM while loading" in command.told() or "draining" in command.told()


def test_a_signal_ends_a_measurement(tmp_path):
    with Command("bench", "pool", "--repeat", "1000", log=tmp_path / "log") as command:
        wait_until(lambda: "processes" in command.told() and command.process.poll() is None, what="the first line")
        time.sleep(0.3)
        assert command.end(signal.SIGINT) == 130
        assert "SIGINT while measuring" in command.told()


def test_a_signal_ends_the_request_of_a_command(tmp_path):
    """Score goes on past an end token, so that there is something to cut off."""
    (tmp_path / "in.jsonl").write_text('{"text": "Hi", "greedy_tokens": 1}\n' + '{"text": "Hi", "greedy_tokens": 3900}\n' * 9)
    with Command("score", "--model", MODEL, "--kv-cache-tokens", "40000", "--input", tmp_path / "in.jsonl", "--output",
                 tmp_path / "out.jsonl", log=tmp_path / "log") as command:
        wait_until(lambda: children(command.process.pid), what="its processes")
        time.sleep(3)
        assert command.end(signal.SIGTERM) == 143
        assert "interrupted after" in command.told() or "while loading" in command.told()


def test_a_second_signal_ends_a_drain(tmp_path):
    with Server("--drain-grace-s", "600", *POOL) as server:
        told = []

        def stream():
            body = {"prompt": "Count: one,", "max_tokens": 3000, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as reply:
                for line in reply.iter_lines():
                    told.append(line)

        client = threading.Thread(target=stream)
        client.start()
        wait_until(lambda: told, what="the first text")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in server.read(server.log), what="the drain")
        seen = len(told)
        wait_until(lambda: len(told) > seen, what="text while draining")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(BOUND) == 0
        client.join(BOUND)
        assert '"error"' in "".join(told[-3:]) and "[DONE]" not in told
