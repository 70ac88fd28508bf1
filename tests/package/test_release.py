# SPDX-License-Identifier: MIT
"""What is released: the package's description and licences, and .ci/release.py, which looks at a tree before that."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / ".ci" / "release.py"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = re.findall(r"project\(bagua_net VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[0]
SECONDS = 60


def _change(file: Path, pattern: str, replacement: str) -> None:
    changed, times = re.subn(pattern, replacement, file.read_text(), flags=re.MULTILINE)
    assert times > 0, f"{file.name} has no {pattern}"
    file.write_text(changed)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """This one, where nothing is missing for its release."""
    (tmp_path / "docs").mkdir()
    for name in ("CMakeLists.txt", "CHANGELOG.md", "pyproject.toml", "README.md", "docs/quickstart.md"):
        text = (ROOT / name).read_text()
        (tmp_path / name).write_text(re.sub(r"github\.com/[\w-]+/bagua_net", "github.com/some-one/bagua_net", text))
    _change(tmp_path / "CHANGELOG.md", rf"^(## \[{VERSION}\]).*", r"\1 – 2026-01-31")
    readme = tmp_path / "README.md"
    readme.write_text(readme.read_text().replace(" Nothing is on PyPI yet.", ""))
    _git(tmp_path, "init", "-q")
    _commit(tmp_path)
    (tmp_path / ".ci").mkdir()
    night = _git(tmp_path, "rev-parse", "HEAD").strip()
    (tmp_path / ".ci" / "nightly.md").write_text(f"Commit {night}, 2026-01-30, …: 0 of 16 steps failed.\n")
    _commit(tmp_path)
    return tmp_path


def _git(tree: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def _commit(tree: Path) -> None:
    _git(tree, "add", "--all")
    _git(tree, "commit", "-q", "-m", "a change")


def _release(tree: Path, tag: str = f"v{VERSION}") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RELEASE), tag]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=SECONDS)


def test_the_notes_are_the_section_of_the_changelog(tree: Path) -> None:
    _change(tree / "CHANGELOG.md", r"^## \[", "## [9.9.9] – 2027-01-31\n\nNot yet.\n\n## [")
    done = _release(tree)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The first release.\n\n### Added\n\n- **The plugin** ")
    assert "9.9.9" not in done.stdout
    assert "\n  " not in done.stdout  # a line break would be one on the release's page
    links = re.findall(r"\]\(([^)]*)\)", done.stdout)
    assert f"https://github.com/some-one/bagua_net/blob/v{VERSION}/docs/algorithms.md" in links
    assert all(link.startswith("https://") for link in links)


@pytest.mark.parametrize(
    ("file", "pattern", "replacement", "said"),
    [
        ("CMakeLists.txt", rf"VERSION {VERSION}", "VERSION 9.9.9", f"the tag is v{VERSION}, and CMakeLists.txt has"),
        ("CHANGELOG.md", rf"^## \[{VERSION}\]", "## [9.9.9]", f"CHANGELOG.md has no section '## [{VERSION}] – DATE'"),
        ("CHANGELOG.md", r" – 2026-01-31$", " – unreleased", "CHANGELOG.md has 'unreleased' in the heading"),
        (
            "pyproject.toml",
            r"^Issues = .*",
            'Issues = "https://github.com/OWNER/x"',
            "pyproject.toml has github.com/OWNER/",
        ),
        ("README.md", r"github\.com/some-one/", "github.com/OWNER/", "README.md has github.com/OWNER/"),
        ("README.md", r"^## Status", "Nothing is on PyPI yet.", "README.md says 'Nothing is on PyPI yet.'"),
        (".ci/nightly.md", r": 0 of", ": 1 of", ".ci/nightly.md is not of a whole night"),
        (".ci/nightly.md", r"Commit [0-9a-f]{8}", "Commit 01234567", "which is not in this clone"),
    ],
)
def test_what_is_missing_is_said(tree: Path, file: str, pattern: str, replacement: str, said: str) -> None:
    _change(tree / file, pattern, replacement)
    done = _release(tree)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stdout == ""


def test_the_night_is_of_this_code(tree: Path) -> None:
    _change(tree / "README.md", r"^## Status", "## Its status")
    _commit(tree)
    assert _release(tree).returncode == 0  # a text
    _change(tree / "CMakeLists.txt", r"^project", "# changed\nproject")
    _commit(tree)
    done = _release(tree)
    assert done.returncode == 1
    assert ", and 1 files changed since: CMakeLists.txt" in done.stderr


def test_all_that_is_missing_is_said_at_once(tree: Path) -> None:
    _change(tree / "CHANGELOG.md", r" – 2026-01-31$", " – unreleased")
    assert len(_release(tree, "v9.9.9").stderr.splitlines()) == 2


def _steps(of: object) -> list[dict[str, str]]:
    """Those of a workflow, or of any part of one."""
    if isinstance(of, dict):
        return ([of] if "uses" in of else []) + [step for value in of.values() for step in _steps(value)]
    return [step for each in of for step in _steps(each)] if isinstance(of, list) else []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_actions_of_one_commit(workflow: Path) -> None:
    used = [step["uses"] for step in _steps(yaml.safe_load(workflow.read_text()))]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []


# ---- the installed package ----


@pytest.fixture
def described() -> Callable[[str], str]:
    found = importlib.metadata.metadata("bagua-net").json
    return lambda key: str(found[key])


def test_the_descriptions_links_lead_to_the_releases_files(described: Callable[[str], str]) -> None:
    text = described("description")
    others = set(re.findall(r"\]\((https://[^)]*)\)", (ROOT / "README.md").read_text()))
    links = [each for each in re.findall(r"\]\(([^)]*)\)", text) if each not in others]
    assert len(links) > 10
    files = [
        re.fullmatch(rf"https://github\.com/[\w-]+/bagua_net/blob/v{VERSION}/([\w./-]+)(#\S+)?", each) for each in links
    ]
    assert [each for each, file in zip(links, files, strict=True) if not file or not (ROOT / file[1]).exists()] == []
    pictures = re.findall(r'(?:src|srcset)="([^"]*)"', text)
    assert len(pictures) == len(re.findall("<img|<source", text)) > 0
    for each in pictures:
        file = re.fullmatch(rf"https://raw\.githubusercontent\.com/[\w-]+/bagua_net/v{VERSION}/([\w./-]+)", each)
        assert file, each
        assert (ROOT / file[1]).exists()


def test_the_package_has_its_licences() -> None:
    files = importlib.metadata.files("bagua-net") or []
    texts = {file.name: file.read_text() for file in files if "licenses" in file.parts}
    assert texts == {name: (ROOT / name).read_text() for name in ("LICENSE", "NOTICE")}
