# SPDX-License-Identifier: MIT
"""Does the package that the tests import match this source tree? The C drivers are always built from the sources."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python" / "bagua_net"


def differing(package: Path, sources: Path = SOURCES) -> list[str]:
    """The modules, relative to the package, that differ from the sources or exist on one side only.

    Empty where the package is the source tree itself: an editable installation, or PYTHONPATH.
    """
    if package.resolve() == sources.resolve():
        return []
    here, there = (
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.py")} for root in (package, sources)
    )
    return sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))


def problem() -> str | None:
    """What to do before the tests are meaningful; None: nothing."""
    spec = importlib.util.find_spec("bagua_net")
    if spec is None or spec.origin is None:
        return "bagua_net is not installed: python3 -m pip install '.[test]'"
    if differing(Path(spec.origin).parent):
        return "the installed bagua_net differs from the sources: python3 -m pip install '.[test]' again"
    return None
