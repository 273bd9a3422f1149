"""No reported fault is forgotten."""
import importlib
import pathlib

from .registry import CASES, CHECKED


def test_every_reported_fault_has_a_check():
    for module in pathlib.Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"cases.{module.stem}")
    assert CHECKED == CASES.keys(), f"without a check: {sorted(CASES.keys() - CHECKED)}"
