"""Compares every #include with the layers (.github/CONTRIBUTING.md, "Layers").

usage: check_layers.py ROOT MODULES
MODULES is written by checks.cmake from what tandem_module() was told: "name|directory|dep dep" per line.
"""
import pathlib
import re
import sys

import source_tree

# A module's layer, and the contracts (include/tandem/) it may include besides types.h. Dependencies go to a
# strictly lower layer. Nothing depends on a kernels module: the composition root hands its Backend over.
LAYERS = {
    "base": (0, set()),
    "ipc": (2, {"transport.h", "sampling.h"}),
    "memory": (3, {"backend.h"}),
    "model": (4, {"model.h", "backend.h", "tokenizer.h"}),
    "text": (4, {"tokenizer.h", "request.h"}),
    "worker": (5, {"transport.h", "sampling.h", "backend.h", "model.h"}),
    "sched": (5, {"request.h", "placement.h", "policy.h", "transport.h", "sampling.h"}),
    "api": (6, {"engine.h", "placement.h", "request.h", "tokenizer.h"}),
    "process": (6, {"placement.h", "transport.h"}),
    "bench": (8, {"backend.h", "model.h", "sampling.h", "transport.h"}),
}
KERNELS = (7, {"backend.h"})
# Parsing one of these costs seconds: .cpp files only.
HEAVY = ("boost/beast/", "grpcpp/", "grpc/", "google/protobuf/", "nlohmann/json.hpp", "spdlog/", "gtest/", "gmock/", "CLI/",
         "yaml-cpp/", "prometheus/")
INCLUDE = re.compile(r'^\s*#\s*include\s*(<[^>]*>|"[^"]*")', re.MULTILINE)


class Module:
    def __init__(self, line):
        self.name, self.directory, deps = line.split("|")
        self.deps = deps.split()
        is_kernels = self.directory.startswith("kernels/")
        self.layer, self.contracts = KERNELS if is_kernels else LAYERS.get(self.name, (None, set()))

    @property
    def prefix(self):
        """How its headers are written in an #include."""
        return self.directory.removeprefix("src/") + "/"


def dependency_problems(modules):
    for module in modules.values():
        if module.layer is None:
            yield f"{module.directory}: module {module.name} has no layer; add it to LAYERS in check_layers.py"
            continue
        for dep in module.deps:
            if dep not in modules:
                yield f"{module.directory}: DEPS names {dep}, which is not a module"
            elif modules[dep].layer is not None and modules[dep].layer >= module.layer:
                yield f"{module.directory}: DEPS names {dep}, which is not below it"


def module_of(path, modules):
    folder = path.parent.as_posix() + "/"
    return next((m for m in modules.values() if folder.startswith(m.directory + "/")), None)


def fault(path, included, root, module, modules):
    """Why `path` may not include `included` ("" when it may). `module` is None for a contract."""
    if ".." in included.split("/"):
        return "includes are relative to the root"
    if path.suffix in source_tree.HEADERS and included.startswith(HEAVY):
        return "a heavy third-party header belongs into a .cpp file"
    if not any((root / base / included).is_file() for base in ("include", "src", ".")):
        if included.startswith(tuple(m.prefix for m in modules.values()) + ("tandem/",)) and ".pb." not in included:
            return "there is no such header"
        if module is None and "/" in included and not included.startswith(("absl/status/", "base/")):
            return "a contract includes no third-party header but absl status"
        return ""
    if included.startswith("tandem/"):
        allowed = module is None or included == "tandem/types.h" or included.removeprefix("tandem/") in module.contracts
        return "" if allowed else f"this contract is not {module.name}'s to see"
    owner = next((m for m in modules.values() if included.startswith(m.prefix)), None)
    if module is None:
        return "" if owner is not None and owner.name == "base" else "a contract includes contracts and base only"
    if owner is None:
        return "it belongs to no module"
    visible = owner is module or owner.name == "base" or owner.name in module.deps
    return "" if visible else f"{owner.name} is not among {module.name}'s DEPS"


def main(root, modules_file):
    root = pathlib.Path(root)
    lines = pathlib.Path(modules_file).read_text(encoding="utf-8").splitlines()
    modules = {module.name: module for module in map(Module, lines)}
    problems = list(dependency_problems(modules))
    paths = source_tree.files(root, ["include", "src", "kernels"], source_tree.HEADERS | source_tree.SOURCES)
    for path in paths:
        if path.parent.as_posix() in ("src", "src/cli"):  # the composition root sees everything
            continue
        is_contract = path.parts[0] == "include"
        module = None if is_contract else module_of(path, modules)
        if module is None and not is_contract:
            problems.append(f"{path}: is in no module; declare it with tandem_module()")
            continue
        text = (root / path).read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            reason = fault(path, match[1][1:-1], root, module, modules)
            if reason:
                line = text.count("\n", 0, match.start(1)) + 1
                problems.append(f"{path}:{line}: {match[1]}: {reason}")
    return source_tree.report(problems, len(paths), "layers")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
