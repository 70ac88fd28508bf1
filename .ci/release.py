#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the notes of the release that a tag names, cut from CHANGELOG.md, or says what is missing for that release.

    .ci/release.py v0.1.0 >notes.md

It reads the files of the current directory, a clone of the repository.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

#: What stands in place of the repository's address until that is known, and where.
PLACES = ("pyproject.toml", "README.md", "docs/quickstart.md")
PLACEHOLDER = "github.com/OWNER/"
#: True until the first release.
NOT_PUBLISHED = "Nothing is on PyPI yet."
#: What may change after the night that a release needs: its own result, what its fuzzers found, and texts.
AFTER_NIGHT = (":!*.md", ":!tests/fuzz/corpus/")


def version() -> str:
    """The tree's, which stands in CMakeLists.txt and nowhere else."""
    found = re.search(r"project\(bagua_net VERSION ([\d.]+)", Path("CMakeLists.txt").read_text())
    return found[1] if found else "unknown"


def section(of: str) -> tuple[str, str]:
    """What is behind the version in its heading of the changelog, and the text below it, both empty without one."""
    pattern = rf"^## \[{re.escape(of)}\](?P<date>.*)\n(?P<text>(?:(?!## ).*\n?)*)"
    found = re.search(pattern, Path("CHANGELOG.md").read_text(), re.MULTILINE)
    return (found["date"].strip(" –"), found["text"].strip()) if found else ("", "")


def missing(tag: str) -> Iterator[str]:
    """Each reason why this tree is not the release of that tag."""
    own = version()
    if tag != f"v{own}":
        yield f"the tag is {tag}, and CMakeLists.txt has version {own}, whose tag is v{own}"
    date, text = section(own)
    if not text:
        yield f"CHANGELOG.md has no section '## [{own}] – DATE', or nothing below it"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        yield f"CHANGELOG.md has '{date}' in the heading of {own}, where the release has its date, as in 2026-01-31"
    for place in PLACES:
        if PLACEHOLDER in Path(place).read_text():
            yield f"{place} has {PLACEHOLDER}: put the owner of the public repository in place of OWNER"
    if NOT_PUBLISHED in Path("README.md").read_text():
        yield f"README.md says '{NOT_PUBLISHED}': put how to install the release in place of that"
    night = re.match(r"Commit ([0-9a-f]{40}).*: 0 of \d+ steps failed", Path(".ci/nightly.md").read_text())
    if night is None:
        yield ".ci/nightly.md is not of a whole night in which no step failed"
    else:
        yield from changed_since(night[1])


def changed_since(night: str) -> Iterator[str]:
    """Why the night of this commit is not one of this tree."""
    command = ["git", "diff", "--name-only", night, "HEAD", "--", ".", *AFTER_NIGHT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f".ci/nightly.md is of the commit {night}, which is not in this clone"
    elif files := done.stdout.split():
        yield f".ci/nightly.md is of the commit {night}, and {len(files)} files changed since: {', '.join(files[:3])}"


def notes(tag: str) -> str:
    """The section, as a release's page shows it: a line break there is one, and relative links lead nowhere."""
    address = re.search(r'^Repository = "(.*)"', Path("pyproject.toml").read_text(), re.MULTILINE)
    assert address, "pyproject.toml has no Repository"
    text = re.sub(r"\n {2,}(?=\S)", " ", section(version())[1])
    return re.sub(r"\]\((?!https?://|#)", f"]({address[1]}/blob/{tag}/", text)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: .ci/release.py TAG")
    reasons = list(missing(sys.argv[1]))
    if reasons:
        sys.exit("\n".join(reasons))
    print(notes(sys.argv[1]))


if __name__ == "__main__":
    main()
