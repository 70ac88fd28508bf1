# SPDX-License-Identifier: MIT
"""The manual page is what the command line and the library's parameters say, and man can format it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "bagua-net.1"
_SECONDS = 60


def test_the_page_is_what_the_command_line_generates() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "man.py")], capture_output=True, text=True, timeout=_SECONDS, check=True
    )
    assert done.stdout == PAGE.read_text(), "write it again: python3 docs/man.py >docs/bagua-net.1"


@pytest.mark.gate
@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_formats_it_without_a_warning() -> None:
    command = ["groff", "-man", "-Tascii", "-ww", "-z", str(PAGE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
