"""clang-tidy on the sources that differ from a commit, committed or not (the whole tree takes too long).

usage: tidy_changed.py ROOT BUILD CLANG_TIDY [COMMIT or FILE...]
BUILD holds compile_commands.json. COMMIT is HEAD~1 when absent. With files, those are checked instead.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys


def git(root, *arguments):
    result = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def changed(root, commit):
    return git(root, "diff", "--name-only", commit, "--") + git(root, "ls-files", "--others", "--exclude-standard")


def gcc_only(flag):
    """Flags that clang does not know, or that change what it would report."""
    return re.fullmatch(r"-fno-coroutines|-Wno-restrict|-Wno-tsan|-fanalyzer|-mno-avx256-split-unaligned-load", flag)


def write_database(build, destination):
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    for entry in commands:
        entry["command"] = " ".join(flag for flag in entry["command"].split(" ") if not gcc_only(flag))
    destination.mkdir(exist_ok=True)
    (destination / "compile_commands.json").write_text(json.dumps(commands), encoding="utf-8")
    return {os.path.realpath(entry["file"]) for entry in commands}


def tidy(clang_tidy, database, file):
    result = subprocess.run([clang_tidy, "--quiet", "-p", str(database), file], capture_output=True, text=True)
    return result.returncode, result.stdout + (result.stderr if result.returncode and not result.stdout else "")


def main(root, build, clang_tidy, *what):
    root, database = os.path.realpath(root), pathlib.Path(build) / "tidy"
    known = write_database(pathlib.Path(build), database)
    if what and all(os.path.isfile(name) for name in what):
        names = [os.path.realpath(name) for name in what]
    else:
        names = [os.path.join(root, name) for name in changed(root, what[0] if what else "HEAD~1")]
    files = sorted({name for name in names if name in known})
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda file: tidy(clang_tidy, database, file), files))
    for _, output in results:
        print(output, end="")
    failed = sum(code != 0 for code, _ in results)
    print(f"tidy: {len(files)} files, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
