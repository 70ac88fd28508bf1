# SPDX-License-Identifier: MIT
"""What the convergence tests train: two tasks whose data are on every machine, and are the same in every run.

* ``digits``: scikit-learn's 1797 handwritten digits of 8 × 8 pixels, and a small network with two hidden layers.
* ``characters``: the sources of some modules of Python's standard library, and a small transformer that predicts the
  next character. The modules differ a little between releases of Python, so only runs of one Python are compared.

The seed of a run chooses the first weights and the order of the data, and nothing else does.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

#: Inputs and the classes wanted for them.
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """How to train, by ranks that each have a batch of their own at every step."""

    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    unseen: Callable[[], Batch]  # what is not trained on
    optimizer: str  # of "sgd", "adam": the usual one for this model
    sgd_rate: float
    adam_rate: float


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    inputs, wanted = batch
    return nn.functional.cross_entropy(model(inputs).flatten(0, -2), wanted.flatten())


def judged(model: nn.Module, batch: Batch) -> tuple[float, float]:
    """Accuracy in percent, and the loss."""
    inputs, wanted = batch
    with torch.no_grad():
        scores = model(inputs).flatten(0, -2)
    hits = scores.argmax(1) == wanted.flatten()
    return 100 * hits.double().mean().item(), nn.functional.cross_entropy(scores, wanted.flatten()).item()


# ---- digits ----

_DIGITS = 16  # images in a batch


def digits_file() -> Path | None:
    """scikit-learn's: a line for each image, with its 64 pixels from 0 to 16 and the digit. None: not installed.

    Importing scikit-learn takes a rank longer than training does.
    """
    spec = importlib.util.find_spec("sklearn")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "datasets/data/digits.csv.gz"


@functools.cache
def _digits(remainder: int) -> Batch:
    """Every other image: 0 for those that are trained on, 1 for the rest. Both have all digits and writers."""
    file = digits_file()
    assert file is not None, "scikit-learn, which has the digits, is not installed"
    lines = gzip.decompress(file.read_bytes()).split()[remainder::2]
    rows = torch.tensor([[float(number) for number in line.split(b",")] for line in lines])
    return rows[:, :-1] / 16, rows[:, -1].long()


def _digits_batch(generator: torch.Generator) -> Batch:
    pixels, wanted = _digits(0)
    chosen = torch.randint(len(pixels), (_DIGITS,), generator=generator)
    return pixels[chosen], wanted[chosen]


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))


# ---- characters ----

_MODULES = (
    "argparse",
    "ast",
    "calendar",
    "configparser",
    "dataclasses",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "inspect",
    "optparse",
    "pickle",
    "random",
    "shutil",
    "statistics",
    "tarfile",
    "textwrap",
    "threading",
    "typing",
)
_LENGTH, _LINES = 48, 8  # characters in a line of a batch, and lines
_UNSEEN_LINES = 256
_UNSEEN_PART = 8  # the last eighth of each module
#: Characters: the printable ones of ASCII, the end of a line, and any other.
_FIRST, _LAST, _NEWLINE = 32, 126, 95
CHARACTERS = 97


def _numbers(text: bytes) -> torch.Tensor:
    codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    printable = (codes >= _FIRST) & (codes <= _LAST)
    rest = torch.where(codes == ord("\n"), _NEWLINE, CHARACTERS - 1)
    return torch.where(printable, codes - _FIRST, rest)


@functools.cache
def _sources() -> tuple[torch.Tensor, torch.Tensor]:
    """The characters that are trained on, and the rest."""
    trained, rest = [], []
    for name in _MODULES:
        text = Path(sysconfig.get_path("stdlib"), f"{name}.py").read_bytes()
        cut = len(text) - len(text) // _UNSEEN_PART
        trained.append(_numbers(text[:cut]))
        rest.append(_numbers(text[cut:]))
    return torch.cat(trained), torch.cat(rest)


def _lines(text: torch.Tensor, starts: torch.Tensor) -> Batch:
    rows = text[starts[:, None] + torch.arange(_LENGTH + 1)]
    return rows[:, :-1], rows[:, 1:]


def _characters_batch(generator: torch.Generator) -> Batch:
    text = _sources()[0]
    return _lines(text, torch.randint(len(text) - _LENGTH, (_LINES,), generator=generator))


def _unseen_characters() -> Batch:
    text = _sources()[1]
    return _lines(text, torch.linspace(0, len(text) - _LENGTH - 1, _UNSEEN_LINES).long())


class _Layer(nn.Module):  # type: ignore[misc]
    _HEADS = 4

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lines, length, width = x.shape
        parts = self.attention(self.before(x)).view(lines, length, 3, self._HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(lines, length, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))


class _Transformer(nn.Module):  # type: ignore[misc]
    _WIDTH, _LAYERS = 48, 2

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(CHARACTERS, self._WIDTH), nn.Embedding(_LENGTH, self._WIDTH)
        self.layers = nn.Sequential(*(_Layer(self._WIDTH) for _ in range(self._LAYERS)))
        self.norm, self.scores = nn.LayerNorm(self._WIDTH), nn.Linear(self._WIDTH, CHARACTERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(x.size(1)))
        return self.scores(self.norm(self.layers(self.characters(x) + places)))


TASKS = {
    "digits": Task(_network, _digits_batch, functools.partial(_digits, 1), "sgd", sgd_rate=0.1, adam_rate=4e-3),
    "characters": Task(_Transformer, _characters_batch, _unseen_characters, "adam", sgd_rate=0.1, adam_rate=4e-3),
}
