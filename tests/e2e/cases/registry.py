"""The reported faults, and the decorators that say which test checks which of them.

A test of this folder is an ordinary pytest function under one of these decorators:
  @case("BC-020")                       the fault applies; the test passes or fails
  @case("BC-118", slow=True)            the same, left out of the short run (`-m "not slow"`)
  @not_applicable("BC-076", "reason")   tandem lacks the feature; the test checks that it is refused clearly
  @not_yet("BC-000", "reason")          a known fault of tandem: it must still fail, so that mending it is noticed
"""
import json
import pathlib

import pytest

FILE = pathlib.Path(__file__).resolve().parents[2] / "data" / "cases" / "reported-faults.jsonl"
with FILE.open(encoding="utf-8") as lines:  # not splitlines(): a record holds U+2029
    CASES = {record["id"]: record for record in map(json.loads, lines)}
CHECKED = set()  # ids that some test names


def case(fault, slow=False):
    assert fault in CASES, f"{fault} is not in {FILE.name}"
    CHECKED.add(fault)

    def mark(function):
        function = pytest.mark.case(fault)(function)
        return pytest.mark.slow(function) if slow else function

    return mark


def not_applicable(fault, reason):
    def mark(function):
        return pytest.mark.not_applicable(reason)(case(fault)(function))

    return mark


def not_yet(fault, reason, slow=False):
    def mark(function):
        return pytest.mark.xfail(strict=True, reason=reason, raises=AssertionError)(case(fault, slow)(function))

    return mark


def reported_body(fault, **changes):
    """The JSON body that was reported, with some fields changed. `model` is left out: tandem serves one."""
    body = {name: value for name, value in CASES[fault]["request"]["body"].items() if name != "model"}
    return body | changes
