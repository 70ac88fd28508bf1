# SPDX-License-Identifier: MIT
"""Connections that nobody answers, as the kernel lists them."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest

from bagua_net._machine import unanswered
from tests.support import netns


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_that_waits_for_its_answer(family: socket.AddressFamily, address: str) -> None:
    """The kernel answers one that finds a place, and drops what finds none."""
    if family == socket.AF_INET6 and not netns.has_ipv6("lo"):
        pytest.skip("the loopback interface has no IPv6 address")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind((address, 0))
        listener.listen(0)
        target = listener.getsockname()[:2]
        stack.enter_context(socket.create_connection(target))
        assert target not in unanswered.of(os.getpid())
        waiting = stack.enter_context(socket.socket(family))
        waiting.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            waiting.connect(target)
        assert unanswered.of(os.getpid()) == [target]
        assert target not in unanswered.of(os.getppid())


def test_a_process_that_is_gone_has_none() -> None:
    assert unanswered.of(2**22 + 1) == []
