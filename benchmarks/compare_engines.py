#!/usr/bin/env python3
"""The engine without a server beside llama.cpp's, or beside another build of tandem, in one run (Python standard library only).

  compare_engines.py --tandem build/release/tandem --peer LLAMA_CPP/build/bin --model M.gguf [--peer-model P.gguf]
                     [--baseline OTHER/tandem] [--threads 1,2] [--isa avx2,avx512] [--rounds 3] [--sequences 1,2,4,8,16,32] [--depths 0,2048]

`tandem bench engine` against llama-bench (prefill; decode of one sequence) and llama-batched-bench (several sequences), and with
--baseline against the same command of another binary: what a change did to the speed.
Rounds alternate between the engines. Prints medians (least, most) of the rounds as a Markdown table; the ratio is that
of the medians. With several --isa there is a column for each.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys


def run(command):
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def tandem_rates(binary, options, isa, threads):
    rates = {}
    for line in json_lines(run(
        [binary, "bench", "engine", "--json", "--model", options.model, "--isa", isa, "--threads", str(threads),
         "--prompt", options.prompts, "--depth", options.depths, "--sequences", options.sequences,
         "--decode", str(options.decode), "--repeat", "1"])):
        key = ("prefill", line["prompt"], 0, 1) if line["test"] == "prefill" else (
            "decode", 0, line["depth"], line["sequences"])
        rates[key] = line["tokens_per_s"]["median"]
    return rates


def peer_rates(options, threads):
    rates = {}
    tool = pathlib.Path(options.peer)
    for entry in json.loads(run(
        [tool / "llama-bench", "-m", options.peer_model, "-t", str(threads), "-p", options.prompts, "-n", "0", "-r", "1",
         "-o", "json"])):
        rates["prefill", entry["n_prompt"], 0, 1] = entry["avg_ts"]
    for entry in json.loads(run(
        [tool / "llama-bench", "-m", options.peer_model, "-t", str(threads), "-p", "0", "-n", str(options.decode),
         "-d", options.depths, "-r", "1", "-o", "json"])):
        rates["decode", 0, entry["n_depth"], 1] = entry["avg_ts"]
    several = [n for n in options.sequences.split(",") if n != "1"]
    for depth in options.depths.split(","):
        if not several:
            continue
        prompt = max(int(depth), 1)
        context = max(int(n) for n in several) * (prompt + options.decode + 8)
        for line in json_lines(run(
            [tool / "llama-batched-bench", "-m", options.peer_model, "-t", str(threads), "-c", str(context), "-npp",
             str(prompt), "-ntg", str(options.decode), "-npl", ",".join(several), "--output-format", "jsonl"])):
            rates["decode", 0, int(depth), line["pl"]] = line["speed_tg"]
    return rates


def label(key):
    test, prompt, depth, sequences = key
    return f"prefill {prompt}" if test == "prefill" else f"decode, {sequences} × depth {depth}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", required=True)
    parser.add_argument("--peer", help="folder of llama-bench and llama-batched-bench")
    parser.add_argument("--baseline", help="another tandem binary")
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer-model", help="default: the same file")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--isa", default="avx2,avx512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", default="512,2048")
    parser.add_argument("--depths", default="0,2048")
    parser.add_argument("--sequences", default="1,2,4,8,16,32")
    parser.add_argument("--decode", type=int, default=64)
    options = parser.parse_args()
    if not options.peer and not options.baseline:
        parser.error("give --peer, --baseline or both")
    options.peer_model = options.peer_model or options.model
    isas = options.isa.split(",")
    for threads in options.threads.split(","):
        engines = {}
        for isa in isas:
            engines[f"tandem {isa}"] = lambda isa=isa: tandem_rates(options.tandem, options, isa, threads)
            if options.baseline:
                engines[f"baseline {isa}"] = lambda isa=isa: tandem_rates(options.baseline, options, isa, threads)
        if options.peer:
            engines["llama.cpp"] = lambda: peer_rates(options, threads)
        ratios = [(f"tandem {isa}", other) for isa in isas
                  for other in ([f"baseline {isa}"] if options.baseline else []) + (["llama.cpp"] if options.peer else [])]
        rates = {name: [] for name in engines}
        for turn in range(options.rounds):
            for name, measure in engines.items():
                print(f"round {turn + 1}, {threads} threads: {name}", file=sys.stderr, flush=True)
                rates[name].append(measure())
        print(f"\n| tokens/s, {threads} threads | " + " | ".join(engines) + " | "
              + " | ".join(f"{ours} / {other}" for ours, other in ratios) + " |\n|---|" + "---|" * (len(engines) + len(ratios)))
        for key in rates[f"tandem {isas[0]}"][0]:
            values = {name: [entry[key] for entry in entries] for name, entries in rates.items() if key in entries[0]}
            medians = {name: statistics.median(series) for name, series in values.items()}
            cells = [f"{medians[n]:.0f} ({min(values[n]):.0f}–{max(values[n]):.0f})" if n in medians else "-"
                     for n in engines]
            quotients = [f"{medians[ours] / medians[other]:.2f}×" if other in medians else "-" for ours, other in ratios]
            print(f"| {label(key)} | " + " | ".join(cells + quotients) + " |", flush=True)


if __name__ == "__main__":
    main()
