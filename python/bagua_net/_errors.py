# SPDX-License-Identifier: MIT
"""The exceptions of this package. Each message is one line: what is wrong and what to do.

- :class:`BaguaNetError`: the base of all.

  - :class:`LibraryNotFound`: ``libnccl-net-bagua.so`` is not where the package looks for it.
  - :class:`LibraryUnusable`: it does not load, or has another interface version.
  - :class:`ActivationTooLate`: NCCL has chosen its network already.
  - :class:`UnsupportedNccl`: this release of NCCL cannot do what was asked.
  - :class:`ParameterInvalid`: a ``BAGUA_NET_*`` variable has a value that the plugin refuses.
  - :class:`PluginPathInvalid`: NCCL would not take the library's path.

    - :class:`PluginPathTooLong`: it is longer than NCCL's buffer.

  - :class:`RdmaDisplaced`: an active RDMA port would go unused.
  - :class:`ConflictingSetting`: a variable is already set to another value.
  - :class:`NotWritable`: a directory that ``enable`` writes to is missing or is not this user's.
  - :class:`ConfFileDamaged`: the marked block in a configuration file has no end.
"""

from __future__ import annotations


class BaguaNetError(Exception):
    """The base of every exception that this package raises on purpose."""


class LibraryNotFound(BaguaNetError):
    """``libnccl-net-bagua.so`` is not where the package looks for it."""


class LibraryUnusable(BaguaNetError):
    """The library does not load, or has another interface version than this package."""


class ActivationTooLate(BaguaNetError):
    """NCCL reads its settings once per process and has already read them."""


class UnsupportedNccl(BaguaNetError):
    """This release of NCCL cannot do what was asked."""


class ParameterInvalid(BaguaNetError):
    """A ``BAGUA_NET_*`` variable has a value that the plugin refuses: a job would fail at its start."""


class PluginPathInvalid(BaguaNetError):
    """NCCL would not take the library's path."""


class PluginPathTooLong(PluginPathInvalid):
    """The library's path is longer than NCCL's buffer for it."""


class RdmaDisplaced(BaguaNetError):
    """An active RDMA port would go unused, because NCCL takes one network for all its traffic."""


class ConflictingSetting(BaguaNetError):
    """A variable is already set to another value, which is not overwritten unless asked for."""


class NotWritable(BaguaNetError):
    """A directory that a file would be written to is missing, or this user may not write to it."""


class ConfFileDamaged(BaguaNetError):
    """A configuration file has the beginning of the marked block but not its end."""
