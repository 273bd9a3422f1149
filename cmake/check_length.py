"""Fails for a header or source that has grown too long to read (.github/CONTRIBUTING.md, style 4).

usage: check_length.py ROOT
"""
import pathlib
import sys

import source_tree

LIMITS = {"include/tandem/backend.h": 300}


def limit_of(path):
    is_header = path.suffix in source_tree.HEADERS
    is_body = path.name.endswith("_body.h") and path.parts[0] == "kernels"  # a kernel, compiled once per instruction set
    by_kind = 400 if is_body else 120 if is_header else 800 if path.suffix == ".cu" else 600
    return LIMITS.get(path.as_posix(), by_kind)


def main(root):
    suffixes = source_tree.HEADERS | source_tree.SOURCES
    paths = source_tree.files(root, ["include", "src", "kernels", "tests", "benchmarks"], suffixes)
    problems = []
    for path in paths:
        file = pathlib.Path(root) / path
        length = len(file.read_text(encoding="utf-8").splitlines())
        if length > limit_of(path) and not source_tree.is_generated(file):
            problems.append(f"{path}: {length} lines, at most {limit_of(path)}; split it by what its parts do")
    return source_tree.report(problems, len(paths), "file length")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
