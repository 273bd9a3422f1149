#!/usr/bin/env python3
"""What the prefix cache is worth: time to the first token with and without it (Python standard library only).

  prefix_cache.py --tandem build/release/tandem [--model M.gguf] [--requests 64] [--prefix 1000] [--concurrency 1,8,64]
                  [--turns 8] [--chats 3] [--flags '--placement semi --threads 2']

Starts the server. First, for each level of concurrency, so many requests whose prompts share a prefix and end
differently: once with "cache_prompt": false, and once with the cache, which holds nothing of that prefix yet. "hit rate":
cached of all prompt tokens. Then chats turn by turn, each turn sent both ways: the median over the chats. Ends with 1 when
the cache changes a byte of an answer. Prints Markdown tables; times in ms.
"""
import argparse
import collections
import random
import shlex
import statistics
import sys

import serving

ENDING_WORDS = 12
TURN_WORDS = 60
ANSWER_TOKENS = 32


def words(count):
    return " ".join(random.choices(serving.WORDS, k=count))


def send(url, prompts, concurrency, options, cached):
    """The streams of all prompts, of which so many are under way at a time."""
    left = collections.deque(enumerate(prompts))
    streams = [None] * len(prompts)

    def client():
        while True:
            try:
                index, prompt = left.popleft()
            except IndexError:
                return
            body = {"prompt": prompt, "max_tokens": options.tokens, "cache_prompt": cached}
            streams[index] = serving.Stream(url, body).read()

    serving.at_once([client] * concurrency)
    return streams


def compare_concurrency(url, options):
    """Prints a table and gives the number of answers that differ."""
    print(f"| {options.requests} requests, {options.prefix} tokens shared | cache | TTFT p50 | p90 | p99 | hit rate |")
    print("|---|---|---|---|---|---|")
    differences = 0
    for concurrency in options.concurrency:
        prefix = serving.prompt(options.prefix)
        prompts = [f"{prefix} {index} {words(ENDING_WORDS)}" for index in range(options.requests)]
        plain, cached = (send(url, prompts, concurrency, options, use) for use in (False, True))
        differences += sum(a.text != b.text for a, b in zip(plain, cached))
        for name, streams in (("without", plain), ("with", cached)):
            cells = [f"{serving.percentile([s.ttft_s for s in streams], p) * 1e3:.0f}" for p in (50, 90, 99)]
            rate = sum(s.cached_tokens for s in streams) / sum(s.prompt_tokens for s in streams)
            print(f"| {concurrency} at a time | {name} | " + " | ".join(cells) + f" | {rate:.1%} |", flush=True)
    return differences


def compare_chats(url, options):
    """Prints a table and gives the number of answers that differ."""
    turns = [[] for _ in range(options.turns)]
    differences = 0
    for _ in range(options.chats):
        messages = []
        for turn in turns:
            messages.append({"role": "user", "content": words(TURN_WORDS)})
            body = {"messages": messages, "max_tokens": ANSWER_TOKENS}
            plain, cached = (serving.Stream(url, body | {"cache_prompt": use}).read() for use in (False, True))
            differences += plain.text != cached.text
            turn.append((plain, cached))
            messages.append({"role": "assistant", "content": cached.text})
    print("\n| turn | prompt tokens | of them cached | TTFT without | TTFT with |\n|---|---|---|---|---|")
    for index, pairs in enumerate(turns):
        cells = [statistics.median(values) for values in (
            [cached.prompt_tokens for _, cached in pairs], [cached.cached_tokens for _, cached in pairs],
            [plain.ttft_s * 1e3 for plain, _ in pairs], [cached.ttft_s * 1e3 for _, cached in pairs])]
        print(f"| {index + 1} | {cells[0]:.0f} | {cells[1]:.0f} | {cells[2]:.1f} | {cells[3]:.1f} |")
    return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default="build/release/tandem")
    parser.add_argument("--model", help="default: tandem's own")
    parser.add_argument("--flags", default="", help="more flags of `tandem serve`, in one argument")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prefix", type=int, default=1000, help="tokens, about")
    parser.add_argument("--tokens", type=int, default=8, help="of each answer")
    parser.add_argument("--concurrency", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 64])
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--chats", type=int, default=3)
    options = parser.parse_args()
    command = f"{shlex.quote(options.tandem)} serve --port {{port}} {options.flags}"
    if options.model:
        command += f" --model {shlex.quote(options.model)}"
    with serving.Server(command) as server:
        serving.Stream(server.url, {"prompt": serving.prompt(options.prefix), "max_tokens": 2}).read()  # warm
        differences = compare_concurrency(server.url, options) + compare_chats(server.url, options)
    print(f"\nanswers that the cache changed: {differences}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
