# SPDX-License-Identifier: MIT
"""The pool of ranks that the tests share: which ranks live, and how they end."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.pool import Pool

if TYPE_CHECKING:
    from tests.support.rank import Here


def process_id(_: Here) -> int:
    return os.getpid()


def say_to_stdout(_: Here) -> None:
    print("a word", file=sys.__stdout__, flush=True)


def test_those_used_longest_ago_end_for_others() -> None:
    with Pool(most=3) as pool:
        two, one = pool.of(2), pool.of(1)
        pids = two.run(process_id)
        assert pool.of(1) is one
        assert pool.of(2) is two
        assert one.run(process_id) != pids
        other = pool.of(2, hosts=2)
        assert pool.of(2, hosts=2) is other
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert pool.of(1) is not one, "two and two are more than three, so all had to end"


def test_no_more_end_than_must() -> None:
    with Pool(most=4) as pool:
        one, two, other = pool.of(1), pool.of(2), pool.of(1, hosts=2)
        assert pool.of(1) is one
        pool.of(2, hosts=2)
        assert pool.of(1) is one
        assert pool.of(1, hosts=2) is other
        assert pool.of(2) is not two


def test_ranks_that_end_badly_are_reported() -> None:
    with Pool(most=1) as pool:
        pool.of(1).run(say_to_stdout)
        with pytest.raises(AssertionError, match=r"the 1 ranks on 1 hosts .* rank 0 wrote to stdout: a word"):
            pool.of(1, hosts=2)
        pool.of(1).run(say_to_stdout)
        with pytest.raises(AssertionError, match="wrote to stdout"):
            pool.__exit__(None, None, None)
