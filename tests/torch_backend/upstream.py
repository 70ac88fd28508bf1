# SPDX-License-Identifier: MIT
"""torch's own test cases of torch.distributed, run on existing ranks. Only the ranks import it: that takes seconds.

torch's runner would start a set of processes for each case. Here a case is only its function, without the decorators
that skip it for unknown backends or without GPUs.
"""

from __future__ import annotations

import inspect
import os
import unittest
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rank import Here

os.environ.setdefault("BACKEND", "bagua_net")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29500")

from torch.testing._internal import common_utils
from torch.testing._internal.common_distributed import DistTestCases
from torch.testing._internal.distributed import distributed_test

for _feature in ("ddp", "plugin", "subgroup"):
    DistTestCases.backend_feature[_feature].add("bagua_net")


class Case(distributed_test.DistributedTest._DistTestBase, distributed_test.TestDistBackend):  # type: ignore[misc]
    """A rank's part of a case."""

    here: Here

    def _barrier(self, *arguments: Any, **named: Any) -> None:
        """torch's barrier polls files and sleeps for tenths of seconds in between."""
        self.here.gloo.barrier().wait(timedelta(seconds=60))


def run(here: Here, name: str, directory: str) -> str:
    """ "ok", or "skipped: …"; raises what the case raises. ``directory`` is one for all ranks, and this case alone."""
    case = Case(name)
    case.rank, case.here = here.rank, here
    common_utils.set_rng_seed()
    os.environ["TEMP_DIR"] = directory
    try:
        inspect.unwrap(getattr(Case, name))(case)
    except unittest.SkipTest as skipped:
        return f"skipped: {skipped}"
    except SystemExit as ended:
        return f"skipped: status {ended.code}"
    return "ok"
