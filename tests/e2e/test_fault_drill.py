"""Workers killed, stopped and paused at random under load: every answer whole and the same, nobody hangs, no block is
lost.

TANDEM_DRILL_KILLS: how many (default 40; the full drill is 200). TANDEM_DRILL_SEED: which ones.
"""
import concurrent.futures
import itertools
import json
import os
import random
import re
import signal
import threading
import time

import httpx

from conftest import Server, wait_until

KILLS = int(os.environ.get("TANDEM_DRILL_KILLS", "40"))
SEED = int(os.environ.get("TANDEM_DRILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
CLIENTS = 12
DEADLINE = 60.0  # of one request: beyond it a client counts as hung

WORDS = "harbour candle glacier orchard violin tunnel meadow copper lantern bridge saddle thunder".split()


def requests():
    """Long and short prompts, half of them with a common beginning; greedy and seeded; streamed and not."""
    draw = random.Random(1)
    words = lambda count: " ".join(draw.choice(WORDS) for _ in range(count))  # noqa: E731
    common = words(150)
    for index, (shared, length) in enumerate(itertools.product((False, True), (3, 20, 60, 180))):
        prompt = (common + " " if shared else "") + words(length)
        for temperature in (0, 0.8):
            body = {"prompt": prompt, "max_tokens": 8 + 7 * index, "temperature": temperature, "ignore_eos": True}
            yield body | ({"seed": index} if temperature else {}) | {"stream": bool(index % 3)}


def answer(server, body):
    if not body["stream"]:
        reply = httpx.post(server.url + "/v1/completions", json=body, timeout=DEADLINE)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["text"]
    text, started, done = "", time.monotonic(), False
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=DEADLINE) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            assert time.monotonic() - started < DEADLINE
            data = line.removeprefix("data: ")
            done = done or data == "[DONE]"
            if line.startswith("data: {"):
                event = json.loads(data)
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
    assert done, "the stream broke off"
    return text


class Load:
    """Clients that ask one request after the other until told to stop, and compare."""

    def __init__(self, server, wanted):
        self.server, self.wanted, self.over = server, wanted, threading.Event()
        self.answered = [0] * CLIENTS
        self.pool = concurrent.futures.ThreadPoolExecutor(CLIENTS)
        self.clients = [self.pool.submit(self.run, n, random.Random(SEED + n)) for n in range(CLIENTS)]

    def run(self, number, draw):
        while not self.over.is_set():
            body, want = draw.choice(self.wanted)
            assert answer(self.server, body) == want, f"another answer to {body}"
            self.answered[number] += 1

    def check(self):
        """Raises what a client ended with."""
        for client in self.clients:
            if client.done():
                client.result()

    def let_go_on(self, before):
        """Waits until every client has the answer it was waiting for when `answered` was `before`: the server gives a
        request up after three deaths, lest it be the cause, and here it never is."""

        def passed():
            self.check()
            return all(now > then for now, then in zip(self.answered, before))

        wait_until(passed, DEADLINE, "every client's next answer")

    def stop(self):
        self.over.set()
        for client in self.clients:
            client.result(timeout=DEADLINE + 10)
        self.pool.shutdown()


class Drill:
    def __init__(self, server):
        self.server, self.draw, self.killed = server, random.Random(SEED), set()

    def events(self, lane):
        return re.findall(rf"worker {lane} (ended|is back)", self.server.read(self.server.log))

    def is_up(self, lane):
        """Serving, and by no worker that has a signal to die of."""
        assert self.server.process.poll() is None, f"the front end ended with {self.server.process.returncode}"
        events = self.events(lane)
        return self.server.worker(lane) not in (None, *self.killed) and (not events or events[-1] == "is back")

    def strike(self, lane, number):
        victim = self.server.worker(lane)
        if victim is not None:
            self.killed.add(victim)
            os.kill(victim, number)

    def pause(self, lane):
        victim = self.server.worker(lane)
        if victim is not None:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(victim, signal.SIGCONT)

    def round(self):
        """Kills one worker, both, or one and its successor before that is ready; stops one for good or for a moment.
        Returns the kills, what was done and the seconds."""
        kind = self.draw.choices(("kill", "both", "again", "stop", "pause"), (12, 4, 3, 3, 2))[0]
        lane = self.draw.randrange(2)
        time.sleep(self.draw.uniform(0, 0.3))
        started = time.monotonic()
        if kind == "stop":
            self.strike(lane, signal.SIGSTOP)
        elif kind == "pause":
            self.pause(lane)
        else:
            self.strike(lane, signal.SIGKILL)
        if kind == "both":
            self.strike(1 - lane, signal.SIGKILL)
        if kind == "again":
            wait_until(lambda: self.server.worker(lane) not in (None, *self.killed), what="a successor")
            self.strike(lane, signal.SIGKILL)
        wait_until(lambda: self.is_up(0) and self.is_up(1), 30, f"recovery from {kind}")
        return {"both": 2, "again": 2, "pause": 0}.get(kind, 1), kind, time.monotonic() - started


def spread(values):
    values = sorted(values)
    at = lambda part: values[min(len(values) - 1, int(part * len(values)))]  # noqa: E731
    return f"min {values[0]:.0f}, p50 {at(0.5):.0f}, p90 {at(0.9):.0f}, max {values[-1]:.0f} ms (of {len(values)})"


def test_workers_die_at_random_under_load(capsys):
    print(f"seed {SEED}")
    with Server() as server:
        wanted = [(body, answer(server, body)) for body in requests()]
        load, drill, times, kills = Load(server, wanted), Drill(server), {}, 0
        try:
            while kills < KILLS:
                before = list(load.answered)
                count, kind, seconds = drill.round()
                kills += count
                times.setdefault(kind, []).append(seconds * 1000)
                load.let_go_on(before)
        finally:
            load.over.set()
        load.stop()
        wait_until(server.idle, what="an idle server: no request, no block held")
        assert [answer(server, body) for body, _ in wanted] == [want for _, want in wanted]
        wait_until(server.idle, what="an idle server: no request, no block held")
        starts = [int(ms) for ms in re.findall(r"worker \d is back after (\d+) ms", server.read(server.log))]
        report = [f"{kills} kills, {sum(load.answered)} answers", f"worker starts: {spread(starts)}"]
        report += [f"until both lanes serve again, {kind}: {spread(ms)}" for kind, ms in sorted(times.items())]
        with capsys.disabled():
            print("", *report, sep="\n")
        assert sum(load.answered) >= kills, "the kills met no load"
        assert server.stop() == 0
