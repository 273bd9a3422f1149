"""Checks the models in this folder with Spin: each as it is must hold, and with each planted mistake must not.

Usage: model_check.py SPIN COMPILER...   the compiler takes C with -x c. TANDEM_FULL_MODELS=1 adds runs of minutes.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path(__file__).resolve().parent


def ledger(holders, blocks, turns, mortals, deaths):
    return {"NUM_HOLDERS": holders, "NUM_BLOCKS": blocks, "TURNS": turns, "NUM_MORTALS": mortals, "MAX_DEATHS": deaths}


def retire(blocks, sequences, steps):
    return {"NUM_BLOCKS": blocks, "NUM_SEQUENCES": sequences, "MAX_STEPS": steps}


# Chosen so that each ends in seconds; together: a third holder, several lives, dying twice, a refused reservation
# followed by one that is not.
HOLDS = [
    ("ledger", ledger(2, 2, 1, 2, 1)),
    ("ledger", ledger(2, 1, 2, 2, 1)),
    ("ledger", ledger(3, 1, 1, 1, 1)),
    ("retire", retire(1, 3, 3)),
    ("retire", retire(2, 3, 2)),
    ("team", {"NUM_HELPERS": 1, "RUNS": 3}),
    ("team", {"NUM_HELPERS": 2, "RUNS": 3}),
]
HOLDS_FULL = [
    ("ledger", ledger(2, 2, 1, 2, 2)),
    ("ledger", ledger(3, 2, 1, 1, 0)),
    ("ledger", ledger(2, 2, 2, 1, 1)),
    ("retire", retire(1, 4, 3)),
    ("team", {"NUM_HELPERS": 3, "RUNS": 2}),
]
FAILS = [
    *(
        ("ledger", ledger(2, 2, 1, 2, 1) | {mistake: 1})
        for mistake in (
            "EARLY_REFUND",
            "LATE_CONFIRM",
            "NO_CONFIRM",
            "IGNORE_CONFIRMED",
            "CONFIRMED_FIRST",
            "ONE_SLOT",
            "CLAIM_BY_STORE",
            "CLAIM_FIRST",
            "FORGET_UNCLAIMED",
        )
    ),
    *(
        ("retire", retire(1, 3, 3) | {mistake: 1})
        for mistake in (
            "NO_MARKS",
            "ISSUE_LATE",
            "OLD_LAST_USE",
            "LAST_READER_ONLY",
            "ANSWER_EARLY",
            "NO_REAP",
            "BELIEVE_WORKERS",
        )
    ),
    # A helper that sleeps for good needs one helper; a caller that does, two.
    ("team", {"NUM_HELPERS": 1, "CALLER_CLEARS": 1}),
    ("team", {"NUM_HELPERS": 2, "HELPER_CLEARS": 1}),
    *(("team", {mistake: 1}) for mistake in ("NO_SECOND_LOOK", "WAKE_BEFORE_POST")),
]


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{output}")
    return output


def check(model, values, spin, compiler, optimise):
    """The number of errors, of states, and what Spin says of the first error with the steps that lead there."""
    defines = [f"-D{name}={value}" for name, value in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        source = FOLDER / f"{model}.pml"
        run([spin, "-a", *defines, source], folder)
        run([*compiler, "-x", "c", "-w", optimise, "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], folder)
        output = run(["./pan", "-m1000000"], folder)
        found = re.search(r"errors: (\d+)\n\s*(\d+) states, stored", output)
        if found is None or "max search depth too small" in output or "out of memory" in output:
            raise SystemExit(f"the search of {model} {defines} did not end:\n{output}")
        if found[1] == "0":
            return 0, int(found[2]), ""
        trail = run([spin, "-t", "-p", *defines, "-k", *pathlib.Path(folder).glob("*.trail"), source], folder)
        return int(found[1]), int(found[2]), output.splitlines()[0] + "\n" + "\n".join(trail.splitlines()[-40:])


def main():
    spin, *compiler = sys.argv[1:]
    full = HOLDS_FULL if os.environ.get("TANDEM_FULL_MODELS") else []
    wrong = 0
    for cases, must_fail in ((HOLDS + full, False), (FAILS, True)):
        for model, values in cases:
            start = time.monotonic()
            errors, states, report = check(model, values, spin, compiler, "-O0" if must_fail else "-O2")  # found early
            right = (errors > 0) == must_fail
            wrong += not right
            name = " ".join([model, *(f"{key}={value}" for key, value in values.items())])
            verdict = "found" if errors else "holds"
            print(f"{'ok  ' if right else 'FAIL'} {verdict} {states:>9} states {time.monotonic() - start:5.1f} s  {name}")
            if not right:
                print(report if errors else "the planted mistake was not found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
