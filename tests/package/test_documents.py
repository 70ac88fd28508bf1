# SPDX-License-Identifier: MIT
"""The documents are true: parameters as the library has them, commands and options that exist, links that resolve."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import nccl_wheels

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PARAMETERS = DOCS / "parameters.md"
#: Stored results are not documents: they are what was read, in the words of their day.
FOLDERS = (ROOT, DOCS, DOCS / "dev", ROOT / "benchmarks", ROOT / "examples", ROOT / ".github")
DOCUMENTS = [document for folder in FOLDERS for document in sorted(folder.glob("*.md"))]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))

SECONDS = 60

#: A link whose target is not on another site: its text, path and anchor.
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?!\w+://)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
_HEADING = re.compile(r"^#+ +(?P<text>.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```(?P<language>\w*)\n(?P<block>.*?)^```$|`(?P<span>[^`\n]+)`", re.MULTILINE | re.DOTALL)
#: `bagua-net SUBCOMMAND ...` up to where the shell would see its end.
_COMMAND = re.compile(r"(?<![\w./-])bagua-net +(?P<name>[a-z]+|--\w+)(?P<rest>[^|&;)>\n]*)")
_LANGUAGES = ("sh", "console", "dockerfile", "")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _slug(heading: str) -> str:
    """The anchor that a heading gets: lower case, no punctuation, hyphens for blanks."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _anchors(document: Path) -> set[str]:
    return {_slug(found["text"].strip()) for found in _HEADING.finditer(_FENCE.sub("", document.read_text()))}


def _section(document: Path, heading: str) -> str:
    """The text below a second-level heading, up to the next one."""
    return document.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def _commands(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(subcommand, its options) for each `bagua-net ...` in code, spans and blocks alike."""
    for code in _CODE.finditer(text):
        if code["block"] and code["language"] not in _LANGUAGES:
            continue
        for line in (code["block"] or code["span"]).splitlines():
            if line.lstrip().startswith("#"):
                continue
            for command in _COMMAND.finditer(line):
                own = re.split(r" -- | # ", f"{command['rest']} ")[0]
                yield command["name"], tuple(word for word in own.split() if word.startswith("--"))


@functools.cache
def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bagua_net", *arguments],
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def _parameters() -> list[dict[str, str]]:
    """The library's, as the command has them."""
    rows: list[dict[str, str]] = json.loads(_run("params", "--json").stdout)
    assert rows
    return rows


# ---- what a document claims ----


def test_the_table_of_parameters_is_the_librarys() -> None:
    wanted = ["| `{name}` | {default} | {range} | {help} |".format_map(row) for row in _parameters()]
    table = PARAMETERS.read_text().partition("<!-- parameters")[2].partition("\n\n")[0]
    found = [line for line in table.splitlines() if line.startswith("| `")]
    assert found == wanted, "the table should be:\n" + "\n".join(wanted)


def test_every_command_exists() -> None:
    assert list(_commands(README.read_text()))
    for document in [*DOCUMENTS, *FORMS]:
        for command, options in sorted(set(_commands(document.read_text()))):
            shown = _run(command, "--help")
            assert shown.returncode == 0, f"{_name(document)}: bagua-net {command}: {shown.stderr}"
            missing = [each for each in options if not re.search(rf"{re.escape(each)}\b", shown.stdout)]
            assert not missing, f"{_name(document)}: bagua-net {command} has no {missing}"


def test_every_form_of_print_exists_and_is_documented() -> None:
    shown = re.search(r"Print the variables: ([\w, ]+)\.", " ".join(_run("enable", "--help").stdout.split()))
    assert shown
    forms = set(shown[1].split(", "))
    assert {form for document in DOCUMENTS for form in re.findall(r"--print (\w+)", document.read_text())} <= forms
    assert set(re.findall(r"--print (\w+)", (DOCS / "launchers.md").read_text())) == forms


def _broken(document: Path) -> Iterator[str]:
    for link in _LINK.finditer(_FENCE.sub("", document.read_text())):
        target = document.parent / link["path"] if link["path"] else document
        if not target.exists():
            yield f"{_name(document)}: {link[0]}: there is no {link['path']}"
        elif link["anchor"] and link["anchor"] not in _anchors(target):
            yield f"{_name(document)}: {link[0]}: {target.name} has no such heading"


def test_links_resolve() -> None:
    assert [each for document in DOCUMENTS for each in _broken(document)] == []


def test_the_index_has_every_page() -> None:
    index = {link["path"] for link in _LINK.finditer((DOCS / "README.md").read_text())}
    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"} <= index


def test_what_the_tests_leave_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAGUA_NET_TEST_WHEELS", raising=False)
    directory = "/".join(nccl_wheels.directory().parts[-2:])
    assert f"`~/{directory}`" in _section(DOCS / "install.md", "What tests keep on disk")


def test_the_ci_runs_the_readmes_commands() -> None:
    """They are refused where the README does not have them; here is that both are named."""
    run, lines = (ROOT / ".ci" / "steps.sh").read_text(), README.read_text().splitlines()
    for command in ("python3 -m pip install . && bagua-net bench", "python3 -m pip install '.[test]' && pytest"):
        assert command in lines
        assert f'as_in_readme "{command}"' in run
