# SPDX-License-Identifier: MIT
"""A rank's end of the pipes to its parent (processes.py): lines of JSON through stdin and stdout."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def encode(spec: DataclassInstance) -> str:
    """The first line that the parent sends: what the rank has to do."""
    return json.dumps(dataclasses.asdict(spec)) + "\n"


def _private_stdout() -> TextIO:
    """The pipe to the parent, out of reach of libraries that print: their output goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe


def serve(take_part: Callable[[TextIO], None]) -> None:
    """Runs the rank with the pipe to the parent. An exception is sent as ``{"error": …}`` and ends the process."""
    out = _private_stdout()
    try:
        take_part(out)
    except Exception as error:  # the parent prints it, whatever it is
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out)
        os._exit(1)  # not through torch's exit handlers, which wait for the peers
