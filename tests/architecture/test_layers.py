# SPDX-License-Identifier: MIT
"""The library's layers: folders include only what docs/architecture.md allows, and no module is in a cycle."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugin"
PAGE = ROOT / "docs" / "architecture.md"
PUBLIC = "bagua_net.h"

_INCLUDE = re.compile(r'^#include "(?P<path>[^"]+)"', re.MULTILINE)
_ROW = re.compile(r"^\| `(?P<folder>[\w]+)/?` \| (?P<allowed>[^|]+) \|", re.MULTILINE)


def _sources() -> list[Path]:
    return sorted(path for path in PLUGIN.rglob("*.*") if path.suffix in (".c", ".h", ".def"))


@functools.cache
def _allowed() -> dict[str, set[str]]:
    """The page's table: folder -> the folders, and the public header, that it may include."""
    table = PAGE.read_text().partition("| folder | may include |")[2].partition("\n\n")[0]
    return {row["folder"]: set(re.findall(r"`([\w.]+)/?`", row["allowed"])) for row in _ROW.finditer(table)}


def _includes(path: Path) -> list[str]:
    return [found["path"] for found in _INCLUDE.finditer(path.read_text())]


def _folder(include: str) -> str:
    return include if include == PUBLIC else include.partition("/")[0]


def _violations(folder: str, includes: Iterable[str], allowed: Mapping[str, set[str]]) -> list[str]:
    return [each for each in includes if _folder(each) not in allowed[folder] | {folder}]


def _cycles(arrows: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The strongly connected components with two or more nodes."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        found: set[str] = set()
        todo = [start]
        while todo:
            for end in arrows.get(todo.pop(), set()) - found:
                found.add(end)
                todo.append(end)
        reached[start] = found
    groups = {
        frozenset(other for other in reached if other in reached[node] and node in reached[other]) for node in reached
    }
    return {group for group in groups if len(group) > 1}


def _modules() -> dict[str, set[str]]:
    """A module is X.c with X.h and has the arrows of both."""
    arrows: dict[str, set[str]] = {}
    for path in _sources():
        name = str(path.relative_to(PLUGIN).with_suffix(""))
        found = {str(Path(each).with_suffix("")) for each in _includes(path)}
        arrows.setdefault(name, set()).update(found - {name})
    return arrows


def test_every_folder_is_in_the_table() -> None:
    folders = {path.name for path in PLUGIN.iterdir() if path.is_dir()}
    assert set(_allowed()) == folders
    assert {path.name for path in PLUGIN.iterdir() if path.is_file()} == {PUBLIC, "bagua_net.map", "CMakeLists.txt"}


def test_the_table_has_no_cycles() -> None:
    assert _cycles({folder: ends - {PUBLIC} for folder, ends in _allowed().items()}) == set()


def _label(path: Path) -> str:
    return str(path.relative_to(PLUGIN))


@pytest.mark.parametrize("path", [path for path in _sources() if path.parent != PLUGIN], ids=_label)
def test_a_file_includes_only_what_its_folder_may(path: Path) -> None:
    folder = path.relative_to(PLUGIN).parts[0]
    assert _violations(folder, _includes(path), _allowed()) == []
    assert [each for each in _includes(path) if not (PLUGIN / each).is_file()] == [], "written from plugin/"


def test_the_table_allows_no_more_than_is_used() -> None:
    used: dict[str, set[str]] = {folder: set() for folder in _allowed()}
    for path in _sources():
        folder = path.relative_to(PLUGIN).parts[0]
        if path.parent != PLUGIN:
            used[folder] |= {_folder(each) for each in _includes(path)} - {folder}
    assert used == _allowed()


def test_no_module_is_in_a_cycle() -> None:
    assert _cycles(_modules()) == set()


@pytest.mark.parametrize(
    "path",
    [path for path in _sources() if path.suffix == ".c" and path.with_suffix(".h").exists()],
    ids=_label,
)
def test_a_source_includes_its_own_header_first(path: Path) -> None:
    """This shows that every header is self-contained."""
    assert _includes(path)[:1] == [str(path.relative_to(PLUGIN).with_suffix(".h"))]


def test_an_arrow_upwards_is_a_violation() -> None:
    assert _violations("transport", ["engine/engine.h", "base/list.h"], _allowed()) == ["engine/engine.h"]


def test_cycles_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert _cycles(arrows) == {frozenset("abc")}
