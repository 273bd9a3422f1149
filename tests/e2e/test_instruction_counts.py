"""Instructions of a lane's steps, counted by callgrind: timings are noisy, counts are not.

`tandem bench engine` runs one thread of the AVX2 kernels (valgrind knows no AVX-512) on the default model, and only what
runs inside Lane::step is counted. tests/data/instruction_counts.json holds what is expected. A change that costs or
saves more than the tolerance fails and prints the new count: write it into the file if it is meant.
"""
import json
import os
import re
import subprocess

import pytest

from conftest import BINARY, DATA, MODEL

EXPECTED = json.loads((DATA / "instruction_counts.json").read_text())
TOLERANCE = 0.02

CASES = {
    "prefill chunk of 64 tokens": ["--prompt", "64", "--decode", "0"],
    "4 decode steps of 1 sequence": ["--decode", "4", "--sequences", "1"],
    "2 decode steps of 8 sequences": ["--decode", "2", "--sequences", "8"],
    "2 decode steps of 1 sequence at depth 64, and that prompt": ["--decode", "2", "--sequences", "1", "--depth", "64"],
}


def instructions(flags, out_file):
    command = ["valgrind", "--tool=callgrind", "--toggle-collect=tandem::Lane::step*", f"--callgrind-out-file={out_file}",
               BINARY, "bench", "engine", "--model", MODEL, "--isa", "avx2", "--threads", "1", "--repeat", "1", "--cold"]
    if "--prompt" not in flags:
        flags = flags + ["--prompt", "0"]
    if "--depth" not in flags:
        flags = flags + ["--depth", "0"]
    done = subprocess.run(command + flags, capture_output=True, text=True, timeout=500, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


@pytest.mark.parametrize("case", CASES)
def test_a_step_costs_what_it_did(case, tmp_path):
    count = instructions(CASES[case], tmp_path / "callgrind.out")
    print(f"{case}: {count} instructions, {EXPECTED[case]} expected")
    assert abs(count - EXPECTED[case]) <= TOLERANCE * EXPECTED[case], f"{case}: {count} instead of {EXPECTED[case]}"
