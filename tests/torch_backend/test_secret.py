# SPDX-License-Identifier: MIT
"""With BAGUA_NET_SECRET_FILE, ranks prove what torch's store says of them. Several ranks of a group in one process
suffice: each has the store's view of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from bagua_net.torch import ProcessGroupBaguaNet
from tests.support.ranks import Ranks, refusal
from tests.torch_backend.inside import await_meeting

if TYPE_CHECKING:
    from tests.support.rank import Here

pytestmark = pytest.mark.gate

_JOB = b"the secret of this job"
_SIZE = 3
_LONG = timedelta(seconds=20)
_IDENTITY = 32  # characters

Change = Callable[[dist.Store, dist.Store], None]


def _secret(directory: Path, secret: bytes) -> str:
    path = directory / secret.hex()
    path.touch(0o600)
    path.write_bytes(secret)
    return str(path)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Ranks]:
    """A process that has a secret."""
    with Ranks(1, {"BAGUA_NET_SECRET_FILE": _secret(tmp_path, _JOB)}) as ranks:
        yield ranks


# ---- what a stranger writes to the store ----


def _keys(store: dist.Store) -> dist.Store:
    return dist.PrefixStore(f"bagua_net/{store.get('bagua_net').decode()}", store)


def _told(store: dist.Store, rank: int) -> dict[str, bytes]:
    """What the rank has published, and its proof, without the identity of its life."""
    keys = [f"collectives/{rank}", f"collectives/{rank}/proof"]
    return {key: _keys(store).get(key)[_IDENTITY:] for key in keys}  # waits for them


def _tell(store: dist.Store, rank: int, told: list[bytes]) -> None:
    identity = _keys(store).get(f"collectives/{rank}")[:_IDENTITY]
    for key, value in zip(_told(store, rank), told, strict=True):
        _keys(store).set(key, identity + value)


def _exchange(store: dist.Store, _: dist.Store) -> None:
    first, second = (list(_told(store, rank).values()) for rank in (1, 2))
    _tell(store, 1, second)
    _tell(store, 2, first)


def _replay(store: dist.Store, earlier: dist.Store) -> None:
    """Of another group of ranks that know the secret."""
    _tell(store, 1, list(_told(earlier, 1).values()))


def _alter(store: dist.Store, _: dist.Store) -> None:
    """The last byte of the handle."""
    row, proof = _told(store, 1).values()
    _tell(store, 1, [row[:-1] + bytes([row[-1] ^ 1]), proof])


_CHANGES: dict[str, Change] = {"exchanged": _exchange, "replayed": _replay, "altered": _alter}


def _groups(stack: ExitStack, store: dist.Store) -> list[Any]:
    groups: list[Any] = []
    for rank in range(_SIZE):
        groups.append(ProcessGroupBaguaNet(store, rank, _SIZE, _LONG, "here"))
        stack.callback(groups[-1].abort)
    for group in groups:
        await_meeting(group)
    return groups


def sums(_: Here, change: str) -> list[str]:
    """After that change: the result of an operation on each rank, or why the first one has none."""
    with ExitStack() as stack:
        store, earlier = dist.HashStore(), dist.HashStore()
        groups = _groups(stack, store)
        _groups(stack, earlier)
        if change:
            _CHANGES[change](store, earlier)
        tensors = [torch.ones(1) for _ in groups]
        works = [group.allreduce([tensor]) for group, tensor in zip(groups, tensors, strict=True)]
        if change:
            return [refusal(works[0].wait)]
        for work in works:
            work.wait()
        return [str(float(tensor)) for tensor in tensors]


def test_ranks_prove_their_rows(alone: Ranks) -> None:
    assert alone.run(sums, "") == [["3.0"] * _SIZE]


@pytest.mark.parametrize("change", _CHANGES)
def test_a_row_that_is_not_the_rank_s_own(alone: Ranks, change: str) -> None:
    ((told,),) = alone.run(sums, change)
    assert "rank 1 does not prove what torch's store says of it" in told


# ---- ranks that do not belong together ----


def meet(_: Here, rank: int, file: str) -> str:
    group: Any = ProcessGroupBaguaNet(dist.FileStore(file, 2), rank, 2, _LONG, "here")
    try:
        return refusal(group.allreduce([torch.ones(1)]).wait)
    finally:
        group.abort()


@pytest.mark.parametrize("second", [b"", b"the secret of another job"])
def test_two_that_do_not_belong_together(tmp_path: Path, second: bytes) -> None:
    with ExitStack() as stack:
        ranks = []
        for secret in (_JOB, second):
            settings = {"BAGUA_NET_SECRET_FILE": _secret(tmp_path, secret)} if secret else {}
            ranks.append(stack.enter_context(Ranks(1, settings)))
        for rank, process in enumerate(ranks):
            process.begin(meet, rank, str(tmp_path / "store"))
        told = [process.collect()[0].value for process in ranks]
    if second:
        assert all("BAGUA_NET_SECRET_FILE has another secret than this process's" in each for each in told)
    else:
        assert "BAGUA_NET_SECRET_FILE is set for this rank, and not for rank 1" in told[0]
        assert "BAGUA_NET_SECRET_FILE is set for rank 0, and not for this rank" in told[1]
