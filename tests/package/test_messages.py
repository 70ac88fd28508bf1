# SPDX-License-Identifier: MIT
"""docs/troubleshooting.md quotes messages that the sources have."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"

#: Messages of NCCL, torch and CMake.
_OF_OTHERS = {
    "can't start new thread",  # Python
    "Could not force merge NICs",
    "Failed to initialize any NET plugin",
    "result.isTensorList() INTERNAL ASSERT FAILED",
    "CMake Error at CMakeLists.txt",
}
#: Whose words are put together from several strings.
_COMPOSED = {"sends to … go with a copy: …", "… has no connection to rank N … after S s"}
#: A string of C, and those that follow it directly. A name between two, such as PRIu64, is a value.
_C_STRINGS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*(?:PRI\w+\s*)?"(?:[^"\\\n]|\\.)*")*')
_C_VALUE = re.compile(r'%[-+ #0-9.*]*(?:hh|h|ll|l|z|j)?[a-zA-Z]|"\s*PRI\w+\s*"')
_WORD = re.compile(r"[A-Za-z_][\w'-]*")
_SPAN = re.compile(r"`([^`]+)`")
#: What stands for a value in a quoted message.
_VALUE = re.compile(r"…|[\w~/-]*[._/=][\w./=-]+|\b(?:ADDRESS|COMMAND|IF|NAME|PATH|RANGE|REASON|VALUE|[A-Z])\b")
#: So many words in a row, or all between two values, are in one string of the sources; and so much of a message.
_ROW, _PART = 4, 0.6


def _of_python(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield " \0 ".join(str(each.value) for each in node.values if isinstance(each, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _of_c(path: Path) -> Iterator[str]:
    for found in _C_STRINGS.finditer(path.read_text()):
        yield re.sub(r'"\s*"', "", _C_VALUE.sub(" \0 ", found[0])).strip('"')


def _rows_of(words: list[str], length: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    return ((at, tuple(words[at : at + length])) for at in range(len(words) - length + 1))


@functools.cache
def _rows() -> frozenset[tuple[str, ...]]:
    """The rows of up to so many words in the sources' strings."""
    texts = [text for path in (ROOT / "python").rglob("*.py") for text in _of_python(path)]
    texts += [text for folder in ("plugin", "host") for path in (ROOT / folder).rglob("*.[ch]") for text in _of_c(path)]
    parts = [_WORD.findall(part) for text in texts for part in text.split("\0")]
    return frozenset(row for words in parts for length in range(1, _ROW + 1) for _, row in _rows_of(words, length))


def _is_in_the_sources(message: str) -> bool:
    parts = [_WORD.findall(part) for part in _VALUE.split(message)]
    found = 0
    for words in parts:
        length = min(_ROW, len(words))
        here = {at + step for at, row in _rows_of(words, length) if row in _rows() for step in range(length)}
        found += len(here)
    return found >= _PART * sum(map(len, parts))


def _messages() -> list[str]:
    """What the first cells of the page's tables quote."""
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [span for cell in cells for span in _SPAN.findall(cell) if span not in _OF_OTHERS | _COMPOSED]


def test_every_message_that_is_quoted_is_one_of_ours() -> None:
    assert len(_messages()) > 50
    assert [message for message in _messages() if not _is_in_the_sources(message)] == []


def test_a_message_that_was_removed_is_found() -> None:
    assert not _is_in_the_sources("serves CPU tensors and shares a group with no other")
