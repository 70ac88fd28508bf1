# SPDX-License-Identifier: MIT
"""A training script as Bagua's users wrote them; it knows nothing of bagua_net.

torchrun --nproc-per-node 2 -m bagua_net.compat old_script.py --algorithm bytegrad
"""

from __future__ import annotations

import argparse
from typing import Any

import bagua.torch_api as bagua
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

IMAGES = 1500  # of 1797; the others are for the test


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 128), nn.Linear(128, 10)
        self.norm = nn.BatchNorm1d(128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def algorithm_and_optimizer(name: str, model: nn.Module) -> tuple[Any, torch.optim.Optimizer]:
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if name == "gradient_allreduce":
        from bagua.torch_api.algorithms import gradient_allreduce

        return gradient_allreduce.GradientAllReduceAlgorithm(), optimizer
    if name == "decentralized":
        from bagua.torch_api.algorithms import decentralized

        return decentralized.DecentralizedAlgorithm(), optimizer
    if name == "low_precision_decentralized":
        from bagua.torch_api.algorithms import decentralized

        return decentralized.LowPrecisionDecentralizedAlgorithm(), optimizer
    if name == "qadam":
        from bagua.torch_api.algorithms import q_adam

        optimizer = q_adam.QAdamOptimizer(model.parameters(), lr=1e-3, warmup_steps=20)
        return q_adam.QAdamAlgorithm(optimizer), optimizer
    if name == "async":
        from bagua.torch_api.algorithms import async_model_average

        return async_model_average.AsyncModelAverageAlgorithm(sync_interval_ms=20), optimizer
    return bagua.algorithms.Algorithm.init(name), optimizer


def train(model: nn.Module, batches: DataLoader[Any], optimizer: torch.optim.Optimizer) -> float:
    model.train()
    total = 0.0
    for pixels, digits in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels), digits)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    pixels, digits = data.tensors
    with torch.no_grad():
        return float((model(pixels).argmax(1) == digits).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", default="gradient_allreduce")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    bagua.init_process_group()
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
    training = torch.utils.data.Subset(data, range(IMAGES))
    rest = TensorDataset(*data[IMAGES:])
    sampler = DistributedSampler(training, num_replicas=bagua.get_world_size(), rank=bagua.get_rank())
    batches = DataLoader(training, batch_size=16, sampler=sampler, drop_last=True)
    torch.manual_seed(bagua.get_rank())
    model = Net()
    algorithm, optimizer = algorithm_and_optimizer(options.algorithm, model)
    model = model.with_bagua([optimizer], algorithm)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.9)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        if options.algorithm == "async":
            model.bagua_algorithm.resume(model)
        loss = train(model, batches, optimizer)
        if options.algorithm == "async":
            model.bagua_algorithm.abort(model)
        scheduler.step()
        if bagua.get_rank() == 0:  # alone: evaluation communicates nothing
            print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy(model, rest):.3f}")
    first = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    other = first.clone()
    bagua.broadcast(other, 0)
    apart = torch.tensor([(first - other).abs().max()])
    bagua.allreduce_inplace(apart, op=bagua.communication.ReduceOp.MAX)
    if bagua.get_rank() == 0:
        print(f"apart {apart.item():.2e} names {','.join(model.state_dict())}")


if __name__ == "__main__":
    main()
