# SPDX-License-Identifier: MIT
"""Findings of the doctor, and running its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from .._errors import BaguaNetError

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One finding. ``fix`` is empty where there is nothing to do."""

    name: str
    verdict: Verdict
    fact: str
    fix: str = ""


Checks = Iterator[Check]


def run(checks: tuple[Callable[[], Checks], ...]) -> Checks:
    """The findings of every check, in order. A check that raises becomes a finding."""
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        try:
            yield from check()
        except BaguaNetError as error:
            fact, _, fix = str(error).partition("; ")
            yield Check(name, "fail", fact, fix)
        except (OSError, ValueError) as error:
            yield Check(name, "warn", f"could not be checked: {error}", "see the reason given")
