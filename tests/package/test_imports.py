# SPDX-License-Identifier: MIT
"""The package's structure: imports form no circle, and each subpackage imports only those that it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.package import imports

ROOT = Path(__file__).resolve().parents[2]
GRAPH = imports.graph(ROOT / "python")

#: The parts that each part may import, lowest first. A part is a module, or a subpackage with everything in it that has
#: no row of its own.
ALLOWED: dict[str, set[str]] = {
    "bagua_net._errors": set(),
    "bagua_net._sizes": set(),
    "bagua_net._text": set(),
    "bagua_net._torch_backend": set(),
    "bagua_net._torch_internals": {"bagua_net._torch_backend"},
    "bagua_net._untraced": {"bagua_net._torch_internals"},
    "bagua_net.data": {"bagua_net._errors"},
    "bagua_net._native": {"bagua_net._errors"},
    "bagua_net._nccl": {"bagua_net._errors", "bagua_net._native"},
    "bagua_net._settings": {"bagua_net._errors", "bagua_net._native", "bagua_net._nccl"},
    "bagua_net._stats": {"bagua_net._errors", "bagua_net._settings", "bagua_net._text"},
    "bagua_net._machine": {"bagua_net._errors", "bagua_net._native", "bagua_net._settings"},
    "bagua_net._activation": {
        "bagua_net._errors",
        "bagua_net._machine",
        "bagua_net._native",
        "bagua_net._nccl",
        "bagua_net._settings",
    },
    "bagua_net._doctor": {
        "bagua_net._activation",
        "bagua_net._errors",
        "bagua_net._machine",
        "bagua_net._native",
        "bagua_net._nccl",
        "bagua_net._settings",
        "bagua_net._sizes",
    },
    "bagua_net.torch": {
        "bagua_net._native",
        "bagua_net._settings",
        "bagua_net._torch_backend",
        "bagua_net._torch_internals",
        "bagua_net._untraced",
    },
    "bagua_net.algorithms._codec": {"bagua_net._native"},
    "bagua_net.algorithms": {"bagua_net._untraced", "bagua_net.algorithms._codec", "bagua_net.torch"},
    "bagua_net._lightning": {"bagua_net.algorithms", "bagua_net.torch"},
    "bagua_net.lightning": {"bagua_net._lightning"},
    "bagua_net.pytorch_lightning": {"bagua_net._lightning"},
    "bagua_net.compat": {"bagua_net.algorithms", "bagua_net.data", "bagua_net.torch"},
    "bagua_net._bench.workload": set(),
    "bagua_net._bench.transports": {
        "bagua_net._activation",
        "bagua_net._bench.workload",
        "bagua_net._errors",
        "bagua_net._machine",
        "bagua_net._native",
        "bagua_net._nccl",
        "bagua_net._torch_backend",
        "bagua_net.torch",
    },
    "bagua_net._bench.ranks": {
        "bagua_net._bench.transports",
        "bagua_net._bench.workload",
        "bagua_net._errors",
        "bagua_net._machine",
        "bagua_net._nccl",
        "bagua_net._text",
    },
    "bagua_net._doctor.peers": {
        "bagua_net._activation",
        "bagua_net._bench.ranks",
        "bagua_net._doctor",
        "bagua_net._errors",
        "bagua_net._machine",
        "bagua_net._native",
        "bagua_net._settings",
    },
    "bagua_net._bench.output": {
        "bagua_net._bench.ranks",
        "bagua_net._bench.workload",
        "bagua_net._errors",
        "bagua_net._sizes",
    },
    "bagua_net._bench.calculation": {
        "bagua_net._bench.output",
        "bagua_net._bench.workload",
        "bagua_net._native",
    },
    "bagua_net._bench": {
        "bagua_net._bench.output",
        "bagua_net._bench.ranks",
        "bagua_net._bench.transports",
        "bagua_net._bench.workload",
        "bagua_net._errors",
        "bagua_net._machine",
        "bagua_net._settings",
        "bagua_net._sizes",
    },
    "bagua_net._cli": {
        "bagua_net._activation",
        "bagua_net._bench",
        "bagua_net._bench.calculation",
        "bagua_net._bench.output",
        "bagua_net._bench.ranks",
        "bagua_net._bench.workload",
        "bagua_net._doctor",
        "bagua_net._doctor.peers",
        "bagua_net._errors",
        "bagua_net._machine",
        "bagua_net._native",
        "bagua_net._settings",
        "bagua_net._sizes",
        "bagua_net._stats",
        "bagua_net._text",
    },
    "bagua_net.cli": {"bagua_net._cli", "bagua_net._errors", "bagua_net._native"},
    "bagua_net.__main__": {"bagua_net.cli"},
    "bagua_net": {"bagua_net._activation", "bagua_net._errors", "bagua_net._native", "bagua_net._settings"},
    "bagua_net_autoload": {"bagua_net._torch_backend", "bagua_net.torch"},
}


def _part(module: str) -> str:
    """The row of a module. "bagua_net" is bagua_net/__init__.py alone: each module beside it has a row of its own."""
    rows = [row for row in ALLOWED if module == row or (row != "bagua_net" and module.startswith(f"{row}."))]
    assert rows, f"{module} has no row in ALLOWED"
    return max(rows, key=len)


def test_no_circle_of_modules() -> None:
    assert imports.circles(GRAPH) == []


def test_every_import_is_allowed() -> None:
    forbidden = [
        f"{module} imports {other}"
        for module, others in sorted(GRAPH.items())
        for other in sorted(others)
        if _part(other) != _part(module) and _part(other) not in ALLOWED[_part(module)]
    ]
    assert forbidden == []


def test_nothing_is_allowed_that_is_not_used() -> None:
    used: dict[str, set[str]] = {row: set() for row in ALLOWED}
    for module, others in GRAPH.items():
        used[_part(module)] |= {_part(other) for other in others} - {_part(module)}
    assert [f"{row}: {unused}" for row in ALLOWED for unused in sorted(ALLOWED[row] - used[row])] == []


def test_the_table_is_in_order() -> None:
    """A row allows rows above it alone, so that there is no circle of subpackages either."""
    above: set[str] = set()
    for row, allowed in ALLOWED.items():
        assert allowed <= above, row
        above.add(row)


# ---- the reading of the sources ----


@pytest.mark.parametrize(
    "statement",
    [
        "import package.low.leaf",
        "from package.low import leaf",
        "from package.low.leaf import name",
        "from ..low import leaf",
        "from ..low.leaf import name",
        "def later():\n    from ..low import leaf",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..low.leaf import name",
    ],
)
def test_every_form_of_import_is_seen(statement: str, tmp_path: Path) -> None:
    for name, text in {"low/leaf.py": "from ..high import top\n", "high/top.py": statement}.items():
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True)
        path.with_name("__init__.py").touch()
        path.write_text(text)
    (tmp_path / "package" / "__init__.py").touch()
    found = imports.graph(tmp_path)
    assert found["package.high.top"] == {"package.low.leaf"}
    assert imports.circles(found) == [["package.high.top", "package.low.leaf"]]
