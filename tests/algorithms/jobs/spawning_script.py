# SPDX-License-Identifier: MIT
"""A script as Bagua's users wrote them, whose loader starts its workers afresh, as Python does by itself from 3.14 on.

python -m bagua_net.compat spawning_script.py
"""

from __future__ import annotations

import bagua.torch_api as bagua
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Numbers(Dataset[torch.Tensor]):  # type: ignore[misc]
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, bagua.get_world_size(), get_worker_info().id])


if __name__ == "__main__":
    for sample in DataLoader(Numbers(), batch_size=None, num_workers=2, multiprocessing_context="spawn"):
        print(*sample.tolist())
