# SPDX-License-Identifier: MIT
"""Which tests may be skipped in .ci/run, where everything that the tests need is installed."""

from __future__ import annotations

import re

#: Reasons that stand there, as regular expressions. Any other skip fails the run: what it says is missing was to be
#: installed.
_ALLOWED = (
    # hardware and kernels
    r"sees no CUDA device here",
    r"this kernel has no interfaces of that kind",
    r"this kernel has no /dev/net/tun",
    r"this kernel cannot ",
    r"a congestion control that is not allowed to all",
    r"this machine has no PCI slots that links can take",
    r"the loopback interface has no IPv6 address",
    r"needs two processors",
    r"less than 12 GiB of memory is available",
    # Another release of torch has what the test is about.
    r"torch has set_timeout since 2\.14",
    r"this torch says: .*monitored_barrier is only implemented",
    r"torch looks for backends on request from 2\.14 on",
    r"new_group has sort_ranks since torch 2\.12",
    # Compiling it takes longer than all tests.
    r"deepspeed is not installed",
    # The tests themselves download NCCL, so that none is installed here.
    r"no NCCL is installed here; pip install",
)
#: In a run with another Python, which has no torch and nothing that needs it.
_ALLOWED_WITHOUT_TORCH = (
    r"no torch here",
    r"(torch(, whose buckets these are,)?|accelerate|lightning|matplotlib|viztracer) is not installed",
    r"grafana-foundation-sdk is not installed",
)


def unexpected(reasons: list[str], *, torch: bool) -> list[str]:
    """Those of the reasons for a skip that do not stand, each once and in order."""
    allowed = re.compile("|".join(_ALLOWED + (() if torch else _ALLOWED_WITHOUT_TORCH)))
    return list(dict.fromkeys(reason for reason in reasons if not allowed.search(reason)))
