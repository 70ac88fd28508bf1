# SPDX-License-Identifier: MIT
"""Tensors in the library's terms: an address, a number of elements, an element type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._native import library

#: BNET_… of bagua_net_host.h. A bool is a byte of 0 or 1.
_CODES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.bool: 1,
    torch.int32: 2,
    torch.int64: 3,
    torch.float16: 4,
    torch.bfloat16: 5,
    torch.float32: 6,
    torch.float64: 7,
}
#: Those that can be reduced.
TYPES = list(_CODES)
#: What complex numbers consist of, which are summed and averaged by their parts.
_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
#: By which a wrapper of a collective's result, torch's AsyncCollectiveTensor, waits for it and gives it.
_END = "trigger_wait"
_POINTER = library.ffi.typeof("void *")
#: The code for bytes that are moved but not reduced.
BYTES = 1

_SUM, _PROD, _MIN, _MAX, _AVG, _BAND, _BOR, _BXOR = range(8)
_Op = dist.ReduceOp.RedOpType
_OPS = {
    _Op.SUM: _SUM,
    _Op.PRODUCT: _PROD,
    _Op.MIN: _MIN,
    _Op.MAX: _MAX,
    _Op.AVG: _AVG,
    _Op.BAND: _BAND,
    _Op.BOR: _BOR,
    _Op.BXOR: _BXOR,
}
#: Operations on bytes of 0 and 1 whose results stay 0 or 1: a sum of bools is "any", a product is "all".
_OPS_OF_BOOL = {_SUM: _MAX, _PROD: _MIN, _MIN: _MIN, _MAX: _MAX, _BAND: _BAND, _BOR: _BOR, _BXOR: _BXOR}


def check(tensor: torch.Tensor, what: str) -> None:
    """Accepts only a dense tensor in host memory.

    Raises:
        TypeError: it is not a tensor.
        ValueError: it is another kind of tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what}: a tensor is needed, not {type(tensor).__name__}")
    if not tensor.is_cpu:
        instead = 'make the group with "cpu:bagua_net,cuda:nccl"' if tensor.is_cuda else "move it"
        raise ValueError(
            f"{what}: the bagua_net backend takes CPU tensors, and this one is on {tensor.device}; {instead}"
        )
    if _is_wrapper(tensor) and not hasattr(tensor, _END):
        raise ValueError(
            f"{what}: a {type(tensor).__name__} has no memory of its own; pass what it wraps, such as its to_local()"
        )
    if tensor.layout != torch.strided:
        only = "" if what == "all_reduce" else ", and only all_reduce takes sparse ones"
        raise ValueError(f"{what}: {tensor.layout} tensors are not supported{only}; call to_dense() on it")


def same(tensors: Sequence[torch.Tensor], like: torch.Tensor, what: str) -> None:
    """Raises ValueError unless all have the element type and the number of elements of ``like``."""
    for tensor in tensors:
        check(tensor, what)
        if tensor.dtype != like.dtype or tensor.numel() != like.numel():
            raise ValueError(
                f"{what}: all tensors must have the same type and size; one has {tensor.numel()} of {tensor.dtype}, "
                f"another {like.numel()} of {like.dtype}"
            )


def one_type(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raises ValueError unless all have the same element type."""
    found = sorted({str(tensor.dtype) for tensor in tensors})
    if len(found) > 1:
        raise ValueError(f"{what}: the tensors are of {' and '.join(found)}; give all one type")


def only(tensors: Sequence[Any] | torch.Tensor, what: str) -> Any:
    """The only element of a list, or a tensor by itself. torch's interface has lists for several devices per process; a
    CPU is one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what}: one tensor per process is needed, not {len(tensors)}")
    return tensors[0]


def reduction(dtype: torch.dtype, op: Any) -> tuple[int, int]:
    """The library's codes (element type, operation) for reducing tensors of this type.

    Raises:
        ValueError: the library has no such reduction, or not for this type.
    """
    kind = getattr(op, "op", op)
    number = _OPS.get(kind)
    if number in (_SUM, _AVG):
        dtype = _PARTS.get(dtype, dtype)
    code = _CODES.get(dtype)
    if number is None:
        raise ValueError(f"{kind} is not supported; scale the tensor and use ReduceOp.SUM")
    if code is None:
        raise ValueError(f"{dtype} cannot be reduced; convert it, for example to torch.int32 or torch.float32")
    if number >= _BAND and dtype.is_floating_point:
        raise ValueError(f"bitwise reductions need integers, not {dtype}")
    if dtype is torch.bool:
        if number not in _OPS_OF_BOOL:
            raise ValueError("truth values have no average; convert them, for example to torch.float32")
        number = _OPS_OF_BOOL[number]
    return code, number


def address(tensor: torch.Tensor) -> Any:
    """The C pointer to a contiguous tensor's first element."""
    return library.ffi.cast(_POINTER, tensor.data_ptr())


def size_of(tensor: torch.Tensor) -> int:
    """Bytes."""
    return int(tensor.numel() * tensor.element_size())


def empty(shape: int | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialized host memory, regardless of torch.set_default_device."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Has it no memory of its own, as a DTensor?"""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.numel() == 0:
        return False
    try:
        return bool(tensor.untyped_storage().data_ptr() == 0)
    except RuntimeError:
        return True


def memory_of(given: Any) -> set[int]:
    """Where a tensor, or those of a list, also of lists, have their values; 0 for those without memory of their own."""
    if not isinstance(given, torch.Tensor):
        return {place for each in given for place in memory_of(each)}
    if given.numel() == 0:
        return set()
    if given.layout is torch.sparse_coo:
        return {given._values().untyped_storage().data_ptr()}
    if _is_wrapper(given):
        return {0}
    return {given.untyped_storage().data_ptr()}


def is_plain(tensor: torch.Tensor) -> bool:
    """Does its memory hold its values contiguously? A conjugate's values differ in sign from the memory it views."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg() and not _is_wrapper(tensor)


def is_ordinary(tensor: Any) -> bool:
    """Is it a tensor that :func:`check` accepts and the library can use as it is? Most are: all in one, for speed."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in contiguous memory: the tensor itself, or a copy."""
    if type(tensor) is torch.Tensor and is_plain(tensor):
        return tensor
    if _is_wrapper(tensor):
        tensor = getattr(tensor, _END)()
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def store(values: torch.Tensor, tensor: torch.Tensor) -> None:
    """Writes the values into a tensor, on any thread. An inference tensor may only be written in inference mode."""
    with torch.inference_mode(tensor.is_inference()):
        tensor.detach().copy_(values)


class Buffers:
    """Where an operation writes: the tensors themselves, or contiguous memory in place of those that are not."""

    def __init__(self, tensors: Sequence[torch.Tensor], *, reads: bool = False) -> None:
        """``reads``: the operation also reads their values."""
        self._tensors = tensors
        self.plain = [tensor if is_plain(tensor) else _staged(tensor, reads) for tensor in tensors]
        self._staged = any(plain is not tensor for plain, tensor in zip(self.plain, tensors, strict=True))

    @property
    def store(self) -> Callable[[], None] | None:
        """What remains to be done when the operation is over; None: nothing.

        It refers to this object, which must not keep it: only the garbage collector would free the copies.
        """
        return self._store if self._staged else None

    def _store(self) -> None:
        for plain, tensor in zip(self.plain, self._tensors, strict=True):
            if plain is not tensor:
                store(plain, tensor)


def _staged(tensor: torch.Tensor, reads: bool) -> torch.Tensor:
    plain = tensor.detach()
    return contiguous(plain) if reads else empty(plain.shape, plain.dtype)


def addresses(tensors: Sequence[torch.Tensor]) -> Any:
    """A C array of pointers to the first elements of contiguous tensors: ``void *[]``."""
    return library.ffi.new("void *[]", [address(tensor) for tensor in tensors])


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All values of the tensors in sequence: a new tensor of one dimension."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def split(values: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """The inverse of :func:`joined`: stores the values in the tensors."""
    at = 0
    for tensor in tensors:
        store(values[at : at + tensor.numel()].view(tensor.shape), tensor)
        at += tensor.numel()


def elements(tensor: torch.Tensor, splits: Sequence[int], nranks: int) -> list[int]:
    """The number of elements of each rank's part of a tensor that is split along its first dimension."""
    rows = tensor.size(0) if tensor.dim() > 0 else 0
    if not splits:
        if rows % nranks != 0:
            raise ValueError(
                f"all_to_all: a first dimension of {rows} cannot be split among {nranks} ranks; give the sizes"
            )
        splits = [rows // nranks] * nranks
    if len(splits) != nranks or sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"all_to_all: the sizes {list(splits)} must be {nranks}, one for each rank, none negative, and add "
            f"up to {rows}"
        )
    width = tensor.numel() // rows if rows > 0 else 0
    return [count * width for count in splits]


def all_of(stores: Sequence[Callable[[], None] | None]) -> Callable[[], None] | None:
    """One call that stores what each of them does; None: nothing remains to be stored."""
    steps = [store for store in stores if store is not None]
    if not steps:
        return None

    def store() -> None:
        for step in steps:
            step()

    return store
