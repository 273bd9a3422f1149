#!/usr/bin/env python3
"""What sending decode steps ahead brings: tokens/s, and how long workers wait for plans (standard library only).

  look_ahead.py --tandem build/release/tandem [--model M.gguf] [--steps 0,1,2] [--streams 1,8,32] [--tokens 1200]
                [--rounds 5] [--threads 2]

Starts a server with each --look-ahead-steps. A round gives each in turn so many streams at once, `tokens` generated in
all. Prints the median over the rounds (least–most) as a Markdown table; the wait is that of
tandem_decode_wait_seconds_total: while sequences were generating, the lane had nothing to do. Ends with an error if the
servers' texts differ.
"""
import argparse
import contextlib
import os
import shlex
import statistics
import time
import urllib.request

import serving

SETTLE_S = 0.05  # the last step's metrics come after its text


def metric(url, series):
    with urllib.request.urlopen(url + "/metrics", timeout=serving.DEADLINE_S) as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith(series + " "):
                return float(line.split()[-1])
    raise RuntimeError(f"{url}/metrics has no {series}")


def one_round(url, prompts, tokens):
    """Tokens/s, wait in microseconds a step, share of the time waited in percent; and the texts."""
    names = ("tandem_decode_wait_seconds_total", 'tandem_engine_steps_total{phase="decode"}')
    before = [metric(url, name) for name in names]
    body = {"max_tokens": tokens // len(prompts)}
    begin = time.perf_counter()
    streams = serving.at_once([serving.Stream(url, {"prompt": text, **body}).read for text in prompts])
    seconds = time.perf_counter() - begin
    time.sleep(SETTLE_S)
    wait_s, steps = (metric(url, name) - value for name, value in zip(names, before))
    generated = len(prompts) * body["max_tokens"]
    return (generated / seconds, wait_s / steps * 1e6, wait_s / seconds * 100), [stream.text for stream in streams]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default="build/release/tandem")
    parser.add_argument("--model", help="a .gguf file; default: tandem's own")
    parser.add_argument("--steps", default="0,1,2")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=1200, help="in a round, over all streams")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    model = options.model or os.path.expanduser("~/.cache/tandem/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    figures = {}
    with contextlib.ExitStack() as stack:
        urls = {}
        for steps in options.steps.split(","):
            command = f"{shlex.quote(options.tandem)} serve --port {{port}} --threads {options.threads} " \
                      f"--model {shlex.quote(model)} --look-ahead-steps {steps}"
            urls[steps] = stack.enter_context(serving.Server(command)).url
            one_round(urls[steps], [serving.prompt(16)], 50)  # warm
        for _ in range(options.rounds):
            for streams in options.streams.split(","):
                prompts = [serving.prompt(16) for _ in range(int(streams))]
                texts = []
                for steps, url in urls.items():
                    figure, text = one_round(url, prompts, options.tokens)
                    figures.setdefault((streams, steps), []).append(figure)
                    texts.append(text)
                if any(text != texts[0] for text in texts):
                    raise RuntimeError("looking ahead changed a text")
    print("| streams | steps ahead | tokens/s | wait a step, µs | of the time, % |\n|---|---|---|---|---|")
    for (streams, steps), rounds in figures.items():
        cells = [f"{statistics.median(v):.{digits}f} ({min(v):.{digits}f}–{max(v):.{digits}f})"
                 for v, digits in zip(zip(*rounds), (0, 1, 2))]
        print(f"| {streams} | {steps} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
