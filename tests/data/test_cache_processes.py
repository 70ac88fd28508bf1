# SPDX-License-Identifier: MIT
"""The cache between processes: ranks and loader workers, forked and spawned, at once and killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from bagua_net.data import CachedDataset, CacheLoader, _folder
from tests.support.tiers import variants

_SECONDS = 120
FORK = multiprocessing.get_context("fork")


def never(key: Any) -> Any:
    pytest.fail(f"{key!r} was made again")


def value_of(key: int) -> bytes:
    return bytes([key % 251]) * 300_000


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


# ---- forked ----


def test_a_process_forked_while_a_value_is_made_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock's file open as well."""
    monkeypatch.setattr(_folder, "_PATIENCE_S", 0)
    cache = CacheLoader("values", tmp_path)
    with contextlib.ExitStack() as stack:

        def fail(key: Any) -> None:
            stack.enter_context(child(signal.pause))
            raise ValueError("no such sample")

        with pytest.raises(ValueError, match="no such sample"):
            cache.get(1, fail)
        assert cache.get(1, str) == "1"
        assert cache.num_keys() == 1


# ---- at once ----


def test_who_has_waited_for_a_value_does_not_write_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it does not see the value yet, as on NFS: two would write to one file."""
    folder, lock = _folder.Folder(tmp_path, 10**6), _folder._lock

    def lock_later(descriptor: int, patience: float) -> bool:
        monkeypatch.undo()
        with folder.claimed("value") as mine:
            assert mine
            folder.write("value", b"1")
        return lock(descriptor, patience)

    monkeypatch.setattr(_folder, "_lock", lock_later)
    with folder.claimed("value") as mine:
        assert not mine
    with folder.claimed("value") as mine:
        assert mine


# ---- killed ----


def write_for_ever(directory: str, said: Any, first: int) -> None:
    cache = CacheLoader("values", directory)
    for key in range(first, 10**9):
        cache.get(key, value_of)
        said.send(key)


def test_a_process_killed_while_it_writes_leaves_what_it_had_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = 0
    cache = CacheLoader("values", tmp_path)
    for _ in range(8):
        hears, says = FORK.Pipe(duplex=False)
        with hears, says, child(write_for_ever, str(tmp_path), says, stored) as writer:
            for _ in range(5):
                assert hears.poll(_SECONDS)
                stored = hears.recv() + 1
            writer.kill()
            assert ended(writer) == -signal.SIGKILL
        assert all(cache.get(key, never) == value_of(key) for key in range(stored))
        assert cache.num_keys() in range(stored, stored + 100)
        stored = cache.num_keys()
    assert all(cache.get(key, value_of) == value_of(key) for key in range(stored + 1))
    assert caplog.text == ""


def make_for_ever(directory: str, says: Any) -> None:
    def make(key: str) -> None:
        says.send(key)
        signal.pause()

    CacheLoader("values", directory).get("key", make)


def get_after(directory: str, begins: Any) -> None:
    begins.set()
    assert CacheLoader("values", directory).get("key", lambda _: 1) == 1


def test_a_process_killed_while_it_makes_a_value_holds_nobody_up(tmp_path: Path) -> None:
    hears, says = FORK.Pipe(duplex=False)
    begins = FORK.Event()
    with hears, says, child(make_for_ever, str(tmp_path), says) as maker:
        assert hears.poll(_SECONDS)
        with child(get_after, str(tmp_path), begins) as other:
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
        if index == 0:
            time.sleep(0.2)  # others ask for it meanwhile, also where processors are busy
        return {"index": index, "values": torch.full((3,), index)}


def indices(loader: DataLoader) -> list[int]:
    found = []
    for batch in loader:
        assert batch["values"].tolist() == [[index] * 3 for index in batch["index"].tolist()]
        found += batch["index"].tolist()
    return found


@pytest.mark.gate
@pytest.mark.parametrize("method", variants("fork", nightly=["spawn"]))
def test_the_workers_of_loaders_share_the_samples(tmp_path: Path, method: str) -> None:
    log = tmp_path / "made"
    cached = CachedDataset(Logged(str(log)), "logged", tmp_path)
    assert cached[0]["index"] == 0
    for _ in range(2):
        loader = DataLoader(cached, 4, num_workers=2, multiprocessing_context=method)
        assert indices(loader) == list(range(40))
    assert sorted(map(int, log.read_text().split())) == list(range(40))


def epoch_of(begin: Any, directory: str, log: str) -> None:
    """A rank with a worker of its own."""
    cached = CachedDataset(Logged(log), "logged", directory)
    begin.wait(_SECONDS)
    assert indices(DataLoader(cached, 4, num_workers=1, multiprocessing_context="fork")) == list(range(40))


def test_ranks_that_ask_at_once_get_what_one_of_them_makes(tmp_path: Path) -> None:
    log = tmp_path / "made"
    begin = FORK.Barrier(4)
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(child(epoch_of, begin, str(tmp_path), str(log))) for _ in range(4)]
        assert [ended(rank) for rank in ranks] == [0] * 4
    assert sorted(map(int, log.read_text().split())) == list(range(40))
