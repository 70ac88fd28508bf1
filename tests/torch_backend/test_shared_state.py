# SPDX-License-Identifier: MIT
"""What threads and signal handlers of a process share, beside operations in progress."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from bagua_net._native import library
from bagua_net.torch import _interrupt, _store, _work
from tests.support.between import Case, at_each_step
from tests.support.ranks import Ranks
from tests.torch_backend.cases import COLLECTIVES
from tests.torch_backend.cases import Case as Call

pytestmark = pytest.mark.gate

if TYPE_CHECKING:
    from tests.support.rank import Here

_LONG_S = 20


# ---- a handler that ends the group ----


class _Store:
    """Has a key from the third look on."""

    def __init__(self) -> None:
        self._looks = 0

    def check(self, _: list[str]) -> bool:
        self._looks += 1
        return self._looks > 2


def given_up_at_each_step(here: Here) -> int:
    """A handler ends the wait for a key, on the thread that waits."""

    def case() -> Case:
        given_up = _store.GivenUp()

        def wait() -> None:
            _store.appears(_Store(), "key", time.monotonic() + _LONG_S, given_up)

        return Case(wait, given_up.set, lambda: None)

    return at_each_step([_store, threading], case, in_handler=True)


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_handler_ends_the_wait_for_a_key(ranks: Ranks) -> None:
    assert min(ranks.run(given_up_at_each_step, seconds=_LONG_S)) > 10


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


class _Turns:
    """Gives an operation one turn, as the library does."""

    def __init__(self) -> None:
        self._held = False

    def hold(self, _: object) -> bool:
        held, self._held = self._held, True
        return not held

    def enter(self, _: object) -> None: ...

    def leave(self, _: object) -> None: ...


def test_two_threads_that_ask_for_a_future_share_its_turn() -> None:
    def case() -> Case:
        nobody: Any = None
        work = _work.Work(_work.Context("group", 0, _Turns(), nobody, nobody, nobody), [nobody], [], None, None)

        def ask() -> None:
            work._gets_turn()

        def check() -> None:
            assert work._turn  # else nobody leaves it, and other threads' operations wait

        return Case(ask, ask, check)

    assert at_each_step([_work], case) > 2


# ---- fork ----


_FORKS = """
import os, threading
from bagua_net._native import library
from bagua_net.torch import _work

taken, over = threading.Event(), threading.Event()

def work():
    with library._loading, _work._step:
        taken.set()
        over.wait()

threading.Thread(target=work).start()
taken.wait()
child = os.fork()
if child == 0:
    free = library._loading.acquire(blocking=False) and _work._step.acquire(blocking=False)
    os._exit(0 if free else 1)
over.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_does_not_wait_for_a_thread_that_it_lacks() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
