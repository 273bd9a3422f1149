"""Hot repartition: shares change and workers give way to new processes while streams decode. No byte changes."""
import json
import os
import signal
import threading
import time

import grpc
import httpx
import pytest

from conftest import Server, children, command_line, gone, wait_until
from test_grpc_client import Client

PATH = "/v1/admin/placement"
STREAMS = 4
TOKENS = 700


class Stream(threading.Thread):
    """One streamed completion: its text, and when each part of it came."""

    def __init__(self, server, seed, tokens=TOKENS):
        super().__init__()
        self.server, self.times, self.parts, self.finish = server, [], [], None
        self.body = {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0.8, "seed": seed,
                     "ignore_eos": True, "stream": True}
        self.start()

    def run(self):
        with httpx.stream("POST", self.server.url + "/v1/completions", json=self.body, timeout=120) as reply:
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                choice = json.loads(line[6:])["choices"][0]
                self.times.append(time.monotonic())
                self.parts.append(choice["text"])
                self.finish = choice.get("finish_reason") or self.finish

    def text(self):
        self.join(120)
        return "".join(self.parts), self.finish


def gaps_ms(streams):
    return sorted(1000 * (b - a) for s in streams for a, b in zip(s.times, s.times[1:]))


def summary(gaps):
    return f"p50 {gaps[len(gaps) // 2]:.1f} ms, p99 {gaps[len(gaps) * 99 // 100]:.1f} ms, max {gaps[-1]:.1f} ms"


def change(server, timeout=40, **fields):
    return server.post(PATH, fields, timeout=timeout)


def state(server):
    reply = httpx.get(server.url + PATH, timeout=10)
    assert reply.status_code == 200, reply.text
    return reply.json()


def workers(server, lane):
    """The pids of every worker of a lane: two while one replaces the other."""
    found = []
    for pid in children(server.process.pid):
        line = command_line(pid)
        if "worker" in line and line[line.index("--lane") + 1] == str(lane) and not gone(pid):
            found.append(pid)
    return found


def run_streams(server):
    streams = [Stream(server, seed) for seed in range(STREAMS)]
    wait_until(lambda: all(len(s.times) > 3 for s in streams), what="streams that decode")
    return streams


@pytest.mark.parametrize("placement, lanes", [("semi", ["prefill", "decode"]), ("fused", ["fused"])])
def test_ten_replacements_under_load_change_no_byte(placement, lanes, capsys):
    with Server("--placement", placement) as server:
        units = state(server)["num_units"]
        undisturbed = run_streams(server)
        want = [s.text() for s in undisturbed]
        assert all(finish == "length" for _, finish in want)
        streams = run_streams(server)
        took, disturbed, before = [], 0, state(server)
        for round_ in range(10):
            fields = {"replace": [lanes[(round_ + 1) % len(lanes)]]}
            if placement == "semi" and units > 1:
                fields["decode_units"] = 1 + round_ % (units - 1)
            old = workers(server, lanes.index(fields["replace"][0]))
            disturbed += all(s.is_alive() for s in streams)
            started = time.monotonic()
            reply = change(server, **fields)
            took.append(1000 * (time.monotonic() - started))
            assert reply.status_code == 200, reply.text
            assert reply.json()["decode_units"] == fields.get("decode_units", before["decode_units"])
            lane = next(l for l in reply.json()["lanes"] if l["lane"] == fields["replace"][0])
            assert lane["up"] and lane["restarts"] == 0
            wait_until(lambda: all(gone(pid) for pid in old), 5, "the end of the old worker")
        assert [s.text() for s in streams] == want
        after = state(server)
        assert sum(l["epoch"] for l in after["lanes"]) - sum(l["epoch"] for l in before["lanes"]) == 10
        assert disturbed >= 5, "the replacements are to happen under load"
        quiet, loud = gaps_ms(undisturbed), gaps_ms(streams)
        with capsys.disabled():
            print(f"\n{placement}: token gaps undisturbed {summary(quiet)}; over 10 replacements {summary(loud)}; "
                  f"{disturbed} of them under load, each {min(took):.0f} to {max(took):.0f} ms")
        assert loud[-1] < 1000, "a stall, not noise"
        assert server.metric("tandem_lane_losses_total") == 0
        wait_until(server.idle, what="an idle server")
        assert server.stop() == 0


def test_requests_that_come_meanwhile_are_answered():
    """Prompts are read too, so that both lanes and the split take part."""
    with Server() as server:
        body = {"prompt": "The river and the mountain " * 60, "max_tokens": 30, "temperature": 0, "ignore_eos": True,
                "cache_prompt": False}
        want = server.post("/v1/completions", body).json()["choices"]
        stop, wrong, answered = threading.Event(), [], []

        def ask():
            while not stop.is_set():
                reply = server.post("/v1/completions", body)
                answered.append(reply.status_code)
                if reply.status_code != 200 or reply.json()["choices"] != want:
                    wrong.append(reply.text)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            reply = change(server, replace=["prefill", "decode"])
            assert reply.status_code == 200, reply.text
            assert all(lane["up"] for lane in reply.json()["lanes"])
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not wrong and len(answered) >= 3
        assert server.stop() == 0


def kill_in_handover(server, pick):
    """Replaces the decode worker and kills one of the two as soon as both are there. None: it was too late for that."""
    old = workers(server, 1)
    assert len(old) == 1
    result = []
    thread = threading.Thread(target=lambda: result.append(change(server, replace=["decode"])))
    thread.start()
    killed = False
    while thread.is_alive() and not killed:
        pair = workers(server, 1)
        if len(pair) == 2 and old[0] in pair:
            new = next(pid for pid in pair if pid != old[0])
            os.kill(new if pick == "new" else old[0], signal.SIGKILL)
            killed = True
    thread.join(60)
    return result[0] if killed else None


@pytest.mark.parametrize("pick", ["new", "old"])
def test_a_death_in_the_hand_over_loses_nothing(pick):
    with Server() as server:
        want = [s.text() for s in run_streams(server)]
        streams = run_streams(server)
        outcomes = []
        for _ in range(4):
            if len(outcomes) == 2:
                break  # a third death under one request would end it
            reply = kill_in_handover(server, pick)
            if reply is not None:
                outcomes.append(reply.status_code)
                if reply.status_code != 200:
                    assert reply.status_code == 500 and "ended before it took over" in reply.json()["error"]["message"]
            wait_until(lambda: len(workers(server, 1)) == 1 and state(server)["lanes"][1]["up"], what="one decode worker")
        assert outcomes, "some kill came in time"
        assert [s.text() for s in streams] == want
        assert change(server, replace=["decode"]).status_code == 200
        wait_until(server.idle, what="an idle server")
        assert server.stop() == 0


def test_a_replacement_under_way_does_not_hold_up_the_end():
    with Server() as server:
        old = workers(server, 1)
        replies = []
        thread = threading.Thread(target=lambda: replies.append(change(server, replace=["decode"])))
        thread.start()
        new = []
        while thread.is_alive() and not new:
            new = [pid for pid in workers(server, 1) if pid not in old]
        os.kill(new[0], signal.SIGSTOP)  # it will never be ready
        started = time.monotonic()
        assert server.stop() == 0
        thread.join(10)
        assert time.monotonic() - started < 5
        if replies[0].status_code != 200:  # it was ready before the signal came
            assert replies[0].status_code == 503
        wait_until(lambda: all(gone(pid) for pid in old + new), 5, "every worker gone")


def test_errors_are_named():
    with Server("--threads", "1") as server:
        reply = change(server, decode_units=1)
        assert reply.status_code == 400 and "one unit" in reply.json()["error"]["message"]
        for fields, param in (({"replace": ["both"]}, "replace"), ({"units": 1}, "units"), ({}, None)):
            reply = change(server, **fields)
            assert reply.status_code == 400 and reply.json()["error"]["param"] == param
        assert change(server, replace=["prefill"]).status_code == 200
        assert server.stop() == 0


def test_only_administrators_over_http_and_grpc():
    with Server("--api-keys", "user-key", "--admin-api-key", "admin-key", grpc=True) as server:
        def ask(method, key, **more):
            return httpx.request(method, server.url + PATH, headers={"Authorization": f"Bearer {key}"}, timeout=30, **more)

        for method in ("GET", "POST"):
            assert ask(method, "user-key").status_code == 401
        assert ask("GET", "admin-key").status_code == 200
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            client = Client(channel)

            def call(method, key, **fields):
                request = client.message(f"tandem.v1.{method}Request", **fields)
                return client.method("tandem.v1.Admin", method)(request, timeout=30,
                                                                metadata=[("authorization", f"Bearer {key}")])

            for method in ("GetPlacement", "SetPlacement"):
                with pytest.raises(grpc.RpcError) as error:
                    call(method, "user-key")
                assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
            before = call("GetPlacement", "admin-key")
            assert [lane.name for lane in before.lanes] == ["prefill", "decode"] and before.placement == 1
            after = call("SetPlacement", "admin-key", replace=["decode"])
            assert [lane.epoch for lane in after.lanes] == [before.lanes[0].epoch, before.lanes[1].epoch + 1]
            with pytest.raises(grpc.RpcError) as error:
                call("SetPlacement", "admin-key", decode_units=999)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "decode_units" in error.value.details()
        assert server.stop() == 0
