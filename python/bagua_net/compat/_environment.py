# SPDX-License-Identifier: MIT
"""bagua.torch_api.env: what the launcher says of this process. The variables are those of torchrun."""

from __future__ import annotations

import os

#: Of the release whose names are kept.
VERSION = "0.9.2"


def get_rank() -> int:
    return int(os.environ.get("RANK", "0"))


def get_world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def get_local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_local_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def get_node_rank() -> int:
    return int(os.environ.get("GROUP_RANK", os.environ.get("NODE_RANK", "0")))


def get_master_addr() -> str:
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def get_default_bucket_size() -> int:
    """In bytes. DistributedDataParallel's bucket_cap_mb is what counts here."""
    return int(os.environ.get("BAGUA_DEFAULT_BUCKET_SIZE", str(10 << 20)))
