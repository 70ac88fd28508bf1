# SPDX-License-Identifier: MIT
"""The cache in one process: what it keeps, what it refuses, and what it says."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pickle
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from bagua_net.data import CachedDataset, CacheLoader, CacheUnusable, SampleUnsupported
from bagua_net.data._store import NotStored, Store


def never(key: Any) -> Any:
    pytest.fail(f"{key!r} was made again")


class Squares:
    """An index, squared."""

    def __init__(self, length: int = 5, offset: int = 0) -> None:
        self.length, self.offset = length, offset

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.tensor(index**2 + self.offset)


def descriptors() -> set[str]:
    """The open ones."""
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.cache"


# ---- what it keeps ----


def test_a_value_is_made_once(path: Path) -> None:
    with CacheLoader(path) as cache:
        assert cache.get("a", lambda key: (key, 1)) == ("a", 1)
        assert cache.get("a", never) == ("a", 1)
        assert cache.get("b", lambda key: None) is None
        assert cache.get("b", never) is None
        assert (cache.hits, cache.misses, cache.num_keys()) == (2, 2, 2)
    with CacheLoader(path) as cache:  # the next run
        assert cache.get("a", never) == ("a", 1)
        assert (cache.hits, cache.misses, cache.num_keys()) == (1, 0, 2)


def test_a_dataset_is_read_once(path: Path) -> None:
    cached = CachedDataset(Squares(), path)
    for _ in range(2):
        assert [int(sample) for sample in cached] == [0, 1, 4, 9, 16]
    assert len(cached) == 5
    assert (cached.hits, cached.misses) == (5, 5)
    cached.close()


def test_keys_of_different_types_are_different(path: Path) -> None:
    keys = [1, "1", b"1", (1,), ("1",), (1, 1), -1, 2**70, "", b"", ()]
    with CacheLoader(path) as cache:
        for key in keys:
            cache.get(key, str)
        assert [cache.get(key, never) for key in keys] == list(map(str, keys))


def test_numbers_of_other_libraries_are_the_same_keys(path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    with CacheLoader(path) as cache:
        cache.get(3, str)
        cache.get((1, 2), str)
        assert cache.get(numpy.int64(3), never) == "3"
        assert cache.get(torch.tensor(3), never) == "3"
        assert cache.get((torch.tensor(1), 2), never) == "(1, 2)"


@pytest.mark.parametrize("key", [1.5, None, slice(3), [1], {"a": 1}, (1, [2])])
def test_other_keys_are_refused(path: Path, key: Any) -> None:
    with CacheLoader(path) as cache, pytest.raises(SampleUnsupported, match="is no key of a cache"):
        cache.get(key, str)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def to_number(point: Point) -> int:
    return point.x


def test_other_values_need_a_pair_of_functions(path: Path) -> None:
    with CacheLoader(path) as cache:
        with pytest.raises(SampleUnsupported, match=r"test_cache\.Point.*encode= and decode="):
            cache.get(1, Point)
        assert cache.num_keys() == 0
    with CacheLoader(path, encode=to_number, decode=Point) as cache:
        assert cache.get(1, Point).x == 1
        found = cache.get(1, never)
        assert (type(found), found.x) == (Point, 1)
    with pytest.raises(ValueError, match="both, or neither"):
        CacheLoader(path, encode=to_number)


def test_an_error_of_the_function_leaves_the_key_free(path: Path) -> None:
    def fail(key: Any) -> Any:
        raise OSError("no such sample")

    with CacheLoader(path) as cache:
        with pytest.raises(OSError, match="no such sample"):
            cache.get(1, fail)
        assert cache.get(1, str) == "1"
        assert (cache.misses, cache.num_keys()) == (1, 1)


def test_a_function_may_ask_the_cache(path: Path) -> None:
    with CacheLoader(path) as cache:

        def factorial(number: int) -> int:
            return number * cache.get(number - 1, factorial) if number else 1

        assert cache.get(5, factorial) == 120
        assert (cache.misses, cache.num_keys()) == (6, 6)


# ---- files ----


def test_only_this_user_can_read_the_files(path: Path) -> None:
    before = os.umask(0)
    try:
        with CacheLoader(path) as cache:
            cache.get(1, str)
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {f"{path.name}{suffix}": 0o600 for suffix in ("", "-wal", "-shm", "-lock")}


def test_nothing_stays_open(path: Path) -> None:
    before = descriptors()
    with CacheLoader(path) as cache:
        cache.get(1, str)
    assert descriptors() == before
    assert cache.get(1, never) == "1"  # opened again
    del cache
    assert descriptors() == before


def test_a_relative_path_is_that_of_the_first_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    cache = CacheLoader(path.name)
    cache.get(1, str)
    cache.close()
    monkeypatch.chdir("/")
    assert cache.get(1, never) == "1"


def test_a_copy_by_pickle_opens_the_file_itself(path: Path) -> None:
    with CacheLoader(path) as cache:
        cache.get(1, str)
        with pickle.loads(pickle.dumps(cache)) as copy:
            assert copy.get(1, never) == "1"
            assert (copy.hits, copy.misses) == (1, 0)


def refused(path: Path, words: str) -> None:
    before = descriptors()
    with pytest.raises(CacheUnusable, match=words):
        CacheLoader(path)
    assert descriptors() == before


def test_files_that_are_no_cache_are_refused(path: Path) -> None:
    refused(path.parent / "nowhere" / "file", "cannot be made: No such file")
    refused(path.parent, "is not a file")
    path.symlink_to("nowhere")
    refused(path, r"link that leads to no file \(No such file")
    path.unlink()
    path.write_bytes(b"no database" * 100)
    path.chmod(0o600)
    refused(path, "file is not a database; delete it")
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other (x)")
    database.close()
    path.chmod(0o600)
    refused(path, "database of another program")


def test_a_file_that_another_process_made_ready_meanwhile_is_taken(path: Path) -> None:
    with CacheLoader(path) as cache:
        cache.get(1, str)
        store = cache._store
        assert store._connection is not None
        store._initialize(store._connection)
        assert cache.get(1, never) == "1"


def test_a_cache_of_another_version_is_refused(path: Path) -> None:
    CacheLoader(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    refused(path, "another version of this package")


def test_a_file_that_others_may_write_to_is_refused(path: Path) -> None:
    CacheLoader(path).close()
    path.chmod(0o620)
    refused(path, "others may write to")
    path.chmod(0o600)
    Path(f"{path}-lock").chmod(0o602)
    refused(path, "others may write to .*-lock")


def test_a_file_of_another_user_is_refused(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    CacheLoader(path).close()
    os.chown(path, 12345, -1)
    refused(path, "belongs to the user 12345, and this is 0")


def test_a_damaged_file_is_an_error_that_says_so(path: Path) -> None:
    with CacheLoader(path) as cache:
        for key in range(50):
            cache.get(key, lambda key: bytes(20_000))
    contents = bytearray(path.read_bytes())
    for start in range(3 * 16384, len(contents), 16384):  # the pages behind those of the tables' beginnings
        contents[start : start + 64] = b"\xff" * 64
    path.write_bytes(contents)

    def read_all() -> None:
        with CacheLoader(path) as cache:
            for key in range(50):
                cache.get(key, never)

    with pytest.raises(CacheUnusable, match="delete it"):
        read_all()


# ---- capacity ----


def test_a_full_cache_stays_as_it_is_and_says_so_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    capacity = 600_000
    with CacheLoader(path, capacity=capacity) as cache:
        values = [cache.get(key, lambda key: bytes([key]) * 50_000) for key in range(30)]
        assert values == [bytes([key]) * 50_000 for key in range(30)]
        kept = cache.num_keys()
        assert 5 < kept < 12
        assert (cache.hits, cache.misses) == (0, 30)
        again = [cache.get(key, lambda key: bytes([key]) * 50_000) for key in range(30)]
        assert again == values
        assert (cache.hits, cache.misses, cache.num_keys()) == (kept, 30 + 30 - kept, kept)
    assert path.stat().st_size <= capacity
    messages = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(messages) == 1
    assert "database or disk is full" in messages[0]
    with CacheLoader(path, capacity=2 * capacity) as cache:  # there is room again
        cache.get(29, lambda key: bytes([key]) * 50_000)
        assert cache.num_keys() == kept + 1


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_is_positive(path: Path, capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity={capacity}"):
        CacheLoader(path, capacity=capacity)


def test_a_value_beyond_sqlites_limit_is_returned(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CacheLoader(path) as cache:
        connection = cache._store._connection
        assert connection is not None
        if sys.version_info < (3, 11):
            pytest.skip("this Python cannot set SQLite's limits")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
        assert cache.get(1, lambda key: bytes(2000)) == bytes(2000)
        assert cache.get(2, lambda key: bytes(500)) == bytes(500)
        assert cache.num_keys() == 1
    assert "too big" in caplog.text


def test_a_value_beyond_pythons_limit_is_not_stored(path: Path, tmp_path: Path) -> None:
    """A file of 2 GiB without contents, so that it takes no memory."""
    with (tmp_path / "zeros").open("w+b") as file, contextlib.closing(Store(path, "", 2**40)) as store:
        file.truncate(2**31)
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as zeros,
            pytest.raises(NotStored, match="longer than INT_MAX"),
        ):
            store.write(b"key", zeros)  # type: ignore[arg-type]
        assert store.count() == 0


# ---- datasets ----


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter([1])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("dataset", [iter([1]), 5, {1}, Stream()], ids=lambda dataset: type(dataset).__name__)
def test_a_dataset_without_indices_is_refused(path: Path, dataset: Any) -> None:
    with pytest.raises(TypeError, match="map-style"):
        CachedDataset(dataset, path)
