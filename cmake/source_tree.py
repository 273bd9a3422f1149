"""The C++ files the structure checks look at."""
import pathlib

HEADERS = {".h", ".hpp", ".inc", ".cuh"}
SOURCES = {".cpp", ".cc", ".cu"}


def files(root, folders, suffixes):
    """Every file with one of `suffixes` below `folders` of `root`, as paths relative to it, in a fixed order."""
    root = pathlib.Path(root)
    found = (path for folder in folders for path in (root / folder).rglob("*") if path.suffix in suffixes)
    return sorted(path.relative_to(root) for path in found if path.is_file())


def is_generated(path):
    """Tables that a script wrote: their first line says so, and their form is the script's business."""
    with open(path, encoding="utf-8") as file:
        return file.readline().startswith("// Generated")


def report(problems, checked, what):
    """Prints the problems; returns the exit code. A check that looked at nothing has failed."""
    for problem in problems:
        print(problem)
    print(f"{what}: {checked} files, {len(problems)} problems")
    return 1 if problems or not checked else 0
