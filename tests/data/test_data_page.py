# SPDX-License-Identifier: MIT
"""The examples of docs/data.md and of the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import bagua_net.data

_PAGE = Path(__file__).parents[2] / "docs" / "data.md"
_BLOCKS = re.findall(r"^```python\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
_MODULES = [f"bagua_net.data.{module.name}" for module in pkgutil.iter_modules(bagua_net.data.__path__)]


def test_the_page_has_examples() -> None:
    assert len(_BLOCKS) == 3


@pytest.mark.parametrize("block", _BLOCKS, ids=lambda block: re.findall(r"import (\w+)$", block, re.MULTILINE)[0])
def test_an_example_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = {"__name__": "example"}
    exec(compile(block, str(_PAGE), "exec"), names)
    if "loader" in names:
        assert len(list(names["loader"])) > 0


@pytest.mark.parametrize("name", _MODULES)
def test_docstrings_are_right(name: str) -> None:
    module = importlib.import_module(name)
    import torch

    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
