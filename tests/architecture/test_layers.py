# SPDX-License-Identifier: MIT
"""The layers of the libraries: folders include only what their page allows, and no module is in a cycle."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_INCLUDE = re.compile(r'^#include "(?P<path>[^"]+)"', re.MULTILINE)
_ROW = re.compile(r"^\| `(?P<folder>[\w]+)/?` \| (?P<allowed>[^|]+) \|", re.MULTILINE)


@dataclass(frozen=True)
class Tree:
    """A library's sources, and the page with the table of its layers."""

    folder: Path
    page: Path
    top: frozenset[str]
    """All files at the top."""

    def __str__(self) -> str:
        return self.folder.name

    def sources(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*.*") if path.suffix in (".c", ".h", ".def"))

    @functools.cache  # noqa: B019 (there are three trees)
    def allowed(self) -> dict[str, set[str]]:
        """The page's table: folder -> the folders and public headers that it may include."""
        table = self.page.read_text().partition("| folder | may include |")[2].partition("\n\n")[0]
        return {row["folder"]: set(re.findall(r"`([\w.]+)/?`", row["allowed"])) for row in _ROW.finditer(table)}

    def end(self, include: str) -> str:
        """What an include names in the table: a folder, or a public header."""
        return include.partition("/")[0]

    def violations(self, folder: str, includes: Iterable[str]) -> list[str]:
        return [each for each in includes if self.end(each) not in self.allowed()[folder] | {folder}]

    def modules(self) -> dict[str, set[str]]:
        """A module is X.c with X.h and has the arrows of both."""
        arrows: dict[str, set[str]] = {}
        for path in self.sources():
            name = str(path.relative_to(self.folder).with_suffix(""))
            found = {str(Path(each).with_suffix("")) for each in _includes(path)}
            arrows.setdefault(name, set()).update(found - {name})
        return arrows


PLUGIN = Tree(
    ROOT / "plugin",
    ROOT / "docs" / "dev" / "architecture.md",
    frozenset({"bagua_net.h", "bagua_net.map", "CMakeLists.txt"}),
)
HOST = Tree(
    ROOT / "host",
    ROOT / "docs" / "dev" / "collectives.md",
    frozenset({"bagua_net_host.h", "bagua_net_host.map", "version.c", "CMakeLists.txt"}),
)
EMULATOR = Tree(
    ROOT / "emulator",
    ROOT / "docs" / "dev" / "emulator.md",
    frozenset({"bagua_net_emulator.h", "emulator.c", "bagua_net_emulator.map", "CMakeLists.txt"}),
)
TREES = (PLUGIN, HOST, EMULATOR)
COMMON = ROOT / "common"


def _includes(path: Path) -> list[str]:
    return [found["path"] for found in _INCLUDE.finditer(path.read_text())]


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


each_tree = pytest.mark.parametrize("tree", TREES, ids=str)


@each_tree
def test_every_folder_is_in_the_table(tree: Tree) -> None:
    folders = {path.name for path in tree.folder.iterdir() if path.is_dir()}
    assert set(tree.allowed()) == folders
    assert {path.name for path in tree.folder.iterdir() if path.is_file()} == tree.top


@each_tree
def test_the_table_has_no_cycles(tree: Tree) -> None:
    assert _cycles({folder: ends & set(tree.allowed()) for folder, ends in tree.allowed().items()}) == set()


@each_tree
def test_a_file_includes_only_what_its_folder_may(tree: Tree) -> None:
    for path in tree.sources():
        if path.parent != tree.folder:
            folder = path.relative_to(tree.folder).parts[0]
            assert tree.violations(folder, _includes(path)) == [], path
            roots = [tree.folder, ROOT] if "common" in tree.allowed()[folder] else [tree.folder]
            if "bagua_net_host.h" in tree.allowed()[folder]:
                roots.append(HOST.folder)
            missing = [each for each in _includes(path) if not any((root / each).is_file() for root in roots)]
            assert missing == [], f"{path}: written from {tree}/"


@each_tree
def test_the_table_allows_no_more_than_is_used(tree: Tree) -> None:
    used: dict[str, set[str]] = {folder: set() for folder in tree.allowed()}
    for path in tree.sources():
        folder = path.relative_to(tree.folder).parts[0]
        if path.parent != tree.folder:
            used[folder] |= {tree.end(each) for each in _includes(path)} - {folder}
    assert used == tree.allowed()


def test_what_is_common_knows_neither_library() -> None:
    sources = [path for path in COMMON.iterdir() if path.suffix in (".c", ".h")]
    assert [each for path in sources for each in _includes(path) if not each.startswith("common/")] == []


@each_tree
def test_no_module_is_in_a_cycle(tree: Tree) -> None:
    assert _cycles(tree.modules()) == set()


@each_tree
def test_a_source_includes_its_own_header_first(tree: Tree) -> None:
    """This shows that every header is self-contained."""
    for path in tree.sources():
        if path.suffix == ".c" and path.with_suffix(".h").exists():
            assert _includes(path)[:1] == [str(path.relative_to(tree.folder).with_suffix(".h"))], path


def test_an_arrow_upwards_is_a_violation() -> None:
    assert PLUGIN.violations("transport", ["engine/engine.h", "base/log.h"]) == ["engine/engine.h"]


def test_cycles_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert _cycles(arrows) == {frozenset("abc")}
