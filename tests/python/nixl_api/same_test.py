"""NIXL 1.5.1 and kvxfer's drop-in do the same: every case of cases_*.py, call by call."""

import ast
from pathlib import Path

import pytest
from nixl_comparison import MODULES, has_nixl, records


def _marks(module: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.torch] if module == "cases_tensors" else []


def _cases() -> list:
    """By their names alone: some import what is not everywhere."""
    named = []
    for module in MODULES:
        tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text())
        for name in (node.name for node in tree.body if isinstance(node, ast.FunctionDef)):
            if name.startswith("case_"):
                label = f"{module.removeprefix('cases_')}-{name.removeprefix('case_')}"
                named.append(pytest.param(module, name, id=label, marks=_marks(module)))
    return named


@pytest.mark.parametrize(("module", "case"), _cases())
def test_same(module: str, case: str) -> None:
    real, ours = records(module)
    lines = ours.lines(case)
    assert lines, "the case wrote nothing down"
    assert not [line for line in lines if "DOES NOT HOLD" in line]
    if real is not None:
        assert lines == real.lines(case)
    if not has_nixl():
        pytest.skip("NIXL is not installed: the drop-in ran alone (pip install nixl==1.5.1)")


@pytest.mark.parametrize("module", [pytest.param(each, marks=_marks(each)) for each in MODULES])
def test_drop_in_exits_cleanly(module: str) -> None:
    _, ours = records(module)
    assert ours.exit_code == 0, ours.end_of_text
