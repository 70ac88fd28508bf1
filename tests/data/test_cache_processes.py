# SPDX-License-Identifier: MIT
"""The cache between processes: ranks and loader workers, forked and spawned, at once and killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from bagua_net.data import CachedDataset, CacheLoader
from tests.data.processes import COUNT, Here, Processes

_SECONDS = 120
FORK = multiprocessing.get_context("fork")


def never(key: Any) -> Any:
    pytest.fail(f"{key!r} was made again")


def value_of(key: int) -> bytes:
    return bytes([key % 251]) * 300_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.cache"


@contextlib.contextmanager
def child(function: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """A forked process; it is killed if it has not ended by itself."""
    process = FORK.Process(target=function, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def ended(process: Any) -> int | None:
    process.join(_SECONDS)
    return process.exitcode  # type: ignore[no-any-return]


# ---- at once ----


def get_all(here: Here, path: str, made: str, count: int) -> list[int]:
    """Every process asks for all keys, in one order."""
    with CacheLoader(path) as cache:
        here.meet()

        def make(key: int) -> int:
            with Path(made).open("a") as log:
                log.write(f"{key}\n")
            return key**2

        return [cache.get(key, make) for key in range(count)]


@pytest.mark.gate
def test_processes_that_ask_at_once_get_what_one_of_them_makes(
    processes: Processes, path: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    assert processes.run(get_all, str(path), str(made), 200) == [[key**2 for key in range(200)]] * COUNT
    assert sorted(map(int, made.read_text().split())) == list(range(200))


def get_in_a_circle(here: Here, path: str) -> str:
    """Each process asks, while it makes a key, for the next one's."""
    with CacheLoader(path) as cache:

        def make(key: int) -> Any:
            here.meet()
            return cache.get((key + 1) % COUNT, str)

        return cache.get(here.number, make)  # type: ignore[no-any-return]


def test_processes_that_wait_for_each_others_keys_do_not_hang(processes: Processes, path: Path) -> None:
    """The last one to ask makes the other's value itself, and all others take that."""
    found = processes.run(get_in_a_circle, str(path))
    assert found == [found[0]] * COUNT


def open_anew(here: Here, directory: str, count: int) -> int:
    total = 0
    for number in range(count):
        here.meet()
        with CacheLoader(f"{directory}/{number}") as cache:
            total += cache.get("key", lambda _: 1)
    return total


def test_processes_may_make_the_file_at_once(processes: Processes, tmp_path: Path) -> None:
    assert processes.run(open_anew, str(tmp_path), 30) == [30] * COUNT


# ---- forked while the file is open ----


def get_some(cache: CacheLoader, opened: Any, closed: Any, keys: range) -> None:
    cache.get(keys[0], value_of)
    opened.release()
    assert closed.wait(_SECONDS)
    for key in keys:
        cache.get(key, value_of)


def test_a_fork_does_not_share_the_parents_connection(path: Path) -> None:
    """If a child took the parent's locks for its own, the parent's close would delete the log that it writes to."""
    cache = CacheLoader(path)
    cache.get(0, value_of)
    opened, closed = FORK.Semaphore(0), FORK.Event()
    with contextlib.ExitStack() as stack:
        shares = (range(1, 20), range(20, 40))
        children = [stack.enter_context(child(get_some, cache, opened, closed, keys)) for keys in shares]
        assert all(opened.acquire(timeout=_SECONDS) for _ in children)
        assert cache.num_keys() == 3
        cache.close()
        closed.set()
        assert [ended(process) for process in children] == [0, 0]
    with cache:
        assert cache.num_keys() == 40
        assert all(cache.get(key, never) == value_of(key) for key in range(40))
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# ---- killed ----


def write_for_ever(path: str, said: Any, first: int) -> None:
    with CacheLoader(path) as cache:
        for key in range(first, 10**9):
            cache.get(key, value_of)
            said.send(key)


def test_a_process_killed_while_it_writes_leaves_what_it_had_stored(path: Path) -> None:
    stored = 0
    for _ in range(8):
        hears, says = FORK.Pipe(duplex=False)
        with hears, says, child(write_for_ever, str(path), says, stored) as writer:
            for _ in range(5):
                assert hears.poll(_SECONDS)
                stored = hears.recv() + 1
            writer.kill()
            assert ended(writer) == -signal.SIGKILL
        with CacheLoader(path) as cache:
            assert all(cache.get(key, never) == value_of(key) for key in range(stored))
            assert cache.num_keys() in range(stored, stored + 100)
            stored = cache.num_keys()
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def make_for_ever(path: str, says: Any) -> None:
    def make(key: str) -> None:
        says.send(key)
        signal.pause()

    CacheLoader(path).get("key", make)


def get_after(path: str, begins: Any) -> None:
    with CacheLoader(path) as cache:
        begins.set()
        assert cache.get("key", lambda _: 1) == 1


def test_a_process_killed_while_it_makes_a_value_holds_nobody_up(path: Path) -> None:
    hears, says = FORK.Pipe(duplex=False)
    begins = FORK.Event()
    with hears, says, child(make_for_ever, str(path), says) as maker:
        assert hears.poll(_SECONDS)
        with child(get_after, str(path), begins) as other:
            assert begins.wait(_SECONDS)
            assert other.exitcode is None
            maker.kill()
            assert ended(other) == 0


# ---- loaders ----


class Logged:
    """Writes down which samples were made."""

    def __init__(self, log: str) -> None:
        self.log = log

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        with Path(self.log).open("a") as file:
            file.write(f"{index}\n")
        return {"index": index, "values": torch.full((3,), index)}


def indices(loader: DataLoader) -> list[int]:
    found = []
    for batch in loader:
        assert batch["values"].tolist() == [[index] * 3 for index in batch["index"].tolist()]
        found += batch["index"].tolist()
    return found


@pytest.mark.gate
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_workers_of_loaders_share_the_samples(path: Path, tmp_path: Path, method: str) -> None:
    log = tmp_path / "made"
    cached = CachedDataset(Logged(str(log)), path)
    first = cached[0]  # so that the file is open when workers are forked
    assert first["index"] == 0
    for _ in range(2):
        loader = DataLoader(cached, 4, num_workers=2, multiprocessing_context=method)
        assert indices(loader) == list(range(40))
    assert sorted(map(int, log.read_text().split())) == list(range(40))
    assert (cached.hits, cached.misses) == (0, 1)  # this process's own
    cached.close()


def epoch_of(here: Here, path: str, log: str) -> list[int]:
    """Each rank has workers of its own, forked from it."""
    cached = CachedDataset(Logged(log), path)
    try:
        return indices(DataLoader(cached, 4, num_workers=1, multiprocessing_context="fork"))
    finally:
        cached.close()


def test_ranks_with_workers_share_the_samples(processes: Processes, path: Path, tmp_path: Path) -> None:
    log = tmp_path / "made"
    assert processes.run(epoch_of, str(path), str(log)) == [list(range(40))] * COUNT
    assert sorted(map(int, log.read_text().split())) == list(range(40))
