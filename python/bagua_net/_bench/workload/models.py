# SPDX-License-Identifier: MIT
"""The gradients of well-known models, in the buckets of PyTorch's DistributedDataParallel.

Only the shapes matter; they are generated from the architectures. Sources: torchvision's ``vgg16`` and
``resnet50``; Hugging Face's ``BertModel`` (bert-large-uncased, with its pooler) and ``GPT2Model`` (gpt2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

Shape = tuple[int, ...]

#: torch.distributed's _DEFAULT_FIRST_BUCKET_BYTES, and DDP's bucket_cap_mb=25.
FIRST_BUCKET = 1 << 20
BUCKET = 25 << 20


def _with_bias(*weight: int) -> Iterator[Shape]:
    """A layer's weight, outputs first, and its bias."""
    yield weight
    yield (weight[0],)


def _norm(width: int) -> Iterator[Shape]:
    yield (width,)
    yield (width,)


def _vgg16() -> Iterator[Shape]:
    channels = 3
    for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        yield from _with_bias(width, channels, 3, 3)
        channels = width
    yield from _with_bias(4096, 512 * 7 * 7)
    yield from _with_bias(4096, 4096)
    yield from _with_bias(1000, 4096)


def _bottleneck(inputs: int, width: int, downsample: bool) -> Iterator[Shape]:
    outputs = 4 * width
    for shape in ((width, inputs, 1, 1), (width, width, 3, 3), (outputs, width, 1, 1)):
        yield shape
        yield from _norm(shape[0])
    if downsample:
        yield (outputs, inputs, 1, 1)
        yield from _norm(outputs)


def _resnet50() -> Iterator[Shape]:
    yield (64, 3, 7, 7)
    yield from _norm(64)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from _bottleneck(inputs, width, downsample=block == 0)
            inputs = 4 * width
    yield from _with_bias(1000, inputs)


def _bert_large() -> Iterator[Shape]:
    width, inner = 1024, 4096
    for rows in (30522, 512, 2):  # words, positions, segments
        yield (rows, width)
    yield from _norm(width)
    for _ in range(24):
        for _ in ("query", "key", "value", "output"):
            yield from _with_bias(width, width)
        yield from _norm(width)
        yield from _with_bias(inner, width)
        yield from _with_bias(width, inner)
        yield from _norm(width)
    yield from _with_bias(width, width)  # pooler


def _gpt2() -> Iterator[Shape]:
    width = 768
    yield (50257, width)
    yield (1024, width)
    for _ in range(12):
        yield from _norm(width)
        for inputs, outputs in ((width, 3 * width), (width, width)):
            yield (inputs, outputs)
            yield (outputs,)
        yield from _norm(width)
        for inputs, outputs in ((width, 4 * width), (4 * width, width)):
            yield (inputs, outputs)
            yield (outputs,)
    yield from _norm(width)


_MODELS: dict[str, Callable[[], Iterator[Shape]]] = {
    "vgg16": _vgg16,
    "resnet50": _resnet50,
    "bert-large": _bert_large,
    "gpt2": _gpt2,
}

NAMES = tuple(_MODELS)


def shapes(model: str) -> list[Shape]:
    """Those of each parameter, in the model's order. KeyError: no such model."""
    return list(_MODELS[model]())


def matrices(parameters: int) -> list[Shape]:
    """Of an unknown model with so many parameters: matrices of 1 MiB in float32, so that buckets are full."""
    whole, rest = divmod(parameters, FIRST_BUCKET // 4)
    found: list[Shape] = [(FIRST_BUCKET // 4, 1)] * whole
    return [(rest, 1), *found] if rest else found


def parameters(model: str) -> list[int]:
    """The number of elements of each parameter, in the model's order. KeyError: no such model."""
    return [math.prod(shape) for shape in shapes(model)]


def assigned(counts: list[int], element_size: int) -> list[list[int]]:
    """The parameters of each bucket, by their places in ``counts``, in the order in which DDP sends them.

    Gradients arrive last parameter first. The gradient that fills a bucket closes it: 1 MiB for the first, so that
    communication starts early, 25 MiB for the others (``compute_bucket_assignment_by_size`` in
    torch/csrc/distributed/c10d/reducer.cpp, as DDP calls it after its first step).
    """
    closed: list[list[int]] = []
    filling: list[int] = []
    size = 0
    for place in reversed(range(len(counts))):
        filling.append(place)
        size += counts[place] * element_size
        if size >= (BUCKET if closed else FIRST_BUCKET):
            closed.append(filling)
            filling, size = [], 0
    return [*closed, filling] if filling else closed


def buckets(counts: list[int], element_size: int) -> list[int]:
    """The number of elements of each bucket, in the order in which DDP sends them."""
    return [sum(counts[place] for place in bucket) for bucket in assigned(counts, element_size)]
