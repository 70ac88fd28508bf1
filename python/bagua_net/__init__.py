# SPDX-License-Identifier: MIT
"""NCCL over TCP, as fast as the network allows, without changing the job.

>>> import bagua_net
>>> bagua_net.activate()        # before the first NCCL communicator  # doctest: +SKIP

These functions need nothing but the standard library.
"""

from __future__ import annotations

from ._activation import activate, deactivate, env
from ._errors import (
    ActivationTooLate,
    BaguaNetError,
    ConfFileDamaged,
    ConflictingSetting,
    LibraryNotFound,
    LibraryUnusable,
    PluginPathInvalid,
    PluginPathTooLong,
    RdmaDisplaced,
    UnsupportedNccl,
)
from ._plugin import plugin_path
from ._status import Process, Setting, Status, status
from ._version import version

__version__ = version()

__all__ = [
    "ActivationTooLate",
    "BaguaNetError",
    "ConfFileDamaged",
    "ConflictingSetting",
    "LibraryNotFound",
    "LibraryUnusable",
    "PluginPathInvalid",
    "PluginPathTooLong",
    "Process",
    "RdmaDisplaced",
    "Setting",
    "Status",
    "UnsupportedNccl",
    "__version__",
    "activate",
    "deactivate",
    "env",
    "plugin_path",
    "status",
]
