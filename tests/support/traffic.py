# SPDX-License-Identifier: MIT
"""What the transport of this process has sent."""

from __future__ import annotations

from bagua_net._native import library


def bytes_sent() -> int:
    counters = library.ffi.new("bnet_counters_t *")
    library.load().bnet_counters(counters)
    return int(counters.bytes_sent)
