# SPDX-License-Identifier: MIT
"""The speed of the codecs on one processor, without a network."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable

from bagua_net._bench.transports.nccl_net import CODECS
from bagua_net._native import library

#: Elements: half a MiB of float32, which stays in a processor's cache as a share of an allreduce does.
_COUNT = 128 * 1024
_TIMES = 50


def _gbs(call: Callable[[], object]) -> float:
    """GB of elements per second of this thread's processor time."""
    start = time.thread_time()
    for _ in range(_TIMES):
        call()
    return 4 * _COUNT * _TIMES / (time.thread_time() - start) / 1e9


def measure(block: int, readings: int) -> dict[str, list[float]]:
    """Codec and step → GB/s of float32 on one processor, one value for each reading."""
    lib, ffi, draw = library.load_host(), library.ffi, random.Random(0)
    elements = ffi.from_buffer("float[]", array("f", [draw.gauss(0, 1) for _ in range(_COUNT)]))
    decoded = ffi.new("float[]", _COUNT)
    found: dict[str, list[float]] = {}
    for name, codec in CODECS.items():
        size = lib.bnet_codec_bytes(codec.code, block, _COUNT)
        codes = ffi.new("char[]", size)
        steps: dict[str, Callable[[], object]] = {
            "encode": lambda: lib.bnet_codec_encode(codec.code, block, elements, _COUNT, codes),  # noqa: B023
            "decode": lambda: lib.bnet_codec_decode(codec.code, block, codes, size, decoded, _COUNT),  # noqa: B023
            "decode and add": lambda: lib.bnet_codec_decode_add(codec.code, block, codes, size, decoded, _COUNT),  # noqa: B023
        }
        for step, call in steps.items():
            found[f"{name}: {step}"] = [_gbs(call) for _ in range(readings)]
    return found
