# SPDX-License-Identifier: MIT
"""The documents are true: parameters as the library has them, commands and options that exist, links that resolve."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nccl_wheels
import pytest

from bagua_net._activation import launchers
from bagua_net._settings import parameters

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *(ROOT / "benchmarks" / name for name in ("README.md", "LOG.md"))]
DOCUMENTS += [ROOT / directory / "README.md" for directory in ("plugin", "examples")]

HELP_SECONDS = 60

#: A link whose target is not on another site: its text, path and anchor.
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?!\w+://)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
_HEADING = re.compile(r"^#+ +(?P<text>.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```(?P<language>\w*)\n(?P<block>.*?)^```$|`(?P<span>[^`\n]+)`", re.MULTILINE | re.DOTALL)
#: `bagua-net SUBCOMMAND ...` up to where the shell would see its end.
_COMMAND = re.compile(r"(?<![\w./-])bagua-net +(?P<name>[a-z]+|--\w+)(?P<rest>[^|&;)>\n]*)")
_LANGUAGES = ("sh", "console", "dockerfile", "")


def _slug(heading: str) -> str:
    """The anchor that a heading gets: lower case, no punctuation, hyphens for blanks."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _anchors(document: Path) -> set[str]:
    return {_slug(found["text"].strip()) for found in _HEADING.finditer(_FENCE.sub("", document.read_text()))}


def _commands(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(subcommand, its options) for each `bagua-net ...` in code, spans and blocks alike."""
    for code in _CODE.finditer(text):
        if code["block"] and code["language"] not in _LANGUAGES:
            continue
        for line in (code["block"] or code["span"]).splitlines():
            if line.lstrip().startswith("#"):
                continue
            for command in _COMMAND.finditer(line):
                own = re.split(r" -- ", f"{command['rest']} ")[0]
                yield command["name"], tuple(word for word in own.split() if word.startswith("--"))


@functools.cache
def _help(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bagua_net", command, "--help"],
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=HELP_SECONDS,
    )


def test_the_table_of_parameters_is_the_librarys() -> None:
    wanted = [f"| `{row.name}` | {row.default} | {row.range} | {row.help} |" for row in parameters.read()]
    table = README.read_text().partition("<!-- parameters")[2].partition("\n\n")[0]
    found = [line for line in table.splitlines() if line.startswith("| `")]
    assert found == wanted, "the table should be:\n" + "\n".join(wanted)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_exists(document: Path) -> None:
    found = set(_commands(document.read_text()))
    assert found or document != README
    for command, options in sorted(found):
        shown = _help(command)
        assert shown.returncode == 0, f"bagua-net {command}: {shown.stderr}"
        for option in options:
            assert re.search(rf"{re.escape(option)}\b", shown.stdout), f"bagua-net {command} has no {option}"


def test_every_form_of_print_exists() -> None:
    named = set(re.findall(r"--print (\w+)", README.read_text()))
    assert named
    assert named <= set(launchers.FORMS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document: Path) -> None:
    for link in _LINK.finditer(_FENCE.sub("", document.read_text())):
        target = document.parent / link["path"] if link["path"] else document
        assert target.exists(), f"{link[0]}: there is no {link['path']}"
        if link["anchor"]:
            assert link["anchor"] in _anchors(target), f"{link[0]}: {target.name} has no such heading"


def test_what_the_tests_leave_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAGUA_NET_TEST_WHEELS", raising=False)
    directory = "/".join(nccl_wheels._directory().parts[-2:])
    undo = README.read_text().partition("\n## Undo\n")[2].partition("\n## ")[0]
    assert f"`~/{directory}`" in undo


def test_the_ci_runs_the_readmes_commands() -> None:
    """.ci/run refuses a command that the README has not; here is that it names both."""
    run, lines = (ROOT / ".ci" / "run").read_text(), README.read_text().splitlines()
    for command in ("python3 -m pip install . && bagua-net bench", "python3 -m pip install '.[test]' && pytest"):
        assert command in lines
        assert f'as_in_readme "{command}"' in run
