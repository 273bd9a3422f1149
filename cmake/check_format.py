"""Compares every C++ file with .clang-format, or rewrites it.

usage: check_format.py ROOT CLANG_FORMAT [--fix]
"""
import pathlib
import subprocess
import sys

import source_tree


def main(root, clang_format, mode="--check"):
    suffixes = source_tree.HEADERS | source_tree.SOURCES
    paths = source_tree.files(root, ["include", "src", "kernels", "tests", "benchmarks"], suffixes)
    paths = [path for path in paths if not source_tree.is_generated(pathlib.Path(root) / path)]
    flags = ["-i"] if mode == "--fix" else ["--dry-run", "-Werror"]
    result = subprocess.run([clang_format, *flags, *map(str, paths)], cwd=root, capture_output=True, text=True)
    places = sorted({line.split(" error:")[0] for line in result.stderr.splitlines() if " error:" in line})
    files = sorted({place.split(":")[0] for place in places})
    problems = [f"{name}: differs from .clang-format; build the target format_fix" for name in files]
    if result.returncode != 0 and not problems:
        problems = [result.stderr.strip()]
    return source_tree.report(problems, len(paths), "format")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
