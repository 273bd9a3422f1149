#!/usr/bin/env python3
"""How long servers take from exec to their first token, side by side (Python standard library only, loopback only).

  startup.py 'tandem=tandem serve --port {port} --threads 2' 'peer=llama-server -m model.gguf -t 2 --port {port}' [--rounds 7]

Rounds alternate between the servers; each start gets a free port and is ended again. "healthy": until GET /health answers
200. "first token": until a streamed completion of a short prompt, sent then, brings its first text. The first round warms
the file cache and does not count. Prints medians (least, most) in ms as a Markdown table with the ratio to the last server.
"""
import argparse
import http.client
import json
import shlex
import socket
import statistics
import subprocess
import time

DEADLINE_S = 60
POLL_S = 0.002
BODY = json.dumps({"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True})


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def healthy(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def wait_for_text(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.request("POST", "/v1/completions", BODY, {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0].get("text"):
            connection.close()
            return
    raise RuntimeError("the stream ended without text")


def start_once(command):
    """Milliseconds until healthy and until the first token."""
    port = free_port()
    arguments = [part.replace("{port}", str(port)) for part in shlex.split(command)]
    start = time.perf_counter()
    server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not healthy(port):
            if server.poll() is not None or time.perf_counter() - start > DEADLINE_S:
                raise RuntimeError(f"{arguments[0]} did not become healthy")
            time.sleep(POLL_S)
        up = time.perf_counter()
        wait_for_text(port)
        return (up - start) * 1e3, (time.perf_counter() - start) * 1e3
    finally:
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", help="name=command with {port}; the last one is what the others are compared with")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    servers = dict(entry.split("=", 1) for entry in options.servers)
    times = {name: [] for name in servers}
    for round_idx in range(options.rounds + 1):
        for name, command in servers.items():
            pair = start_once(command)
            if round_idx > 0:
                times[name].append(pair)
    last = list(servers)[-1]
    print("| server | healthy, ms | first token, ms | ratio |\n|---|---|---|---|")
    for name, pairs in times.items():
        cells = [f"{statistics.median(v):.0f} ({min(v):.0f}, {max(v):.0f})" for v in zip(*pairs)]
        ratio = statistics.median(p[1] for p in pairs) / statistics.median(p[1] for p in times[last])
        print(f"| {name} | {cells[0]} | {cells[1]} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
