# SPDX-License-Identifier: MIT
"""The releases of NCCL that the tests run, and what differs between them.

``BAGUA_NET_TEST_NCCL=all pytest tests/nccl`` takes one release of each behaviour, and
``BAGUA_NET_TEST_NCCL=2.26.5,2.27.7`` takes these.
"""

from __future__ import annotations

import os

#: The oldest release, that of torch 2.13, and the newest one.
USUAL = ("2.18.3", "2.29.7", "2.32.3")
#: One for each behaviour after a fault, and for each form of NCCL's device structures.
ALL = (
    "2.18.3",
    "2.21.5",
    "2.22.3",
    "2.23.4",
    "2.25.1",
    "2.26.5",
    "2.27.7",
    "2.28.9",
    "2.29.7",
    "2.30.7",
    "2.32.3",
)
NEWEST = ALL[-1]


_NAMED = os.environ.get("BAGUA_NET_TEST_NCCL", "")


def _or(usual: tuple[str, ...]) -> tuple[str, ...]:
    """The releases that are named, or these."""
    if _NAMED == "all":
        return ALL
    return tuple(_NAMED.split(",")) if _NAMED else usual


CHOSEN = _or(USUAL)
#: For faults, lives, networks and sanitizers, which take a minute or more for each release.
FEW = _or((NEWEST,))
#: See forgets_plugin().
FORGETFUL = "2.29.7"
#: For what does not depend on the release.
ONE = FEW[-1]


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _between(version: str, first: str, last: str) -> bool:
    return number(first) <= number(version)[:2] <= number(last)


def reports_errors(version: str) -> bool:
    """Does an error of the network reach ncclCommGetAsyncError? 2.18 keeps no record of it, and 2.26 and 2.27 drop the
    failed operation and its error (progressOps in src/proxy.cc)."""
    return not _between(version, "2.18", "2.18") and not _between(version, "2.26", "2.27")


def aborts(version: str) -> bool:
    """Does ncclCommAbort return while operations are under way? From 2.23 to 2.25 NCCL's progress thread does not look
    at the abort flag, and waits for operations that cannot end (ncclProxyProgress in src/proxy.cc)."""
    return not _between(version, "2.23", "2.25")


def merges(version: str) -> bool:
    """Does NCCL make one device of several cards (makeVDevice)? 2.24 to 2.26 do so, too, but end with a segmentation
    fault after it, where the cards are in slots of a virtual machine."""
    return number(version) >= (2, 27)


def forgets_plugin(version: str) -> bool:
    """Does NCCL forget the plugin's name when it unloads the plugin, with the last communicator? The next one then gets
    another network, or fails (ncclNetPluginUnload in src/plugin/net.cc)."""
    return _between(version, "2.28", "2.29")


def settings(version: str) -> dict[str, str]:
    """The variables without which this release cannot have a second communicator after the last one."""
    return {"NCCL_NET_PLUGIN_REF_COUNT": "1"} if forgets_plugin(version) else {}
