# SPDX-License-Identifier: MIT
"""One key asked for by threads and loaders of one process at once, and what other processes may do meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bagua_net.data import CacheLoader

_SECONDS = 120
_THREADS = 4
FORK = multiprocessing.get_context("fork")


def never(key: Any) -> Any:
    pytest.fail(f"{key!r} was made again")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.cache"


def succeeds(function: Callable[..., None], *arguments: Any) -> bool:
    """In a forked process."""
    process = FORK.Process(target=function, args=arguments)
    process.start()
    process.join(_SECONDS)
    process.kill()
    return process.exitcode == 0


def lock_all(path: Path) -> None:
    with Path(f"{path}-lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether another process would wait at a key."""
    return not succeeds(lock_all, path)


# ---- threads ----


@pytest.mark.parametrize("shared", [True, False], ids=["one-loader", "a-loader-each"])
def test_threads_that_ask_at_once_get_what_one_of_them_makes(path: Path, shared: bool) -> None:
    made: list[int] = []
    barrier = threading.Barrier(_THREADS)

    def make(key: int) -> int:
        made.append(key)
        os.sched_yield()
        return key**2

    def get_all(loader: CacheLoader) -> list[int]:
        found = []
        for key in range(100):
            barrier.wait(_SECONDS)
            found.append(loader.get(key, make))
        return found

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(CacheLoader(path))
        others = [first if shared else stack.enter_context(CacheLoader(path)) for _ in range(_THREADS - 1)]
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS))
        assert list(pool.map(get_all, [first, *others])) == [[key**2 for key in range(100)]] * _THREADS
    assert made == list(range(100))


def test_threads_that_wait_for_each_others_keys_do_not_hang(path: Path) -> None:
    barrier = threading.Barrier(2)
    found: queue.Queue[str] = queue.Queue()
    with CacheLoader(path) as cache:

        def get(key: str, inner: str) -> None:
            def make(_: str) -> Any:
                barrier.wait(_SECONDS)
                return cache.get(inner, str)

            found.put(cache.get(key, make))

        for keys in (("a", "b"), ("b", "a")):
            threading.Thread(target=get, args=keys, daemon=True).start()
        # The last one to ask makes the inner key itself, and the other one takes that.
        assert {found.get(timeout=_SECONDS) for _ in range(2)} in ({"a"}, {"b"})


def test_a_thread_may_ask_for_the_key_that_it_makes(path: Path) -> None:
    with CacheLoader(path) as cache:
        assert cache.get(1, lambda key: cache.get(key, str)) == "1"
        assert not is_locked(path)


# ---- several loaders of a file in one process ----


def test_another_loader_of_the_file_that_closes_leaves_a_key_locked(path: Path) -> None:
    link = path.parent / "link"
    link.symlink_to(path.parent)

    def make(_: int) -> list[bool]:
        locked = [is_locked(path)]
        CacheLoader(path).close()
        locked.append(is_locked(path))
        CacheLoader(link / path.name).close()  # by another name
        locked.append(is_locked(path))
        other = CacheLoader(path)
        other.get(2, str)
        del other
        return [*locked, is_locked(path)]

    with CacheLoader(path) as cache:
        assert cache.get(1, make) == [True] * 4
        assert not is_locked(path)


def test_a_loader_may_be_closed_while_a_value_is_made(path: Path) -> None:
    cache = CacheLoader(path)

    def make(_: int) -> bool:
        cache.close()
        return is_locked(path)

    assert cache.get(1, make) is True
    assert cache.get(1, never) is True
    cache.close()
    assert not is_locked(path)


# ---- forked while a value is made ----


def get_another(cache: CacheLoader) -> None:
    links = [file.readlink().name for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert f"{cache._store.path.name}-lock" not in links
    assert cache.get(2, str) == "2"


def test_a_forked_child_has_locks_of_its_own(path: Path) -> None:
    def make(_: int) -> list[bool]:
        return [succeeds(get_another, cache), is_locked(path)]

    with CacheLoader(path) as cache:
        assert cache.get(1, make) == [True, True]
        assert cache.get(2, never) == "2"


def return_twice(cache: CacheLoader) -> None:
    """The function that makes the value returns in two processes."""
    value = cache.get(1, lambda _: os.fork())
    if value == 0:
        assert cache.get(2, str) == "2"
        os._exit(0)
    assert os.waitpid(value, 0)[1] == 0


def test_a_child_that_returns_from_its_parents_function_goes_on(path: Path) -> None:
    with CacheLoader(path) as cache:
        assert succeeds(return_twice, cache)
        assert not is_locked(path)
        assert cache.get(2, never) == "2"
