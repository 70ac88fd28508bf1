# SPDX-License-Identifier: MIT
"""How torch makes a group: what is looked at before, once in a process and for each group."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch

from .._settings import parameters
from .._torch_backend import NAME
from ._group import ProcessGroupBaguaNet

#: What it was tried with; a Python group is a new thing, and each torch has its own idea of it.
TRIED = ("2.11", "2.12", "2.13", "2.14", "2.15")

_log = logging.getLogger("bagua_net.torch")


@functools.cache
def _check_version() -> None:
    """Once in a process."""
    if ".".join(torch.__version__.split(".")[:2]) not in TRIED:
        tried = f"{TRIED[0]} to {TRIED[-1]}"
        _log.warning("the %s backend was tried with torch %s, and this is %s", NAME, tried, torch.__version__)


@functools.cache
def _check_parameters() -> None:
    """Once in a process."""
    for sentence in parameters.check():
        _log.warning("%s", sentence)


def create(options: Any, backend_options: Any) -> ProcessGroupBaguaNet:
    """What torch calls for ``init_process_group("bagua_net")`` and ``new_group``, on the ranks of the group.

    Raises:
        ValueError: there are options for the backend: it has none, ``BAGUA_NET_*`` are its parameters.
        ParameterInvalid: one of these has a bad value. One that is no parameter is logged.
        LibraryNotFound, LibraryUnusable: see their documentation.
        DistBackendError: there is no network to listen on.
    """
    _check_version()
    _check_parameters()
    if backend_options is not None:
        raise ValueError(f"the {NAME} backend has no options; its parameters are BAGUA_NET_* (`bagua-net params`)")
    return ProcessGroupBaguaNet(
        options.store, options.group_rank, options.group_size, options.timeout, options.group_id
    )
