# SPDX-License-Identifier: MIT
"""Ray Train: the backend is an argument of its TorchConfig, and workers get variables by runtime_env.

python3 examples/ray_digits.py --workers 2 --backend bagua_net
"""

from __future__ import annotations

import argparse
from pathlib import Path

import digits
import ray
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn.parallel import DistributedDataParallel

import bagua_net


def worker() -> str:
    return str(digits.train(DistributedDataParallel(digits.network())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bagua_net")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    # The variables of env() are for NCCL; on CPUs they change nothing. Workers import digits.py from this directory.
    ray.init(runtime_env={"env_vars": bagua_net.env(), "working_dir": str(Path(__file__).parent)})
    trainer = TorchTrainer(
        worker,
        torch_config=TorchConfig(backend=options.backend),
        scaling_config=ray.train.ScalingConfig(num_workers=options.workers),
    )
    print(digits.HEADER, trainer.fit().return_value, sep="\n", flush=True)


if __name__ == "__main__":
    main()
