#!/usr/bin/env python3
"""What replacing a worker under load costs the streams that decode (Python standard library only, loopback only).

  repartition.py 'name=tandem serve --port {port}' ['other=...'] [--replacements 30] [--streams 4] [--lane decode]

Starts each server, keeps `streams` completions decoding all the time, and replaces the lane's worker again and again
through POST /v1/admin/placement, with a pause after each. The gaps between the parts of a stream fall into those that
touch a replacement (from the request until the old process has ended) and the rest, of the same run. Rounds alternate
between the servers. "step" is the median gap of the rest. Prints a Markdown table: times in ms, and how many gaps are
longer than two and four steps.
"""
import argparse
import http.client
import json
import pathlib
import selectors
import socket
import threading
import time

import serving

PAUSE_S = 0.25  # undisturbed decoding after each replacement
TOKENS = 1200  # of one completion, short of the context of small models


class Streams(threading.Thread):
    """Completions that decode all the time, read by one thread that looks at nothing but their line ends."""

    def __init__(self, port, count):
        super().__init__(daemon=True)
        self.port, self.count, self.stop, self.gaps = port, count, False, []
        self.selector = selectors.DefaultSelector()

    def open(self, seed):
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": TOKENS, "temperature": 0.8, "seed": seed,
                           "ignore_eos": True, "stream": True}).encode()
        link = socket.create_connection(("127.0.0.1", self.port))
        link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.selector.register(link, selectors.EVENT_READ, [seed, None])

    def run(self):
        for seed in range(self.count):
            self.open(seed)
        while not self.stop:
            for key, _ in self.selector.select(1):
                data, now = key.fileobj.recv(65536), time.monotonic()
                if not data:  # the completion is over: another one
                    self.selector.unregister(key.fileobj)
                    key.fileobj.close()
                    self.open(key.data[0] + self.count)
                elif b'"finish_reason":null' in data:
                    if key.data[1] is not None:
                        self.gaps.append((key.data[1], now))
                    key.data[1] = now
                elif b"data: " in data:
                    key.data[1] = None


def workers(parent, lane):
    """The pids of a server's workers of one lane."""
    found = set()
    for task in pathlib.Path(f"/proc/{parent}/task").iterdir():
        for pid in (task / "children").read_text().split():
            try:
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:  # it has just ended
                continue
            if "worker" in line and line[line.index("--lane") + 1] == str(lane):
                found.add(int(pid))
    return found


def replace(port, lane):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=serving.DEADLINE_S)
    connection.request("POST", "/v1/admin/placement", json.dumps({"replace": [lane]}),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        raise RuntimeError(f"replacing {lane}: {reply.status} {text.decode()}")
    connection.close()


def measure(command, lane, options):
    """The windows of the replacements (asked for, answered, old process gone) and the gaps (begin, end)."""
    with serving.Server(command) as server:
        lane_idx = {"prefill": 0, "decode": 1, "fused": 0}[lane]
        streams = Streams(server.port, options.streams)
        streams.start()
        time.sleep(4 * PAUSE_S)
        streams.gaps.clear()
        windows = []
        for _ in range(options.replacements):
            time.sleep(PAUSE_S)
            old = workers(server.process.pid, lane_idx)
            begin = time.monotonic()
            replace(server.port, lane)
            answered = time.monotonic()
            while old & workers(server.process.pid, lane_idx):
                time.sleep(0.005)
            windows.append((begin, answered, time.monotonic()))
        time.sleep(PAUSE_S)
        streams.stop = True
        streams.join()
        return windows, list(streams.gaps)


def touches(gap, windows):
    return any(gap[0] < end and gap[1] > begin for begin, _, end in windows)


def row(name, gaps, step):
    cells = [f"{serving.percentile(gaps, percent):.1f}" for percent in (50, 99, 100)] + [f"{max(gaps) / step:.1f}"]
    cells += [f"{sum(gap > k * step for gap in gaps)}" for k in (2, 4)]
    return f"| {name} | {len(gaps)} | " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", help="name=command with {port}")
    parser.add_argument("--replacements", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=1, help="of that many replacements for each server")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--lane", choices=("prefill", "decode", "fused"), default="decode")
    options = parser.parse_args()
    servers = dict(entry.split("=", 1) for entry in options.servers)
    results = {name: ([], [], []) for name in servers}
    for _ in range(options.rounds):
        for name, command in servers.items():
            windows, gaps = measure(command, options.lane, options)
            rest, during, took = results[name]
            took += [1000 * (answered - begin) for begin, answered, _ in windows]
            for gap in gaps:
                (during if touches(gap, windows) else rest).append(1000 * (gap[1] - gap[0]))
    print("| token gaps, ms | gaps | p50 | p99 | max | max, in steps | above 2 steps | above 4 |\n|---|---|---|---|---|---|---|---|")
    for name, (rest, during, took) in results.items():
        step = serving.percentile(rest, 50)
        print(row(f"{name}, undisturbed", rest, step))
        print(row(f"{name}, {len(took)} replacements", during, step))
    for name, (_, _, took) in results.items():
        print(f"{name}: a replacement takes {serving.percentile(took, 50):.0f} ms ({min(took):.0f} to {max(took):.0f})")


if __name__ == "__main__":
    main()
