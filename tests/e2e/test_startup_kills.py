"""kill -9 of the owner, of each worker and of the front end in the first moments of `tandem serve`: it comes up and
serves right answers, or it ends soon with a clear message; nothing is left behind.

TANDEM_STARTUP_KILLS: how many rounds (default 40). TANDEM_STARTUP_SEED: which ones.
"""
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import time

import httpx

from conftest import BINARY, MODEL, Server, children, command_line, wait_until

ROUNDS = int(os.environ.get("TANDEM_STARTUP_KILLS", "40"))
SEED = int(os.environ.get("TANDEM_STARTUP_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
SECONDS = 40.0  # rounds that do not fit are left out
BOUND = 20.0  # of one start, on a machine that does much else
ASKED = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
# Moments: so many seconds after one of these.
MARKS = ("the start", "the weights' region", "a worker is ready")


def group(leader):
    """The pids of all that a server has started, and of itself: none of them leaves its process group."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == leader and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def sockets_of(pid):
    return re.findall(rf"@tandem-{pid}-\S+", pathlib.Path("/proc/net/unix").read_text())


def shared_memory_names():
    return {p.name for p in pathlib.Path("/dev/shm").iterdir()}


def role(pid):
    line = command_line(pid)
    return "owner" if line[1:2] == ["owner"] else "worker" + line[line.index("--lane") + 1] if "worker" in line else None


class Start:
    """A server that is starting."""

    def __init__(self):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.began = time.monotonic()
        self.process = subprocess.Popen([BINARY, "serve", "--model", MODEL, "--port", "0", "--kv-cache-tokens", "4096"],
                                        stdout=self.log, stderr=self.log, process_group=0)

    def told(self):
        return Server.read(self.log)

    def kill(self, victim):
        """Whether there was such a process to kill."""
        pid = self.process.pid
        if victim != "front end":
            pid = next((child for child in children(pid) if role(child) == victim), None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid is not None

    def reached(self, mark):
        if mark == "a worker is ready":
            return "is ready after" in self.told()
        return mark == "the start" or self.has_weights()

    def has_weights(self):
        """Whether the owner has made their region: a worker fills it for the next moments."""
        try:
            return any("weights" in os.readlink(fd) for child in children(self.process.pid) if role(child) == "owner"
                       for fd in pathlib.Path(f"/proc/{child}/fd").iterdir())
        except FileNotFoundError:
            return False

    def strike(self, victim, mark, delay):
        """Kills it that long after the mark, or as soon after that as it is there."""
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline and self.process.poll() is None and not self.reached(mark):
            time.sleep(0.0005)
        time.sleep(delay)
        while time.monotonic() < deadline and self.process.poll() is None and not self.kill(victim):
            time.sleep(0.0005)

    def outcome(self):
        """The port of a server that came up, or the exit status of one that did not."""
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return None, self.process.returncode
            found = re.search(r" on http://127\.0\.0\.1:(\d+)", self.told())
            if found:
                return int(found.group(1)), None
            time.sleep(0.005)
        raise AssertionError(f"it neither started nor ended within {BOUND} s")

    def ask(self, port):
        """The answer, or None from a server that ends with its killed owner."""
        try:
            reply = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=ASKED, timeout=BOUND)
        except httpx.TransportError:
            return None
        return reply.json()["choices"][0]["text"] if reply.status_code == 200 else None

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(BOUND)


def check(start, victim, want):
    """What a killed front end, owner or worker may lead to. Returns it in a word."""
    port, status = start.outcome()
    answer = start.ask(port) if port else None
    told = start.told()
    if victim == "front end":
        assert start.process.wait(BOUND) == -signal.SIGKILL
        return "killed"
    if victim == "owner":
        assert answer in (None, want)
        assert start.process.wait(BOUND) == 1, "an instance does not outlive its owner"
        assert re.search(r"the memory owner ended \(signal 9 \(Killed\)\)", told)
        return "ended"
    assert status is None, "a killed worker is no configuration error"
    assert answer == want
    assert start.end() == 0
    return "served"


def test_kills_at_random_moments_of_the_start():
    print(f"seed {SEED}")
    draw, before, seen, slowest = random.Random(SEED), shared_memory_names(), {}, {}
    undisturbed = Start()
    want = undisturbed.ask(undisturbed.outcome()[0])
    assert want and undisturbed.end() == 0
    over = time.monotonic() + SECONDS
    for round_idx in range(ROUNDS):
        victim = ("owner", "worker0", "worker1", "front end")[round_idx % 4]
        mark = draw.choices(MARKS, (5, 4, 1))[0]
        delay = draw.uniform(0, 0.3 if mark == "the start" else 0.08)
        start = Start()
        try:
            start.strike(victim, mark, delay)
            word = check(start, victim, want)
            took = time.monotonic() - start.began
            wait_until(lambda: not group(start.process.pid), 5, "no process left")
            assert not sockets_of(start.process.pid)
        except BaseException:
            print(f"round {round_idx}: the {victim} killed {delay:.4f} s after {mark}\n{start.told()}")
            raise
        finally:
            for pid in group(start.process.pid):
                os.kill(pid, signal.SIGKILL)
            start.process.wait(5)
        key = (victim, word)
        seen[key], slowest[key] = seen.get(key, 0) + 1, max(slowest.get(key, 0), took)
        if time.monotonic() > over:
            break
    print("\n".join(f"{victim} killed, {word}: {count} times, {slowest[victim, word]:.2f} s at most"
                    for (victim, word), count in sorted(seen.items())))
    assert len(seen) == 4, "every process had its turn"
    assert shared_memory_names() == before
