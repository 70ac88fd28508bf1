# SPDX-License-Identifier: MIT
"""DistributedDataParallel with ByteGrad; later in the run with auto. Both are resumed."""

from __future__ import annotations

import digits
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import Auto, GatheredState, attach
from tests.algorithms.jobs import common

_SAVED, _END = 4, 8  # steps with ByteGrad
_SAVED_AUTO, _END_AUTO = 38, 44  # with auto, whose trial takes 28 steps at most


class Run:
    def __init__(self, algorithm: str | Auto) -> None:
        # find_unused_parameters: DDP keeps the buckets of its first step, and a resumed run has the same.
        self.model = DistributedDataParallel(digits.network(), find_unused_parameters=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), digits.RATE, momentum=0.9)
        self.comm = attach(self.model, self.optimizer, algorithm)

    def train(self, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            common.loss_of(self.model, step).backward()
            self.optimizer.step()

    def save(self, path: str) -> None:
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "comm": GatheredState(self.comm).state_dict(),
        }
        if dist.get_rank() == 0:
            torch.save(state, path)
        dist.barrier()

    def load(self, path: str) -> None:
        state = torch.load(path, weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        GatheredState(self.comm).load_state_dict(state["comm"])

    def report(self, name: str) -> None:
        common.report(name, dict(self.model.module.named_parameters()))


def main() -> None:
    options = common.options()
    early, late = str(options.directory / "bytegrad.pt"), str(options.directory / "auto.pt")
    dist.init_process_group("bagua_net")
    run = Run("bytegrad")
    if options.resume:
        run.load(early)
    else:
        run.train(range(_SAVED))
        run.save(early)
    run.train(range(_SAVED, _END))
    run.report("bytegrad")
    if options.resume:
        run = Run(Auto(trial_steps=1))
        run.load(late)
    else:
        run.comm.detach()
        run.comm = attach(run.model, run.optimizer, Auto(trial_steps=1))
        run.train(range(_END, _SAVED_AUTO))
        run.save(late)
    chosen = run.comm.chosen
    assert chosen is not None, "auto is still trying"
    run.train(range(_SAVED_AUTO, _END_AUTO))
    assert run.comm.chosen == chosen
    run.report("auto")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
