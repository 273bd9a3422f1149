#!/usr/bin/env python3
"""What prompts that arrive do to streams that run: token gaps and time to the first token (standard library only).

  interference.py --tandem build/release/tandem [--model M.gguf] [--peer-server LLAMA_CPP/build/bin/llama-server]
                  [--streams 4] [--prompt 1500] [--prompts 3 | --rate 0.5] [--quiet-s 2] [--rounds 3] [--threads 2]
                  [--svg FILE]

Starts tandem in semi and in fused placement and, if named, llama.cpp's server with the same model and threads. A round
with one of them: so many streams begin; gaps between the texts of a stream count for "alone" during quiet-s seconds; then
prompts, each unique from its first word, come one after the other (with --rate: so many a second, on time or not), and gaps
from the first prompt's arrival to the last one's first token count for "beside prompts". Rounds alternate between the
servers. Prints the median over the rounds (least–most) of each round's percentile, in ms, as a Markdown table; with --svg the p99 gap beside prompts and the TTFT as a picture too.
"""
import argparse
import contextlib
import math
import os
import shlex
import statistics
import threading
import time

import serving

STREAM_TOKENS = 3500  # more than a round takes
SLOT_TOKENS = 4096


class Background:
    """Streams that run until the with block ends."""

    def __init__(self, url, count):
        self.stop = threading.Event()
        self.streams = [
            serving.Stream(url, {"prompt": serving.prompt(32), "max_tokens": STREAM_TOKENS}) for _ in range(count)]
        self.threads = [threading.Thread(target=stream.read, args=(self.stop,)) for stream in self.streams]
        for thread in self.threads:
            thread.start()

    def wait_for_all(self):
        deadline = time.perf_counter() + serving.DEADLINE_S
        while not all(stream.times for stream in self.streams):
            if time.perf_counter() > deadline:
                raise RuntimeError("the streams in the background did not start")
            time.sleep(serving.POLL_S)

    def gaps_ms(self, begin, end):
        """Between texts of a stream of which the later one came in that time."""
        if any(stream.whole for stream in self.streams):
            raise RuntimeError("a stream in the background ended before its round did: ask for fewer prompts")
        gaps = []
        for stream in self.streams:
            times = list(stream.times)
            gaps += [(b - a) * 1e3 for a, b in zip(times, times[1:]) if begin <= b <= end]
            gaps.append((end - max(t for t in times if t <= end)) * 1e3)  # the one that is open then
        return gaps

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def send_prompts(url, options):
    """Their streams, each read to its end."""
    if options.rate is None:
        return [serving.Stream(url, {"prompt": serving.prompt(options.prompt), "max_tokens": 2}).read()
                for _ in range(options.prompts)]

    def one(delay_s):
        time.sleep(delay_s)
        return serving.Stream(url, {"prompt": serving.prompt(options.prompt), "max_tokens": 2}).read()

    return serving.at_once([lambda delay_s=index / options.rate: one(delay_s) for index in range(options.prompts)])


def one_round(url, options):
    """The round's figures in ms, in the order of the table."""
    with Background(url, options.streams) as background:
        background.wait_for_all()
        begin = time.perf_counter()
        time.sleep(options.quiet_s)
        alone = background.gaps_ms(begin, time.perf_counter())
        begin = time.perf_counter()
        prompts = send_prompts(url, options)
        beside = background.gaps_ms(begin, max(stream.times[0] for stream in prompts))
    ttft = [stream.ttft_s * 1e3 for stream in prompts]
    figures = [serving.percentile(gaps, percent) for gaps in (alone, beside) for percent in (50, 99, 100)]
    return figures + [serving.percentile(ttft, 50), max(ttft)]


def commands(options):
    model = options.model or os.path.expanduser("~/.cache/tandem/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    common = f"--port {{port}} --threads {options.threads} --model {shlex.quote(model)}"
    servers = {f"tandem, {placement}": f"{shlex.quote(options.tandem)} serve {common} --placement {placement}"
               for placement in ("semi", "fused")}
    if options.peer_server:
        slots = options.streams + (1 if options.rate is None else options.prompts)
        servers["llama-server"] = f"{shlex.quote(options.peer_server)} {common} -np {slots} -c {slots * SLOT_TOKENS}"
    return servers


def picture(title, figures):
    """Bars on a logarithmic scale: per server its p99 token gap beside prompts and the median TTFT of the prompts, in ms."""
    most = max(max(pair) for pair in figures.values())
    width = lambda value: 8 + 400 * math.log10(max(value, 1)) / math.log10(max(most, 10))
    rows, y = [], 46
    for name, pair in figures.items():
        rows.append(f'<text x="130" y="{y + 21}" text-anchor="end">{name}</text>')
        for colour, value in zip(("#2f6fd0", "#e08a2e"), pair):
            rows.append(f'<rect x="140" y="{y}" width="{width(value):.0f}" height="14" fill="{colour}"/>')
            rows.append(f'<text x="{146 + width(value):.0f}" y="{y + 12}">{value:,.0f} ms</text>')
            y += 17
        y += 14
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{y + 24}" font-family="sans-serif" font-size="13">'
            f'<rect width="100%" height="100%" fill="white"/><text x="16" y="26" font-weight="bold">{title}</text>'
            + "".join(rows) + f'<rect x="140" y="{y}" width="12" height="12" fill="#2f6fd0"/>'
            f'<text x="158" y="{y + 11}">token gap of the streams, p99</text>'
            f'<rect x="360" y="{y}" width="12" height="12" fill="#e08a2e"/>'
            f'<text x="378" y="{y + 11}">first token of a prompt, median (log scale)</text></svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default="build/release/tandem")
    parser.add_argument("--model", help="a .gguf file; default: tandem's own")
    parser.add_argument("--peer-server", help="llama.cpp's llama-server")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=1500, help="tokens, about")
    parser.add_argument("--prompts", type=int, default=3, help="in a round")
    parser.add_argument("--rate", type=float, help="prompts per second; default: one when the last has its answer")
    parser.add_argument("--quiet-s", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--svg", help="write a picture here")
    options = parser.parse_args()
    rounds = {}
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(serving.Server(command)).url for name, command in commands(options).items()}
        for url in urls.values():
            serving.Stream(url, {"prompt": serving.prompt(options.prompt), "max_tokens": 8}).read()  # warm
        for _ in range(options.rounds):
            for name, url in urls.items():
                rounds.setdefault(name, []).append(one_round(url, options))
    print(f"{options.streams} streams, prompts of {options.prompt} tokens, ms\n")
    print("| | alone: gap p50 | p99 | max | beside prompts: gap p50 | p99 | max | TTFT p50 | max |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, figures in rounds.items():
        digits = [1] * 6 + [0, 0]
        cells = [f"{statistics.median(v):.{d}f} ({min(v):.{d}f}–{max(v):.{d}f})" for v, d in zip(zip(*figures), digits)]
        print(f"| {name} | " + " | ".join(cells) + " |")
    if options.svg:
        medians = {name: [statistics.median(v) for v in zip(*figures)] for name, figures in rounds.items()}
        title = f"{options.streams} streams decode while prompts of {options.prompt} tokens arrive"
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(picture(title, {name: (m[4], m[6]) for name, m in medians.items()}))


if __name__ == "__main__":
    main()
