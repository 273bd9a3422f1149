#!/usr/bin/env python3
"""How long servers take from exec to their first token, side by side (Python standard library only, loopback only).

  startup.py 'tandem=tandem serve --port {port} --threads 2' 'peer=llama-server -m model.gguf -t 2 --port {port}' [--rounds 7]

Rounds alternate between the servers; each start gets a free port and is ended again. "healthy": until GET /health answers
200. "first token": until a streamed completion of a short prompt, sent then, brings its first text. The first round warms
the file cache and does not count. Prints medians (least, most) in ms as a Markdown table with the ratio to the last server.
"""
import argparse
import statistics

import serving


def start_once(command):
    """Milliseconds until healthy and until the first token."""
    with serving.Server(command) as server:
        stream = serving.Stream(server.url, {"prompt": "Once upon a time", "max_tokens": 4}).read()
        return (server.up - server.start) * 1e3, (stream.times[0] - server.start) * 1e3


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
