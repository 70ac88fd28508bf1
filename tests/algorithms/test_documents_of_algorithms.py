# SPDX-License-Identifier: MIT
"""The examples of docs/algorithms.md run: the first one as a script, the others on ranks with two steps of training."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import ByteGrad, attach
from tests.algorithms.models import backward, net
from tests.support.programs import ROOT
from tests.support.rank import Here
from tests.support.ranks import Ranks

_SECONDS = 120


def _examples() -> dict[str, str]:
    """By the section that each is in."""
    text = (ROOT / "docs/algorithms.md").read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return {["", *re.findall(r"^##+ (.+)$", text[: each.start()], re.MULTILINE)][-1]: each[1] for each in found}


_SCRIPT, *_OTHERS = _examples()


@pytest.mark.nightly
def test_the_first_example_is_a_script(tmp_path: Path) -> None:
    script, text = tmp_path / "train.py", _examples()[_SCRIPT]
    script.write_text(text)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert text.startswith("# torchrun --nproc-per-node 2 train.py\n")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, str(script)], env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("'elements': 6500.0") == 2, done.stdout


def _runs(here: Here, example: str, path: str) -> None:
    """The names that the document has from the text around an example."""
    module = net()
    names: dict[str, Any] = {
        "ByteGrad": ByteGrad,
        "DistributedDataParallel": DistributedDataParallel,
        "attach": attach,
        "gpus": 1,
        "model": DistributedDataParallel(module),
        "net": module,
        "nodes": here.size,
        "optimizer": torch.optim.SGD(module.parameters(), 0.01),
        "path": path,
        "rank": here.rank,
        "torch": torch,
    }
    exec(example.replace('"cuda"', '"cpu"'), names)
    model = names["model"] if "fully_shard" not in names else names["net"]
    for step in range(2):
        names["optimizer"].zero_grad()
        backward(here, model, step)
        names["optimizer"].step()
    if "comm" in names:
        names["comm"].detach()


@pytest.mark.gate
@pytest.mark.parametrize("heading", _OTHERS)
def test_the_other_examples_run(two: Ranks, tmp_path: Path, heading: str) -> None:
    two.run(_runs, _examples()[heading], str(tmp_path / "saved.pt"))
