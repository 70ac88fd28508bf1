# SPDX-License-Identifier: MIT
"""What mkdocs does for the documents' site: pages from outside docs/, links between all of them, and the last tab.

A page's links are those of the repository. On the site they lead to the site's page of the same file, or else to the
file in the public repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]

#: Pages outside docs/, by the names that they have on the site.
OUTSIDE = {
    "index.md": "README.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples.md": "examples/README.md",
    "benchmarks.md": "benchmarks/README.md",
}
#: docs/README.md is an index of what the site's navigation has.
INDEX = "docs/README.md"

_REPOSITORY = re.compile(r'^Repository = "(.*)"$', re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_PICTURE = re.compile(r'(?P<name>src|srcset)="(?!\w+:)(?P<path>[^"]+)"')
_FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The repository's address stands in pyproject.toml."""
    (config.repo_url,) = _REPOSITORY.findall((ROOT / "pyproject.toml").read_text())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside, and below the last tab those that mkdocs.yml does not name."""
    for name, path in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    assert config.nav
    named = {page for tab in config.nav for pages in tab.values() for page in pages}
    (last,) = config.nav[-1].values()
    last += sorted({file.src_uri for file in files.documentation_pages()} - named)
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """The text with the site's links; code has none."""
    own = page.file.src_uri
    directory = posixpath.dirname(OUTSIDE.get(own, f"docs/{own}"))

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(directory, found["path"]))
        if not (ROOT / target).exists():
            return found[0]  # and mkdocs says so
        return f"]({_address(target, own, config, files)}{found['anchor'] or ''})"

    def picture(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(directory, found["path"]))
        return f'{found["name"]}="{_address(target, own, config, files)}"'

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _PICTURE.sub(picture, _LINK.sub(link, part)) for part in parts)


def _address(target: str, own: str, config: MkDocsConfig, files: Files) -> str:
    """Of a file of the repository, from one of the site's pages."""
    inside = {path: name for name, path in OUTSIDE.items()} | {INDEX: "index.md"}
    name = inside.get(target, target.removeprefix("docs/") if target.startswith("docs/") else "")
    if name and files.get_file_from_path(name):
        return posixpath.relpath(name, posixpath.dirname(own) or ".")
    return f"{config.repo_url}/blob/main/{target}"
