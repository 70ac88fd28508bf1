# SPDX-License-Identifier: MIT
"""Tensors that every rank can make for every other, and the required results of collectives.

A collective of :data:`COLLECTIVES` runs it on one rank and returns the tensors that it has written; its ``expected``
computes the same from all ranks' inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tests.torch_backend import names

if TYPE_CHECKING:
    from tests.support.rank import Here

INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
#: Types that are moved but never reduced, by us or by gloo, except a complex sum and logic on bools.
OTHERS = (torch.bool, torch.int16, *COMPLEX, torch.float8_e4m3fn)
#: Memory layouts.
LAYOUTS = ("plain", "offset", "every other", "transposed")
BITWISE = ("BAND", "BOR", "BXOR")
REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", *BITWISE)


@dataclass(frozen=True)
class Case:
    """One call of a collective, on all ranks."""

    collective: str
    dtype: torch.dtype
    shape: tuple[int, ...]  #: of one rank's input or output
    reduction: str = "SUM"
    layout: str = "plain"
    root: int = 0
    seed: int = 0
    later: bool = False  #: asked for with async_op, and waited for

    def given(self, rank: int, part: int = 0) -> torch.Tensor:
        """A tensor of random values that differ from those of other ranks and parts."""
        return laid_out(values(self.dtype, self.shape, 1000 * self.seed + 100 * part + rank), self.layout)

    def empty(self, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """A tensor to write to, filled with other values."""
        return laid_out(values(self.dtype, self.shape if shape is None else shape, 99), self.layout)

    @property
    def op(self) -> Any:
        return getattr(dist.ReduceOp, self.reduction)


def values(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Random numbers; integers cover the whole range of the type."""
    source = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=source).bool()
    if dtype.is_complex or dtype.is_floating_point:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, generator=source, dtype=wide).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, generator=source, dtype=dtype)


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in another layout. Not every shape can have every layout."""
    if layout == "plain" or tensor.dim() == 0:
        return tensor
    if layout == "offset":
        held = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)[3:].view(tensor.shape)
    elif layout == "every other":
        held = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)[..., 0]
    else:
        held = torch.zeros(tensor.shape[::-1], dtype=tensor.dtype).permute(*reversed(range(tensor.dim())))
    return held.copy_(tensor)


# ---- reductions ----

_OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_OF_TWO_BOOLS = _OF_TWO | {"SUM": torch.logical_or, "PRODUCT": torch.logical_and}


def is_exact(case: Case, size: int) -> bool:
    """Is there only one right answer, to the last bit? Sums and products of floats depend on their order."""
    if case.dtype.is_complex or case.dtype.is_floating_point:
        return case.reduction in ("MIN", "MAX") or (case.reduction != "AVG" and size == 2)
    return True


def reduced(case: Case, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """The reduction of all ranks' tensors in order; floats in double precision where the order matters."""
    of_two = (_OF_TWO_BOOLS if case.dtype is torch.bool else _OF_TWO)[case.reduction]
    if not is_exact(case, len(given)):
        given = [tensor.to(torch.complex128 if case.dtype.is_complex else torch.float64) for tensor in given]
    total = functools.reduce(of_two, given)
    if case.reduction != "AVG":
        return total
    rounding = None if total.is_complex() or total.is_floating_point() else "trunc"
    return torch.div(total, len(given), rounding_mode=rounding)


def tolerance(case: Case, given: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Each element's tolerance: each of n - 1 operations rounds once, and so does the expected value. None: exact."""
    if is_exact(case, len(given)):
        return None
    sizes = [tensor.abs().to(torch.float64) for tensor in given]
    magnitude = functools.reduce(torch.mul if case.reduction == "PRODUCT" else torch.add, sizes)
    limits = torch.finfo(case.dtype)
    return len(given) * limits.eps * magnitude + len(given) * limits.smallest_normal * limits.eps


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def difference(got: torch.Tensor, wanted: torch.Tensor, allowed: torch.Tensor | None) -> str | None:
    """The difference in words; None: they are equal."""
    if got.shape != wanted.shape:
        return f"has the shape {tuple(got.shape)} and not {tuple(wanted.shape)}"
    if allowed is None:
        if got.dtype != wanted.dtype or not torch.equal(bits(got), bits(wanted)):
            return f"is {_shown(got)} and not {_shown(wanted)}"
        return None
    wide = torch.complex128 if got.is_complex() else torch.float64
    wrong = (got.to(wide) - wanted.to(wide)).abs() > allowed
    if not wrong.any():
        return None
    return f"is {_shown(got[wrong])} and not {_shown(wanted[wrong])}, {int(wrong.sum())} of {wrong.numel()} too far off"


def _shown(tensor: torch.Tensor) -> str:
    return str(tensor.reshape(-1)[:8].tolist())


# ---- the collectives ----

Given = Sequence[torch.Tensor]
#: Runs it on this rank; returns the tensors to compare.
Run = Callable[["Here", Any, Case], list[torch.Tensor]]
#: The same tensors for one rank, computed from all ranks' inputs.
Expected = Callable[[Case, int, int], list[torch.Tensor]]


@dataclass(frozen=True)
class Collective:
    run: Run
    expected: Expected
    reduces: bool = False
    rooted: bool = False
    #: The tensors whose reduction this rank gets, for the tolerance.
    reduces_what: Callable[[Case, int, int], Given] | None = None


def _done(work: Any) -> None:
    if work is not None:
        work.wait()


def _all(case: Case, size: int, part: int = 0) -> list[torch.Tensor]:
    return [case.given(rank, part) for rank in range(size)]


def _broadcast(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    tensor = case.given(here.rank)
    _done(dist.broadcast(tensor, group_src=case.root, group=group, async_op=case.later))
    return [tensor]


def _all_reduce(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    tensor = case.given(here.rank)
    _done(dist.all_reduce(tensor, op=case.op, group=group, async_op=case.later))
    return [tensor]


def _reduce(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    tensor = case.given(here.rank)
    _done(dist.reduce(tensor, group_dst=case.root, op=case.op, group=group, async_op=case.later))
    return [tensor] if here.rank == case.root else []


def _all_gather(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    outputs = [case.empty() for _ in range(here.size)]
    _done(dist.all_gather(outputs, case.given(here.rank), group=group, async_op=case.later))
    return outputs


def _all_gather_single(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    output = case.empty((here.size * case.shape[0], *case.shape[1:]))
    _done(names.all_gather_single(output, case.given(here.rank), group=group, async_op=case.later))
    return [output]


def _gather(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    outputs = [case.empty() for _ in range(here.size)] if here.rank == case.root else None
    _done(dist.gather(case.given(here.rank), outputs, group_dst=case.root, group=group, async_op=case.later))
    return outputs or []


def _gather_single(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    output = case.empty((here.size * case.shape[0], *case.shape[1:])) if here.rank == case.root else None
    _done(dist.gather_single(case.given(here.rank), output, group_dst=case.root, group=group, async_op=case.later))
    return [] if output is None else [output]


def _scatter(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    output = case.empty()
    inputs = [case.given(case.root, part) for part in range(here.size)] if here.rank == case.root else None
    _done(dist.scatter(output, inputs, group_src=case.root, group=group, async_op=case.later))
    return [output]


def _reduce_scatter(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    output = case.empty()
    inputs = [case.given(here.rank, part) for part in range(here.size)]
    _done(dist.reduce_scatter(output, inputs, op=case.op, group=group, async_op=case.later))
    return [output]


def _reduce_scatter_single(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    output = case.empty()
    tensor = laid_out(torch.cat([case.given(here.rank, part) for part in range(here.size)]), case.layout)
    _done(names.reduce_scatter_single(output, tensor, op=case.op, group=group, async_op=case.later))
    return [output]


def _all_to_all(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    outputs = [case.empty() for _ in range(here.size)]
    inputs = [case.given(here.rank, part) for part in range(here.size)]
    _done(dist.all_to_all(outputs, inputs, group=group, async_op=case.later))
    return outputs


def _all_to_all_single(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    output = case.empty((here.size * case.shape[0], *case.shape[1:]))
    tensor = laid_out(torch.cat([case.given(here.rank, part) for part in range(here.size)]), case.layout)
    _done(dist.all_to_all_single(output, tensor, group=group, async_op=case.later))
    return [output]


def rows_from(sender: int, receiver: int, rows: int) -> int:
    """The number of rows that one rank sends another where these differ: from none to 2 × rows."""
    return (sender + 2 * receiver) % 3 * rows


def _uneven(case: Case, sender: int, receiver: int) -> torch.Tensor:
    shape = (rows_from(sender, receiver, case.shape[0]), *case.shape[1:])
    return replace(case, shape=shape, layout="plain").given(sender, receiver)


def _all_to_all_uneven(here: Here, group: Any, case: Case) -> list[torch.Tensor]:
    rows, ranks = case.shape[0], range(here.size)
    sent = [rows_from(here.rank, rank, rows) for rank in ranks]
    received = [rows_from(rank, here.rank, rows) for rank in ranks]
    output = case.empty((sum(received), *case.shape[1:]))
    tensor = laid_out(torch.cat([_uneven(case, here.rank, rank) for rank in ranks]), case.layout)
    _done(dist.all_to_all_single(output, tensor, received, sent, group=group, async_op=case.later))
    return [output]


def _parts(case: Case, rank: int, size: int) -> Given:
    return _all(case, size, part=rank)


COLLECTIVES = {
    "broadcast": Collective(_broadcast, lambda case, rank, size: [case.given(case.root)], rooted=True),
    "all_reduce": Collective(
        _all_reduce,
        lambda case, rank, size: [reduced(case, _all(case, size))],
        reduces_what=lambda case, rank, size: _all(case, size),
        reduces=True,
    ),
    "reduce": Collective(
        _reduce,
        lambda case, rank, size: [reduced(case, _all(case, size))] if rank == case.root else [],
        reduces_what=lambda case, rank, size: _all(case, size),
        reduces=True,
        rooted=True,
    ),
    "all_gather": Collective(_all_gather, lambda case, rank, size: _all(case, size)),
    "all_gather_single": Collective(_all_gather_single, lambda case, rank, size: [torch.cat(_all(case, size))]),
    "gather": Collective(_gather, lambda case, rank, size: _all(case, size) if rank == case.root else [], rooted=True),
    "scatter": Collective(_scatter, lambda case, rank, size: [case.given(case.root, rank)], rooted=True),
    "reduce_scatter": Collective(
        _reduce_scatter, lambda case, rank, size: [reduced(case, _parts(case, rank, size))], True, False, _parts
    ),
    "reduce_scatter_single": Collective(
        _reduce_scatter_single, lambda case, rank, size: [reduced(case, _parts(case, rank, size))], True, False, _parts
    ),
    "all_to_all": Collective(_all_to_all, lambda case, rank, size: list(_parts(case, rank, size))),
    "all_to_all_single": Collective(
        _all_to_all_single, lambda case, rank, size: [torch.cat(list(_parts(case, rank, size)))]
    ),
    "all_to_all_uneven": Collective(
        _all_to_all_uneven,
        lambda case, rank, size: [torch.cat([_uneven(case, sender, rank) for sender in range(size)])],
    ),
}
if hasattr(dist, "gather_single"):  # since torch 2.14
    COLLECTIVES["gather_single"] = Collective(
        _gather_single,
        lambda case, rank, size: [torch.cat(_all(case, size))] if rank == case.root else [],
        rooted=True,
    )
#: Collectives that join all ranks' tensors along the first dimension, which must exist.
SINGLE = ("all_gather_single", "gather_single", "reduce_scatter_single", "all_to_all_single", "all_to_all_uneven")

#: gloo has no all_to_all of lists before torch 2.12.
NOT_OF_GLOO = ("gather_single", *(("all_to_all",) if torch.__version__ < (2, 12) else ()))


def gloo_takes(case: Case) -> bool:
    """Excludes cases that gloo refuses or defines differently, such as a sum of bools that is 2."""
    if case.collective in NOT_OF_GLOO or case.reduction == "AVG":
        return False
    return case.dtype in (*INTEGERS, *FLOATS, *(COMPLEX if case.collective == "all_reduce" else ()))


def compare(here: Here, case: Case) -> list[str]:
    """Runs it over both backends; the differences from the expected result and from gloo, in words."""
    collective = COLLECTIVES[case.collective]
    expected = collective.expected(case, here.rank, here.size)
    allowed = None
    if collective.reduces_what is not None:
        allowed = tolerance(case, collective.reduces_what(case, here.rank, here.size))
    got = collective.run(here, None, case)
    told = [
        f"ours {text}"
        for ours, wanted in zip(got, expected, strict=True)
        if (text := difference(ours, wanted, allowed))
    ]
    if gloo_takes(case):
        theirs = collective.run(here, here.gloo, replace(case, layout="plain"))
        twice = None if allowed is None else 2 * allowed
        told += [
            f"gloo's {text}"
            for ours, their in zip(got, theirs, strict=True)
            if (text := difference(their, ours, twice))
        ]
    return told
