# SPDX-License-Identifier: MIT
"""The shares of processors cover them all, without overlap where there are enough; their work is counted."""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from bagua_net._machine.processors import share, worked

_PROCESSORS = st.lists(st.integers(0, 500), min_size=1, max_size=70, unique=True)


@given(_PROCESSORS, st.integers(1, 100))
def test_shares(processors: list[int], of: int) -> None:
    parts = [share(processors, index, of) for index in range(of)]
    assert set().union(*parts) == set(processors)
    if of <= len(processors):
        assert sum(map(len, parts)) == len(processors)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert all(len(part) == 1 for part in parts)
        counts = [parts.count({processor}) for processor in processors]
        assert max(counts) - min(counts) <= 1


def test_a_process_keeps_to_its_share() -> None:
    code = "import os; from bagua_net._machine import processors; processors.bind(1, 1000)"
    code += "; print(len(os.sched_getaffinity(0)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_the_work_of_processors_includes_that_of_this_process() -> None:
    everyone = range(os.cpu_count() or 1)
    assert worked(everyone) > sum(os.times()[:2])
    assert worked([]) == 0
