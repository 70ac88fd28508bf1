# SPDX-License-Identifier: MIT
"""The documents are true: parameters as the library has them, commands and options that exist, links that resolve."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bagua_net._activation import launchers
from bagua_net.cli import app
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
_COMMAND = re.compile(r"(?<![\w./-])bagua-net +(?P<name>[a-z]+|--[\w-]+)(?P<rest>[^|&;)>\n]*)")
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


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each `bagua-net ...` in code, spans and blocks alike, without a command that it starts."""
    for code in _CODE.finditer(text):
        if code["block"] and code["language"] not in _LANGUAGES:
            continue
        for line in (code["block"] or code["span"]).splitlines():
            if line.lstrip().startswith("#"):
                continue
            for command in _COMMAND.finditer(line):
                yield [command["name"], *re.split(r" -- | # ", f"{command['rest']} ")[0].split()]


def _unknown(words: list[str]) -> list[str]:
    """The words that are no command, subcommand or option there."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", ()):
        command, words = command.commands[words[0]], words[1:]
    known = {"--help", *(name for option in command.params for name in option.opts)}
    strange = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    missing = words[:1] if isinstance(command, typer.core.TyperGroup) and not command.invoke_without_command else []
    return [*(word for word in missing if not word.startswith("--")), *strange]


def _parameters() -> list[dict[str, str]]:
    """The library's, as the command has them."""
    command = [sys.executable, "-m", "bagua_net", "params", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    rows: list[dict[str, str]] = json.loads(shown.stdout)
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
        for words in _commands(document.read_text()):
            assert _unknown(words) == [], f"{_name(document)}: bagua-net {' '.join(words)}"


@pytest.mark.parametrize(
    ("words", "unknown"),
    [
        ("bench nccl --libnccl x --max=4", []),
        ("bench --nccl", ["--nccl"]),
        ("bench step --op x", ["--op"]),
        ("bnch --max 4", ["bnch", "--max"]),
        ("--version", []),
    ],
)
def test_what_does_not_exist_is_noticed(words: str, unknown: list[str]) -> None:
    assert _unknown(words.split()) == unknown


def test_every_format_exists_and_is_documented() -> None:
    formats = set(launchers.FORMATS)
    named = {document: set(re.findall(r"env --format (\w+)", document.read_text())) for document in DOCUMENTS}
    assert set().union(*named.values()) == formats == named[DOCS / "launchers.md"]


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
    assert f"`~/{directory}`" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_ci_runs_the_readmes_commands() -> None:
    """They are refused where the README does not have them; here is that both are named."""
    run, lines = (ROOT / ".ci" / "steps.sh").read_text(), README.read_text().splitlines()
    for command in ("python3 -m pip install . && bagua-net bench", "python3 -m pip install '.[test]' && pytest"):
        assert command in lines
        assert f'as_in_readme "{command}"' in run
