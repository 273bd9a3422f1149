"""Compiles every header by itself, so that each includes what it uses.

usage: check_headers.py ROOT FOLDER COMPILER [FLAG...]
The build has done it for a header that a source of the same name includes first; those are left out. FOLDER holds
one source per header that is left; with ccache in front of COMPILER a second run takes no time.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

import source_tree

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]*)[>"]', re.MULTILINE)


def compile_alone(root, header, folder, command):
    """The compiler's complaint, or "". A source includes the header: #pragma once warns in a main file."""
    unit = folder / (header.as_posix().replace("/", "__") + ".cpp")
    unit.write_text(f'#include "{header.as_posix()}"\n', encoding="utf-8")
    arguments = [f"-I{root}", "-O0", "-c", str(unit), "-o", str(unit.with_suffix(".o"))]
    result = subprocess.run([*command, *arguments], cwd=root, capture_output=True, text=True)
    return "" if result.returncode == 0 else f"{header}: does not compile alone\n{result.stderr.strip()}"


def proven_by_build(root, header):
    source = root / header.with_suffix(".cpp")
    if not source.is_file():
        return False
    first = INCLUDE.search(source.read_text(encoding="utf-8"))
    return first is not None and header.as_posix().endswith("/" + first[1])


def main(root, folder, *command):
    root, folder = pathlib.Path(root).resolve(), pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    headers = source_tree.files(root, ["include", "src", "kernels"], source_tree.HEADERS)
    alone = [header for header in headers if not proven_by_build(root, header)]
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda header: compile_alone(root, header, folder, command), alone))
    return source_tree.report([result for result in results if result], len(alone), "headers")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
