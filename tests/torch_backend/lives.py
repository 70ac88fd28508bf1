# SPDX-License-Identifier: MIT
"""A worker that dies in some of its lives, for test_restarts.py.

Usage: torchrun … -m tests.torch_backend.lives PLAN, or with RANK, WORLD_SIZE and TORCHELASTIC_RESTART_COUNT: … PLAN
STORE. PLAN says where lives end: "RANK:LIFE:PLACE,…", with a place of :data:`PLACES`. STORE is a file. A life that goes
on prints one line of JSON: rank, life, when it came, and when its first collectives in all groups were over.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

#: In this order.
PLACES = ("before init", "before new_group", "before the second", "within", "never")
_TIMEOUT = timedelta(seconds=60)


class Life:
    def __init__(self, plan: str) -> None:
        self.rank = int(os.environ["RANK"])
        self.number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        ends = dict(entry.rsplit(":", 1) for entry in plan.split(",") if entry)
        self.end = ends.get(f"{self.rank}:{self.number}", "never")
        assert self.end in PLACES

    def reach(self, place: str) -> None:
        if place == self.end:
            os._exit(7)


def _sum(group: dist.ProcessGroup | None = None) -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [float(dist.get_world_size())] * 3


def main(plan: str, store: str = "") -> None:
    life, came = Life(plan), time.time()
    life.reach("before init")
    place = {"init_method": f"file://{store}"} if store else {}
    options = {"rank": life.rank, "world_size": int(os.environ["WORLD_SIZE"])} if store else {}
    dist.init_process_group("bagua_net", timeout=_TIMEOUT, **place, **options)
    life.reach("before new_group")
    first = dist.new_group(timeout=_TIMEOUT)
    life.reach("before the second")
    second = dist.new_group(timeout=_TIMEOUT)
    _sum()
    _sum(first)
    life.reach("within")
    _sum(second)
    print(json.dumps({"rank": life.rank, "life": life.number, "came": came, "met": time.time()}), flush=True)
    if not store:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
