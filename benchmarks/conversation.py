# SPDX-License-Identifier: MIT
"""A rank's end of its conversation with the parent (processes.py): lines of JSON through stdin and stdout."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def first_line(spec: DataclassInstance) -> str:
    """What the parent says first: what the rank is to do."""
    return json.dumps(dataclasses.asdict(spec)) + "\n"


def _private_stdout() -> TextIO:
    """The pipe to the parent, out of reach of libraries that print: what they print goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe


def converse(take_part: Callable[[TextIO], None]) -> None:
    """Has the rank take part, with the pipe to the parent. An exception ends the process, after ``{"error": …}``."""
    out = _private_stdout()
    try:
        take_part(out)
    except Exception as error:  # whatever it is, the parent is to print it
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out)
        os._exit(1)  # not through torch, whose exit waits for its peers
