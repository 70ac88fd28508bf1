# SPDX-License-Identifier: MIT
"""The graph of imports in a source tree, read from the sources: imports in functions and for type checkers included.

    graph = imports.graph(ROOT / "python")
    assert "bagua_net._errors" in graph["bagua_net._native.library"]

Python also imports the packages that contain a module. These are not edges: every package whose __init__ imports a
module of its own would form a circle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

Graph = Mapping[str, frozenset[str]]


def _modules(root: Path) -> dict[str, Path]:
    """Each module's file, by the module's name; a package is its __init__.py."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:  # a module of the package, or a name in it
                member = f"{base}.{alias.name}"
                yield member if member in known else base


def graph(root: Path) -> Graph:
    """The modules below root that each of them imports."""
    known = _modules(root)
    return {name: frozenset(_imported(name, path, known)) & known.keys() for name, path in known.items()}


def _reachable(start: str, edges: Graph) -> set[str]:
    """The modules that start imports, directly or through others."""
    found: set[str] = set()
    waiting = [*edges[start]]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += edges[name]
    return found


def circles(edges: Graph) -> list[list[str]]:
    """The largest groups of modules that all import each other, directly or through others; each sorted."""
    reachable = {name: _reachable(name, edges) for name in edges}
    groups = {frozenset(other for other in found if name in reachable[other]) for name, found in reachable.items()}
    return sorted(sorted(group) for group in groups if group)
