#!/usr/bin/env python3
"""Plants random faults into the sources, one at a time, and says which of them the unit tests notice.

  mutate.py MODULE... [--count 20] [--seed 1] [--jobs 1] [--timeout 60] [--keep FILE.jsonl]

MODULE is a folder of src/ ("sched"). Each fault changes one place of one file: a comparison, a logical operator, a constant
by one, a condition's sign, min against max, a dropped statement, a return value, break against continue. It is compiled in
a scratch worktree of HEAD and judged by the tests of TESTS below, until one fails, crashes or runs into the limit. Prints a line
per fault and a table; a survivor is either equivalent (say why) or names a missing test. Needs: git, cmake, ninja.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHED = ["policy_test", "plan_builder_test", "scheduler_test", "prefix_reuse_test", "exhaustion_test", "look_ahead_test", "replacement_test",
         "server_counters_test", "scheduler_cost_test", "local_engine_test"]
# The tests that judge a module, cheap and likely ones first. Names that do not exist are left out.
TESTS = {
    "base": ["base_test"],
    "ipc": ["ipc_test", "lane_test", "step_cost_test", "scheduler_test", "look_ahead_test"],
    "memory": ["memory_test", "prefix_reuse_test", "scheduler_test", "exhaustion_test", "local_engine_test", "ledger_kill_test"],
    "worker": ["lane_test", "step_cost_test", "worker_test"],
    "sched": SCHED,
    "process": ["process_test"],
    "api": ["openai_test", "openai_response_test", "request_check_test", "local_engine_test", "http_parser_test", "http_server_test", "placement_test"],
    "text": ["text_stream_test", "bpe_test", "chat_template_test", "jinja_test", "pre_tokenizer_test", "unicode_test", "smollm2_tokenizer_test"],
}
# Not logic: text, includes, declarations, checks that end the process anyway.
SKIP = re.compile(r'^\s*(//|#|namespace|using|static_assert|\}|TANDEM_LOG|fmt::format|"|case .*:$|public:|private:|const auto .*= \[)')
OPERATORS = [
    ("compare", 3, [(r" == ", " != "), (r" != ", " == "), (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > ")]),
    ("logic", 2, [(r" && ", " || "), (r" \|\| ", " && ")]),
    ("by one", 1.5, [(r" \+ 1\b", " + 0"), (r" - 1\b", " - 0"), (r"= 0;", "= 1;"), (r"\b1U\b", "0U")]),
    ("negate", 2, [(r"\bif \((?!const|auto)([^;]*)\) ", r"if (!(\1)) "), (r"\bif \(!", "if (")]),
    ("min/max", 1, [(r"std::min\b", "std::max"), (r"std::max\b", "std::min")]),
    ("drop", 4, [(r"^\s*[\w.\->\[\]()*]+(\([^;]*\)| [-+|]?= [^;]*|\+\+|--);\s*$", ""), (r"^\s*(\+\+|--)[\w.\->]+;\s*$", "")]),
    ("return", 1.5, [(r"return true;", "return false;"), (r"return false;", "return true;")]),
    ("jump", 1, [(r"\bbreak;", "continue;"), (r"\bcontinue;", "break;")]),
]


def faults_of(path, text):
    """Every fault that can be planted into the file: (kind, weight, line index, old line, new line)."""
    found = []
    for index, line in enumerate(text.split("\n")):
        if SKIP.match(line) or "TANDEM_CHECK" in line or "fmt::format" in line:
            continue
        code = line.split("//")[0]
        for kind, weight, rules in OPERATORS:
            for pattern, new in rules:
                for match in re.finditer(pattern, code):
                    changed = code[:match.start()] + match.expand(new) + code[match.end():]
                    if changed != code:
                        found.append((kind, weight, index, line, changed))
    return [(path, *each) for each in found]


class Site:
    """A scratch worktree with a build of its own."""

    def __init__(self, folder, cache):
        self.folder, self.build = folder, folder / "build"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "-f", folder, "HEAD"], check=True, capture_output=True)
        subprocess.run(["cmake", "-S", folder, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        "-DCMAKE_CXX_FLAGS_RELEASE=-O1"] + cache, check=True, capture_output=True)
        listing = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"], capture_output=True, text=True).stdout
        self.targets = {line.split(":")[0] for line in listing.splitlines() if line.endswith(": phony")}

    def compile(self, tests):
        return subprocess.run(["ninja", "-C", self.build, *tests], capture_output=True, text=True).returncode == 0

    def judge(self, tests, timeout):
        for test in tests:
            (binary,) = [p for p in self.build.glob(f"tests/*/{test}") if os.access(p, os.X_OK)]
            try:
                done = subprocess.run([binary, "--gtest_brief=1", "--gtest_fail_fast=1"], capture_output=True, text=True, timeout=timeout)
            except subprocess.TimeoutExpired:
                return test, "time-out"
            if done.returncode:
                failed = re.search(r"\[  FAILED  \] (\S+)", done.stdout)
                return test, (failed[1].rstrip(",") if failed else "crash")
        return None

    def remove(self):
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", self.folder], capture_output=True)


def run_one(site, fault, options):
    path, kind, _, index, old, new = fault
    module = path.parts[1]
    file = site.folder / path
    original = file.read_text(encoding="utf-8")
    lines = original.split("\n")
    lines[index] = new
    tests = [name for name in TESTS[module] if name in site.targets]
    verdict = {"file": str(path), "line": index + 1, "kind": kind, "old": old.strip(), "new": new.strip()}
    began = time.monotonic()
    try:
        file.write_text("\n".join(lines), encoding="utf-8")
        if not site.compile(tests):
            verdict["verdict"] = "does not compile"
        else:
            killed = site.judge(tests, options.timeout)
            verdict["verdict"] = f"killed by {killed[0]}: {killed[1]}" if killed else "SURVIVED"
    finally:
        file.write_text(original, encoding="utf-8")
    verdict["seconds"] = round(time.monotonic() - began)
    return module, verdict


def draw(module, count, rng):
    faults = []
    for file in sorted((ROOT / "src" / module).rglob("*.cpp")):
        faults += faults_of(file.relative_to(ROOT), file.read_text(encoding="utf-8"))
    drawn = []
    while faults and len(drawn) < count:
        choice = rng.choices(range(len(faults)), [fault[2] for fault in faults])[0]
        drawn.append(faults.pop(choice))
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", choices=sorted(TESTS))
    parser.add_argument("--count", type=int, default=20, help="faults per module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60, help="seconds per test binary; more counts as noticed")
    parser.add_argument("--keep", help="append every verdict to this file, a JSON object per line")
    parser.add_argument("--cmake", action="append", default=[], help="an option for cmake, such as -DTANDEM_TEST_MODEL=...")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    queue = [fault for module in options.modules for fault in draw(module, options.count, rng)]
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="mutate."))
    sites = [Site(scratch / str(job), options.cmake) for job in range(options.jobs)]
    score = {module: [0, 0] for module in options.modules}
    try:
        for site in sites:
            everything = sorted({t for module in options.modules for t in TESTS[module]} & site.targets)
            if not site.compile(everything):
                sys.exit("the tree does not build without a fault")
            for test in everything:
                if bad := site.judge([test], 10 * options.timeout):
                    sys.exit(f"{bad[0]} fails without a fault: {bad[1]}")

        def work(site):
            while queue:
                module, verdict = run_one(site, queue.pop(0), options)
                if verdict["verdict"] != "does not compile":
                    score[module][0] += verdict["verdict"] != "SURVIVED"
                    score[module][1] += 1
                print(f"{verdict['file']}:{verdict['line']} {verdict['kind']}: {verdict['old']}  ->  {verdict['new'] or '(dropped)'}\n"
                      f"    {verdict['verdict']} ({verdict['seconds']} s)", flush=True)
                if options.keep:
                    with open(options.keep, "a", encoding="utf-8") as kept:
                        kept.write(json.dumps(verdict) + "\n")

        with concurrent.futures.ThreadPoolExecutor(len(sites)) as pool:
            list(pool.map(work, sites))
    finally:
        for site in sites:
            site.remove()
        shutil.rmtree(scratch, ignore_errors=True)
    for module, (killed, made) in score.items():
        print(f"{module}: {killed} of {made} noticed" + (f", {100 * killed / made:.0f} %" if made else ""))


if __name__ == "__main__":
    main()
