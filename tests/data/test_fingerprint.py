# SPDX-License-Identifier: MIT
"""Fingerprints of datasets: what tells one from another, what does not, and what is said where too little does."""

from __future__ import annotations

import collections
import functools
import logging
import random
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from bagua_net.data import CachedDataset, CacheMismatch, _fingerprint
from bagua_net.data._fingerprint import fingerprint
from tests.data.processes import Here, Processes

#: Bytes, more than are hashed. Memory of zeros takes no room until it is read.
_LARGE = 256 * 2**20 + 8


class Squares:
    """An index, squared."""

    def __init__(self, length: int = 5, offset: int = 0) -> None:
        self.length, self.offset = length, offset

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index**2 + self.offset)


class Made:
    """A dataset made of these."""

    def __init__(self, part: Any, *more: Any) -> None:
        self.part, self.more = part, list(more)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.cache"


def test_the_cache_of_another_dataset_is_refused(path: Path) -> None:
    CachedDataset(Squares(), path).close()
    CachedDataset(Squares(), path).close()
    for other, words in (
        (Squares(length=6), "length is 5 there and 6 here"),
        (Squares(offset=1), r"dataset\.offset is 0 there and 1 here; give another path or delete"),
        (list(range(5)), r"dataset is tests\.data\.test_fingerprint\.Squares there"),
    ):
        with pytest.raises(CacheMismatch, match=words):
            CachedDataset(other, path)
    with pytest.raises(CacheMismatch, match="encode is None there"):
        CachedDataset(Squares(), path, encode=int, decode=torch.tensor)


def test_a_name_stands_for_the_dataset(path: Path) -> None:
    CachedDataset(Squares(), path, fingerprint="squares, version 2").close()
    CachedDataset(Squares(length=9), path, fingerprint="squares, version 2").close()
    with pytest.raises(CacheMismatch, match="fingerprint is 'squares, version 2' there and 'squares, version 3' here"):
        CachedDataset(Squares(), path, fingerprint="squares, version 3")
    with pytest.raises(CacheMismatch, match="fingerprint is 'squares, version 2' there and absent here"):
        CachedDataset(Squares(), path)


# ---- what counts ----


class Resize:
    def __init__(self, size: int) -> None:
        self.size = size
        self.me = self  # a cycle

    def __call__(self, sample: Any) -> Any:
        return sample


@dataclass(frozen=True, slots=True)
class Slots:
    size: Any


class Hidden:
    """A name that Python changes, and one without a value."""

    __slots__ = ("__size", "unset")

    def __init__(self, size: int) -> None:
        self.__size = size


class Names(list[str]):
    def __init__(self, size: int) -> None:
        super().__init__(["a"])
        self.size = size


class Tagged(torch.Tensor):  # type: ignore[misc]
    tag: int


def tagged(tag: int) -> Tagged:
    tensor = torch.ones(2).as_subclass(Tagged)
    tensor.tag = tag
    return tensor  # type: ignore[no-any-return]


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value, Resize(0)]
    return value


class Images:
    def __init__(self, root: Path, transform: Callable[[Any], Any], names: list[str], tags: set[Any]) -> None:
        self.root, self.transform, self.names, self.tags = root, transform, names, tags
        self.log, self.lock, self.random = logging.Logger("images"), threading.Lock(), random.Random()
        self.generators = [np.random.default_rng(), torch.Generator()]
        self.generators[1].seed()
        self.me = weakref.ref(self)

    def __len__(self) -> int:
        return len(self.names)


def images(
    root: str = "/data", size: int = 224, names: tuple[str, ...] = ("a", "b"), tags: tuple[str, ...] = ("x", "y", "z")
) -> Images:
    never_called = functools.partial(Resize.__call__, size)  # type: ignore[arg-type]
    transforms = {"resize": [Resize(size), never_called, Slots(size).__eq__]}
    marks = {*tags, *map(Path, tags), *map(Slots, range(size, size + 9))}
    return Images(Path(root), transforms, [*names, *("long" * 30 for _ in range(9))], marks)  # type: ignore[arg-type]


def test_what_a_dataset_is_made_of_counts(caplog: pytest.LogCaptureFixture) -> None:
    own = fingerprint(images())
    assert own == fingerprint(images())
    for other in (images(root="/other"), images(size=256), images(names=("a", "c")), images(tags=("x", "y", "w"))):
        assert fingerprint(other) != own
    data = TensorDataset(torch.arange(9))
    assert fingerprint(Subset(data, [1, 2])) == fingerprint(Subset(TensorDataset(torch.arange(9)), [1, 2]))
    assert fingerprint(Subset(data, [1, 2])) != fingerprint(Subset(data, [1, 3]))
    assert fingerprint(Subset(data, [1, 2])) != fingerprint(Subset(TensorDataset(torch.arange(9) + 1), [1, 2]))
    assert caplog.records == []


def fingerprint_of_images(_: Here) -> str:
    return fingerprint(images())


@pytest.mark.gate
def test_a_fingerprint_is_the_same_in_every_process(processes: Processes) -> None:
    """Sets come in another order in each, objects are elsewhere, and what is random is other."""
    assert set(processes.run(fingerprint_of_images)) == {fingerprint(images())}


PARTS: dict[str, Callable[[int], Any]] = {
    "slots": Slots,
    "slots-with-changed-names": Hidden,
    "method": lambda size: Slots(size).__eq__,
    "builtin-method": lambda size: collections.deque([size]).append,
    "closure": lambda size: lambda: size,
    "closure-of-a-method": lambda size: Slots(lambda: size).__eq__,
    "default": lambda size: lambda x=size: x,
    "keyword-default": lambda size: lambda *, x=size: x,
    "deque": lambda size: collections.deque([size]),
    "range": range,
    "pattern": lambda size: re.compile("a" * size),
    "key": lambda size: {Hidden(size): 0},
    "set-of-objects": lambda size: {Slots(size), Slots(0)},
    "object-behind-many": lambda size: [*map(Resize, range(1500)), Resize(size)],
    "path-behind-many": lambda size: [*map(Path, map(str, range(1500))), Path(str(size))],
    "object-behind-many-lines": lambda size: [*(list(map(Resize, range(900))) for _ in range(12)), Resize(size)],
    "deep": lambda size: nested(size, 30),
    "buffer": lambda size: bytearray([size]),
    "array-of-objects": lambda size: np.array(["a", size, None], dtype=object),
    "array-of-structures": lambda size: np.array([(size, 0)], dtype=[("a", "i4"), ("b", "i4")]),
    "masked-array": lambda size: np.ma.array([1, 2], mask=[size == 1, True]),
    "sparse-tensor": lambda size: torch.diag(torch.tensor([size, 0])).to_sparse(),
    "tensor-with-attributes": tagged,
    "list-with-attributes": Names,
}


@pytest.mark.gate
@pytest.mark.parametrize("kind", PARTS)
def test_parts_that_hide_in_objects_count(kind: str) -> None:
    part = PARTS[kind]
    assert fingerprint(Made(part(1))) == fingerprint(Made(part(1)))
    assert fingerprint(Made(part(1))) != fingerprint(Made(part(2)))


class Reduced:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return Reduced, ([self.value],)


def test_objects_that_are_made_to_be_read_count() -> None:
    """None of them is taken for another one that was at its address before."""
    text = fingerprint(Made([Reduced(Slots(number)) for number in range(100)])) + "\n"
    assert all(f"part[{number}].args[0][0].size = {number}\n" in text for number in range(100))


def test_many_parts_are_hashed_together() -> None:
    assert fingerprint(Made(PARTS["object-behind-many"](1))).count("\n") < 4 * 1000
    assert fingerprint(Made(PARTS["object-behind-many-lines"](1))).count("\n") == 10_000


def test_functions_and_modules_count_by_their_names(caplog: pytest.LogCaptureFixture) -> None:
    text = fingerprint(Made(str.upper, len, np, Resize.__call__))
    for name in ("str.upper", "builtins.len", "module numpy", "test_fingerprint.Resize.__call__"):
        assert name in text
    assert len(text.splitlines()) < 10
    assert caplog.records == []


# ---- large ones ----


LARGE: dict[str, Callable[[np.ndarray], Any]] = {
    "tensor": torch.from_numpy,
    "tensor-of-2-bytes": lambda data: torch.from_numpy(data).view(torch.float16),
    "columns-of-a-tensor": lambda data: torch.from_numpy(data).view(4, -1).t(),
    "array": lambda data: data,
    "columns-of-an-array": lambda data: data.reshape(4, -1).T,
    "array-of-structures": lambda data: data.view([("a", "u1"), ("b", "u1")]),
    "buffer": lambda data: data.data,
    "list": lambda data: [data],
    "tensor-in-a-list": lambda data: {"a": (torch.from_numpy(data),)},
}


@pytest.mark.parametrize("kind", LARGE)
def test_large_contents_are_sampled(kind: str) -> None:
    """Two parts of one shape differ: at the ends, or in a thousandth of them anywhere."""
    data = np.zeros(_LARGE, dtype=np.uint8)
    found = {fingerprint(Made(LARGE[kind](data)))}
    assert fingerprint(Made(LARGE[kind](np.zeros(_LARGE, dtype=np.uint8)))) in found
    for start, end in ((0, 1), (_LARGE - 1, _LARGE), (10**8, 10**8 + _LARGE // 1000)):
        data[start:end] = 1
        found.add(fingerprint(Made(LARGE[kind](data))))
        data[start:end] = 0
    assert len(found) == 4


@pytest.mark.parametrize("size", [1000, _LARGE])
def test_files_mapped_into_memory_count_by_their_contents(tmp_path: Path, size: int) -> None:
    found = set()
    for name, last in (("a", 0), ("b", 0), ("c", 1)):
        data = np.memmap(tmp_path / name, dtype=np.uint8, mode="w+", shape=(size,))
        data[-1] = last
        found.add(fingerprint(Made(data)))
    assert len(found) == 2


def test_objects_that_only_say_how_large_they_are_are_no_arrays() -> None:
    class Table:
        nbytes = 2**40

        def __init__(self, rows: int) -> None:
            self.rows = rows

    assert fingerprint(Made(Table(1))) != fingerprint(Made(Table(2)))


# ---- what cannot be read ----


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_cannot_be_read_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(":memory:") as database:
        data = Made("name", database, {"cursors": [database.cursor(), database.cursor()]})
        assert fingerprint(data) == fingerprint(Made("name", database, data.more[1]))
    first, second = messages(caplog)
    assert first == second
    assert "cannot be looked into, dataset.more[0] (a sqlite3.Connection) and 2 more:" in first
    assert "give CachedDataset fingerprint=" in first


def test_attributes_beside_what_cannot_be_read_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = set()
    for mode in ("w", "a"):
        with (tmp_path / "file").open(mode) as file:
            found.add(fingerprint(Made(file)))
    assert len(found) == 2
    assert "dataset.part (a _io.TextIOWrapper):" in messages(caplog)[0]


def test_what_lies_too_deep_is_named(caplog: pytest.LogCaptureFixture) -> None:
    fingerprint(Made(nested(Resize(1), 50)))
    assert "[0] (too deep) and 2 more:" in messages(caplog)[0]


def test_what_lies_behind_many_objects_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fingerprint, "_OBJECTS", 10)
    fingerprint(Made([Resize(number) for number in range(20)]))
    assert "(behind too many others) and" in messages(caplog)[0]


def test_what_lies_behind_gigabytes_is_named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fingerprint, "_BYTES", 2**20)
    parts = [bytearray(2**19), np.zeros(2**19, np.uint8), [torch.zeros(2**18)], "short"]
    found = {fingerprint(Made(0, Slots(0), *parts, last)) for last in (1, 2)}
    assert len(found) == 2
    assert "dataset.more[3][0] (behind too many others):" in messages(caplog)[0]


class Rows:
    """Nothing but a handle."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_of_which_nothing_can_be_read_needs_a_name(path: Path) -> None:
    with sqlite3.connect(":memory:") as database:
        with pytest.raises(ValueError, match=r"dataset\.database \(a sqlite3\.Connection\) cannot be.*fingerprint="):
            CachedDataset(Rows(database), path)
        assert not path.exists()
        with_a_name = CachedDataset(Rows(database), path, fingerprint="rows")
        assert with_a_name[2] == 2
        with_a_name.close()


def __pyx_unpickle_Handle(*_: Any) -> None:  # noqa: N802
    pytest.fail("it was unpickled")


_UNPICKLE = __pyx_unpickle_Handle


class Handle:
    """As Cython makes one of a structure in C: pickle would get its fields, here an address."""

    def __reduce__(self) -> Any:
        return _UNPICKLE, (Handle, 1234, (id(self),))


def test_addresses_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    handles = Handle(), Handle()
    assert fingerprint(Made(1, handles[0])) == fingerprint(Made(1, handles[1]))
    assert "test_fingerprint.Handle)" in messages(caplog)[0]


class Closing:
    """It cannot be used any more after it was pickled."""

    def __init__(self, size: int) -> None:
        self.size, self.file = size, "open"

    def __getstate__(self) -> Any:
        self.file = "closed"
        return self.__dict__


class Failing:
    """It is not meant to be pickled."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def test_a_dataset_is_read_without_harm() -> None:
    data = Closing(1)
    assert fingerprint(Made(data)) != fingerprint(Made(Closing(2)))
    assert data.file == "open"
    assert fingerprint(Made(Failing(1))) != fingerprint(Made(Failing(2)))
