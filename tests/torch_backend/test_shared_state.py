# SPDX-License-Identifier: MIT
"""What threads and signal handlers of a process share, beside operations in progress."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from bagua_net._native import library
from bagua_net.torch import _interrupt
from tests.support.ranks import Ranks
from tests.torch_backend.cases import COLLECTIVES
from tests.torch_backend.cases import Case as Call

pytestmark = pytest.mark.gate

if TYPE_CHECKING:
    from tests.support.rank import Here

_LONG_S = 20


# ---- a handler that ends the group ----


def without_cffi_s_lock(here: Here) -> None:
    """As in a handler that has interrupted a call of cffi which holds it."""
    with library.ffi._lock:
        group = dist.new_group()
        for name, collective in COLLECTIVES.items():
            collective.run(here, group, Call(name, torch.float32, (4 * here.size,)))
        peer, source = (here.rank + 1) % here.size, (here.rank - 1) % here.size
        sent = dist.isend(torch.ones(3), peer, group=group)
        dist.recv(torch.zeros(3), source, group=group)
        sent.wait()
        dist.destroy_process_group(group)


def test_no_operation_is_the_first_use_of_something_in_cffi() -> None:
    with Ranks(2) as ranks:  # that have used nothing yet
        ranks.run(without_cffi_s_lock, seconds=_LONG_S)


# ---- threads ----


_TWO_THREADS = """
import threading
from bagua_net._native import library

together, found = threading.Barrier(2), []

def load():
    together.wait()
    found.append(library.load())

threads = [threading.Thread(target=load) for _ in range(2)]
for each in threads: each.start()
for each in threads: each.join()
print(found[0] is found[1])
"""


def test_two_threads_load_the_library_once() -> None:
    done = subprocess.run([sys.executable, "-c", _TWO_THREADS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_an_interrupt_belongs_to_the_thread_that_runs_handlers() -> None:
    ctrl_c = KeyboardInterrupt()
    _interrupt._keep(None, ctrl_c, None)
    told: list[Any] = []
    other = threading.Thread(target=lambda: told.append(_interrupt.raised()))
    other.start()
    other.join()
    assert (told, _interrupt.raised(), _interrupt.raised()) == ([None], ctrl_c, None)


# ---- fork ----


_FORKS = """
import os, threading
from bagua_net._native import library

taken, over = threading.Event(), threading.Event()

def work():
    with library._loading:
        taken.set()
        over.wait()

threading.Thread(target=work).start()
taken.wait()
child = os.fork()
if child == 0:
    os._exit(0 if library._loading.acquire(blocking=False) else 1)
over.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_does_not_wait_for_a_thread_that_it_lacks() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
