# SPDX-License-Identifier: MIT
"""NCCL over TCP with several streams, without changing the job.

>>> import bagua_net
>>> bagua_net.activate()        # before the first NCCL communicator  # doctest: +SKIP

These functions need only the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._activation.environment import activate, deactivate, env
from ._activation.status import Process, Status, status
from ._errors import (
    ActivationTooLate,
    BaguaNetError,
    ConfFileDamaged,
    ConflictingSetting,
    LibraryNotFound,
    LibraryUnusable,
    NotWritable,
    ParameterInvalid,
    PluginPathInvalid,
    PluginPathTooLong,
    RdmaDisplaced,
    UnsupportedNccl,
)
from ._native.plugin import plugin_path
from ._native.version import version as _version
from ._settings.layers import Setting

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """``__version__`` on demand: without an installation the library is asked for it."""
        if name == "__version__":
            return _version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ActivationTooLate",
    "BaguaNetError",
    "ConfFileDamaged",
    "ConflictingSetting",
    "LibraryNotFound",
    "LibraryUnusable",
    "NotWritable",
    "ParameterInvalid",
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
