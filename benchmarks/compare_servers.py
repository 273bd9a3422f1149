#!/usr/bin/env python3
"""Prefill and decode speed of OpenAI-compatible servers, side by side, through one client (Python standard library only).

  compare_servers.py tandem=http://127.0.0.1:8080 peer=http://127.0.0.1:8090 [--rounds 5] [--prompt 512] [--decode 128]

Rounds alternate between the servers. Prefill: prompt tokens / time to the first token of a prompt that is unique from its
first word. Decode: (tokens - 1) / (last - first token) of one stream; with N streams the sum, over the time when all run.
Prints medians (least, most) as a Markdown table with the ratio to the last server.
"""
import argparse
import statistics

import serving


def prefill(url, tokens):
    stream = serving.Stream(url, {"prompt": serving.prompt(tokens), "max_tokens": 2}).read()
    return stream.prompt_tokens / stream.ttft_s


def decode(url, streams, tokens, depth=8):
    def one():
        return serving.Stream(url, {"prompt": serving.prompt(max(depth, 9)), "max_tokens": tokens}).read()

    results = serving.at_once([one] * streams)
    # While every stream runs: from the last first token to the first last one. Tokens are counted by their share of the
    # stream's events, since an event may carry the text of more than one.
    begin, end = max(r.times[0] for r in results), min(r.times[-1] for r in results)
    total = 0.0
    for result in results:
        per_event = (result.usage["completion_tokens"] - 1) / max(len(result.times) - 1, 1)
        total += per_event * sum(begin < t <= end for t in result.times)
    return total / (end - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", help="name=url; the last one is what the others are compared with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    options = parser.parse_args()
    servers = dict(entry.split("=", 1) for entry in options.servers)
    tests = {
        f"prefill, {options.prompt} tokens": lambda url: prefill(url, options.prompt),
        "decode, 1 stream": lambda url: decode(url, 1, options.decode),
        f"decode, 1 stream, depth {4 * options.prompt}": lambda url: decode(url, 1, options.decode // 2, 4 * options.prompt),
        "decode, 8 streams": lambda url: decode(url, 8, options.decode),
        "decode, 32 streams": lambda url: decode(url, 32, options.decode // 2),
    }
    print("| tokens/s | " + " | ".join(servers) + " | ratio |\n|---|" + "---|" * (len(servers) + 1))
    for test, measure in tests.items():
        rates = {name: [] for name in servers}
        for url in servers.values():
            measure(url)  # warm
        for _ in range(options.rounds):
            for name, url in servers.items():
                rates[name].append(measure(url))
        medians = [statistics.median(r) for r in rates.values()]
        cells = [f"{m:.0f} ({min(r):.0f}–{max(r):.0f})" for m, r in zip(medians, rates.values())]
        print(f"| {test} | " + " | ".join(cells) + f" | {medians[0] / medians[-1]:.2f}× |", flush=True)


if __name__ == "__main__":
    main()
