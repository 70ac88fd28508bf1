# SPDX-License-Identifier: MIT
"""The cache in one process: what it keeps, what it refuses, and that it never ends a job."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from bagua_net.data import CachedDataset, CacheLoader, SampleUnsupported, _folder
from bagua_net.data._cache import _digest

_SECONDS = 120


def never(key: Any) -> Any:
    pytest.fail(f"{key!r} was made again")


def of_bytes(key: int) -> bytes:
    return bytes([key]) * 50_000


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def cache(tmp_path: Path) -> CacheLoader:
    return CacheLoader("values", tmp_path)


# ---- what it keeps ----


def test_a_value_is_made_once(cache: CacheLoader, tmp_path: Path) -> None:
    assert cache.get("a", lambda key: (key, 1)) == ("a", 1)
    assert cache.get("b", lambda key: None) is None
    for loader in (cache, CacheLoader("values", tmp_path)):  # the second is the next run's
        assert loader.get("a", never) == ("a", 1)
        assert loader.get("b", never) is None
        assert loader.num_keys() == 2


def test_a_dataset_is_read_once(tmp_path: Path) -> None:
    made = []

    class Squares:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> torch.Tensor:
            if index >= 5:
                raise IndexError(index)
            made.append(index)
            return torch.tensor(index**2)

    cached = CachedDataset(Squares(), "squares", tmp_path)
    for _ in range(2):
        assert [int(sample) for sample in cached] == [0, 1, 4, 9, 16]
    assert made == list(range(len(cached)))
    assert cached.cache_loader.num_keys() == 5


def test_another_name_is_another_cache(tmp_path: Path) -> None:
    one, two = CacheLoader("one", tmp_path), CacheLoader("two", tmp_path)
    assert [one.get(1, lambda key: "of one"), two.get(1, lambda key: "of two")] == ["of one", "of two"]
    assert [one.get(1, never), two.get(1, never)] == ["of one", "of two"]


def test_the_default_directory_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    before = os.umask(0o002)  # that of users with a group of their own
    try:
        CacheLoader("values").get(1, str)
    finally:
        os.umask(before)
    assert CacheLoader("values", tmp_path / ".cache" / "bagua-net").get(1, never) == "1"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    CacheLoader("values").get(1, str)
    assert CacheLoader("values", tmp_path / "other" / "bagua-net").get(1, never) == "1"


def test_keys_of_different_types_are_different(cache: CacheLoader) -> None:
    keys = [1, "1", -1, 2**70, "", "a/b", "\udc80"]
    for key in keys:
        cache.get(key, repr)
    assert [cache.get(key, never) for key in keys] == list(map(repr, keys))


def test_numbers_of_other_libraries_are_the_same_keys(cache: CacheLoader) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    cache.get(3, str)
    cache.get("a", str)
    assert cache.get(numpy.int64(3), never) == "3"
    assert cache.get(torch.tensor(3), never) == "3"
    assert cache.get(numpy.str_("a"), never) == "a"


@pytest.mark.parametrize("key", [1.5, None, b"1", slice(3), (1, 2), torch.ones(2)], ids=lambda key: type(key).__name__)
def test_other_keys_are_refused(cache: CacheLoader, key: Any) -> None:
    with pytest.raises(SampleUnsupported, match="is no key of a cache"):
        cache.get(key, str)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(12).reshape(3, 4).t(),
        torch.ones(3, dtype=torch.bfloat16),
        torch.empty(0, 3),
        {"a": [1, 2.5, True, None], "b": ("text", b"bytes", 1 + 2j), 3: {4}},
        OrderedDict(a=torch.ones(1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_as_it_was(cache: CacheLoader, value: Any) -> None:
    for found in (cache.get(1, lambda key: value), cache.get(1, never)):
        assert type(found) is type(value)
        assert found.equal(value) if isinstance(value, torch.Tensor) else found == value


def test_a_part_of_a_tensor_is_stored_without_the_rest(cache: CacheLoader, tmp_path: Path) -> None:
    whole = torch.arange(10**6)
    assert cache.get(1, lambda key: [whole[:3]])[0].tolist() == [0, 1, 2]
    assert cache.get(1, never)[0].tolist() == [0, 1, 2]
    assert max(file.stat().st_size for file in tmp_path.rglob("*")) < 10_000


def test_what_comes_back_may_be_changed(cache: CacheLoader) -> None:
    for make in (lambda key: torch.ones(3), never):
        cache.get(1, make).zero_()
    assert cache.get(1, never).tolist() == [1, 1, 1]


# ---- what it refuses ----


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


def local_class() -> Any:
    class Local:
        pass

    return Local()


def array() -> Any:
    return pytest.importorskip("numpy", reason="numpy is not installed").ones(3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Point(1), r"test_cache\.Point.*add_safe_globals"),
        (lambda: {"a": [Bomb()]}, r"pytest|outcomes.*fail"),
        (lambda: array(), r"numpy.*torch\.from_numpy"),
        (local_class, "cannot be stored: .*local"),
        (lambda: threading.Lock(), "cannot be stored: TypeError: cannot pickle"),
    ],
    ids=["class", "reduce", "array", "local", "lock"],
)
def test_other_values_are_an_error_at_their_first_request(
    cache: CacheLoader, make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(SampleUnsupported, match=words) as raised:
        cache.get("key", lambda key: make())
    assert "'key'" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert cache.num_keys() == 0
    assert cache.get("key", str) == "key"


def test_a_class_may_be_allowed(cache: CacheLoader) -> None:
    with torch.serialization.safe_globals([Point]):
        assert [cache.get(1, make).x for make in (Point, never)] == [1, 1]


def test_reading_runs_no_code_of_the_file(cache: CacheLoader, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.get(1, str)
    (file,) = (file for file in (tmp_path / "values").iterdir() if len(file.name) == 32)
    buffer = io.BytesIO()
    torch.save(Bomb(), buffer)
    file.write_bytes(_digest(buffer.getvalue()) + buffer.getvalue())
    assert cache.get(1, str) == "1"
    assert cache.get(1, never) == "1"
    assert ["cannot be read" in message for message in warnings_in(caplog)] == [True]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
def test_a_name_is_that_of_a_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a name of its own"):
        CacheLoader(name, tmp_path)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_is_positive(tmp_path: Path, capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity={capacity}"):
        CacheLoader("values", tmp_path, capacity=capacity)


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter([1])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("dataset", [iter([1]), 5, {1}, Stream()], ids=lambda dataset: type(dataset).__name__)
def test_a_dataset_without_indices_is_refused(tmp_path: Path, dataset: Any) -> None:
    with pytest.raises(TypeError, match="map-style"):
        CachedDataset(dataset, "values", tmp_path)


# ---- requests in requests ----


def test_an_error_of_the_function_leaves_the_key_free(cache: CacheLoader) -> None:
    def fail(key: Any) -> Any:
        raise OSError("no such sample")

    with pytest.raises(OSError, match="no such sample"):
        cache.get(1, fail)
    assert cache.num_keys() == 0
    assert cache.get(1, str) == "1"
    assert cache.get(1, never) == "1"


def test_a_function_may_ask_the_cache(cache: CacheLoader) -> None:
    def factorial(number: int) -> int:
        return number * cache.get(number - 1, factorial) if number else 1

    assert cache.get(5, factorial) == 120
    assert [cache.get(number, never) for number in range(6)] == [1, 1, 2, 6, 24, 120]


def test_threads_that_wait_for_each_others_keys_do_not_hang(
    cache: CacheLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes a value does not wait for another one, but makes that as well. Processes have the same locks."""
    monkeypatch.setattr(_folder, "_PATIENCE_S", 2 * _SECONDS)
    both = threading.Barrier(2)

    def make(key: int) -> Any:
        both.wait(_SECONDS)
        return cache.get(1 - key, str)

    with ThreadPoolExecutor(2) as threads:
        found = [thread.result(_SECONDS) for thread in [threads.submit(cache.get, key, make) for key in range(2)]]
    assert set(found) <= {"0", "1"}  # made anew, or what the other one had made of that


def test_a_thread_does_not_wait_for_ever_for_one_that_waits_for_it(
    cache: CacheLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ranks do in a collective operation of the function that makes a value."""
    monkeypatch.setattr(_folder, "_PATIENCE_S", 0.05)
    both = threading.Barrier(2)

    def make(key: int) -> int:
        both.wait(_SECONDS)
        return key

    with ThreadPoolExecutor(2) as threads:
        found = [thread.result(_SECONDS) for thread in [threads.submit(cache.get, 1, make) for _ in range(2)]]
    assert found == [1, 1]
    assert cache.get(1, never) == 1


# ---- files ----


def test_only_this_user_can_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        CacheLoader("values", tmp_path).get(1, str)
    finally:
        os.umask(before)
    folder = tmp_path / "values"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in folder.iterdir()] == [0o600, 0o600]


def test_nothing_stays_open(cache: CacheLoader) -> None:
    def descriptors() -> set[str]:
        return {entry.name for entry in Path("/proc/self/fd").iterdir()}

    before = descriptors()
    cache.get(1, str)
    assert descriptors() == before


def test_a_relative_directory_is_that_of_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = CacheLoader("values", "caches")
    cache.get(1, str)
    monkeypatch.chdir("/")
    assert cache.get(1, never) == "1"


def _a_file(directory: Path) -> None:
    (directory / "values").touch()


def _writable_by_others(directory: Path) -> None:
    (directory / "values").mkdir()
    (directory / "values").chmod(0o720)


def _of_another_user(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    (directory / "values").mkdir()
    os.chown(directory / "values", 12345, -1)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_a_file, "File exists"),
        (_writable_by_others, "others may write to it: `chmod go-w`"),
        (_of_another_user, "it belongs to the user 12345"),
    ],
)
def test_without_a_folder_values_are_made_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prepare: Callable[[Path], None], words: str
) -> None:
    prepare(tmp_path)
    cache = CacheLoader("values", tmp_path)
    values = iter(range(3))
    assert [cache.get(1, lambda key: next(values)) for _ in range(3)] == [0, 1, 2]
    assert cache.num_keys() == 0
    (message,) = warnings_in(caplog)
    assert message.startswith(f"the cache {tmp_path}/values cannot be used, and all values are made")
    assert "directory= or XDG_CACHE_HOME" in message
    assert words in message


def test_a_user_without_a_home_has_no_cache(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(kind: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(none))
    assert CacheLoader("values").get(1, str) == "1"
    assert ["home directory" in message for message in warnings_in(caplog)] == [True]


def test_a_folder_that_is_deleted_meanwhile_is_missed_once(
    cache: CacheLoader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "values").rmdir()
    assert [cache.get(key, str) for key in range(3)] == ["0", "1", "2"]
    assert ["No such file" in message for message in warnings_in(caplog)] == [True]


def test_damaged_values_are_made_again(cache: CacheLoader, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for key in range(3):
        cache.get(key, of_bytes)
    for number, file in enumerate(file for file in (tmp_path / "values").iterdir() if len(file.name) == 32):
        os.truncate(file, number * 20_000)
    assert [cache.get(key, of_bytes) for key in range(3)] == list(map(of_bytes, range(3)))
    assert [cache.get(key, never) for key in range(3)] == list(map(of_bytes, range(3)))
    assert ["made again" in message for message in warnings_in(caplog)] == [True]


def test_damage_within_a_tensor_is_noticed(cache: CacheLoader, tmp_path: Path) -> None:
    """torch reads past it."""
    wanted = cache.get("a", lambda key: torch.arange(1000))
    (file,) = (file for file in (tmp_path / "values").iterdir() if len(file.name) == 32)
    content = bytearray(file.read_bytes())
    at = content.index(b"".join(number.to_bytes(8, sys.byteorder) for number in (500, 501)))
    content[at : at + 16] = bytes(16)
    file.write_bytes(content)
    assert torch.equal(cache.get("a", lambda key: torch.arange(1000)), wanted)


def test_a_deleted_cache_has_no_values(cache: CacheLoader, tmp_path: Path) -> None:
    (tmp_path / "values").rmdir()
    assert cache.num_keys() == 0


def test_a_directory_in_which_others_may_replace_the_cache_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    CacheLoader("values", tmp_path / "shared").get(1, str)
    assert ["others may replace it" in message for message in warnings_in(caplog)] == [True]


# ---- capacity ----


def test_a_value_that_never_fits_leaves_room_for_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = CacheLoader("values", tmp_path, capacity=100_000)
    cache.get("large", lambda key: bytes(200_000))
    cache.get("small", str)
    assert cache.num_keys() == 1
    assert ["more than all may have" in message for message in warnings_in(caplog)] == [True]


def test_a_full_cache_stays_as_it_is_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    capacity = 600_000
    caches = [CacheLoader("values", tmp_path, capacity=capacity) for _ in range(2)]  # as of two processes
    for _ in range(2):
        assert [caches[key % 2].get(key, of_bytes) for key in range(30)] == list(map(of_bytes, range(30)))
        kept = caches[0].num_keys()
        assert kept == 600_000 // (13 * 4096)  # of values of 50,000 bytes and a description
    assert sum(file.stat().st_size for file in (tmp_path / "values").iterdir()) <= capacity
    assert all(caches[0].get(key, never) == of_bytes(key) for key in range(kept))
    assert ["the 600000 bytes that it may have" in message for message in warnings_in(caplog)] == [True] * 2
    larger = CacheLoader("values", tmp_path, capacity=2 * capacity)
    larger.get(29, of_bytes)
    assert larger.num_keys() == kept + 1


def test_a_full_disk_is_a_full_cache(cache: CacheLoader, caplog: pytest.LogCaptureFixture) -> None:
    """A limit of this process stands for the disk: the kernel refuses to write on at both."""
    import resource
    import signal

    cache.get("short", str)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        found = [cache.get(key, of_bytes) for key in range(3)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert found == list(map(of_bytes, range(3)))
    assert cache.num_keys() == 1
    assert cache.get("short", never) == "short"
    assert ["takes no more values" in message for message in warnings_in(caplog)] == [True]
