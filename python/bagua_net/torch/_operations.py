# SPDX-License-Identifier: MIT
"""torch's operations in terms of the library's: what each is given is checked and described here.

C++ (DDP's reducer, functional collectives) calls the methods through torch's trampolines, Python calls them by name;
methods that torch 2.13 renamed have their old names as well.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .._native import library
from . import _ddp_join as ddp_join
from . import _fields as fields
from . import _observers as observers
from . import _sparse as sparse
from . import _tensors as tensors
from ._call_options import options as _options
from ._call_options import seconds as _seconds
from ._collectives import Collectives
from ._fingerprints import Fingerprints, describe
from ._in_flight import InFlight
from ._messages import Messages
from ._request import Request
from ._work import Context, Joint, Message, Work

_W = TypeVar("_W", bound=dist.Work)
#: Bytes from which on a coalesced tensor is reduced where it is: copying it there and back takes longer than a further
#: operation.
_LARGE = 256 * 1024
_LEAST_TAG, _LARGEST_TAG = -(2**63), 2**63 - 1


class Block(threading.local):
    """The operations that this thread has started since it began to coalesce; None: it does not coalesce."""

    works: list[Work] | None = None


class Operations:
    """For a class that has a rank, a size, collectives and messages. Every method returns a work."""

    _rank: int
    _size: int
    _label: str
    _timeout_s: float
    _collectives: Collectives
    _messages: Messages
    _coalescing: Block
    _in_flight: InFlight
    _context: Context  # of collectives, and …
    _message_context: Context
    _numbers: Iterator[int]  # of the collectives, from 1
    _sequence: int  # the last one
    _fingerprints: Fingerprints | None
    _order: threading.RLock  # with fingerprints: collectives start in the order of their comparison
    _is_comparing = False  # under _order, which a signal handler of the thread that has it takes again

    # ---- running a collective ----

    def _run(
        self,
        name: str,
        alike: Sequence[torch.Tensor],
        calls: Sequence[dict[str, Any]],
        result: list[Any],
        opts: Any,
        *,
        held: Any = None,
        store: Callable[[], None] | None = None,
    ) -> Work:
        """Posts one operation after the other, each given by the fields of ``bnet_op_t``.

        Args:
            name: torch.distributed's.
            alike: tensors whose type and shape are the same on all ranks.
            result: the tensors of the future.
            held: what must live until the end, besides the fields themselves.
            store: what remains to be done then.
        """

        return self._start(name, alike, opts, lambda: self._post(calls, result, opts, held, store))

    def _start(self, name: str, alike: Sequence[torch.Tensor], opts: Any, start: Callable[[], Work]) -> Work:
        """``start`` posts the operations of one collective."""
        if self._fingerprints is None:
            self._sequence = next(self._numbers)
            return self._seen(name, start)
        with self._order:
            self._collectives.refuse_if_ended()
            if self._is_comparing:
                raise RuntimeError(
                    f"bagua_net, {self._label}: a signal handler cannot start a collective of this group while it "
                    "interrupts another one before that moves data, which TORCH_DISTRIBUTED_DEBUG=DETAIL makes longer"
                )
            self._sequence = next(self._numbers)
            self._compare(self._fingerprints, describe(name, alike, opts), opts)
            work = self._seen(name, start)
        # Else its callbacks, and what they start, would run on another thread: not everywhere before this one's next.
        work.end()
        return work

    def _compare(self, fingerprints: Fingerprints, text: str, opts: Any) -> None:
        limit = _seconds(getattr(opts, "timeout", None)) or self._timeout_s
        try:
            self._is_comparing = True
            problem = fingerprints.compare(self._sequence, text, limit)
        except BaseException as error:
            self._not_posted(error, [])
            raise
        finally:
            self._is_comparing = False
        if problem:
            raise dist.DistBackendError(f"bagua_net, {self._label}: {problem}")

    def _seen(self, name: str, start: Callable[[], _W]) -> _W:
        return observers.observed(name, start) if observers.present() else start()

    def _post(
        self,
        calls: Sequence[dict[str, Any]],
        result: list[Any],
        opts: Any,
        held: Any,
        store: Callable[[], None] | None,
    ) -> Work:
        lib, limit = library.load_host(), _seconds(getattr(opts, "timeout", None))
        now = not getattr(opts, "asyncOp", True)
        operations = [library.ffi.new("bnet_op_t *", call | {"kind": getattr(lib, call["kind"])}) for call in calls]
        requests = [Request() for _ in operations]
        work = Work(self._context, requests, result, (operations, calls, held), store)
        try:
            self._in_flight.add(work)
            if store is not None:
                self._in_flight.will_store(work, tensors.memory_of(result))
            for operation, request in zip(operations, requests, strict=True):
                self._collectives.run(operation, request, limit, now=now)
        except BaseException as error:
            work.abandon()
            self._not_posted(error, requests)
            raise
        return self._began(work)

    def _not_posted(self, error: BaseException, requests: Sequence[Request]) -> None:
        """The refusal of a post is a RuntimeError. Any other exception is a signal handler's, and so is one that comes
        when something was posted."""
        if not isinstance(error, RuntimeError) or any(requests):
            self._context.interrupted(error)

    def _began(self, work: _W) -> _W:
        if self._coalescing.works is not None:
            self._coalescing.works.append(work)
        return work

    # ---- from one rank or to one rank ----

    def broadcast(
        self,
        tensor_list: Sequence[torch.Tensor] | torch.Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        tensor = tensors.only(tensor_list, "broadcast")
        self._check(tensor, "broadcast")
        opts = _options(dist.BroadcastOptions, opts, root, timeout)
        buffers = tensors.Buffers([tensor], reads=opts.rootRank == self._rank)
        call = fields.copy("BNET_COLL_BROADCAST", buffers.plain[0], root=opts.rootRank)
        store = None if opts.rootRank == self._rank else buffers.store
        return self._run("broadcast", [tensor], [call], [tensor], opts, held=buffers, store=store)

    def reduce(
        self,
        tensor_list: Sequence[torch.Tensor] | torch.Tensor,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        tensor = tensors.only(tensor_list, "reduce")
        self._check(tensor, "reduce")
        opts = _options(dist.ReduceOptions, opts, op, root, timeout)
        is_root = opts.rootRank == self._rank
        buffers = tensors.Buffers([tensor], reads=True)
        call = fields.reduction("BNET_COLL_REDUCE", buffers.plain[0], opts.reduceOp) | {"root": opts.rootRank}
        call["recv"] = call["send"] if is_root else library.ffi.NULL
        return self._run(
            "reduce", [tensor], [call], [tensor], opts, held=buffers, store=buffers.store if is_root else None
        )

    def gather(
        self,
        output_tensors: Sequence[Any],
        input_tensors: Sequence[torch.Tensor] | torch.Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        tensor = tensors.only(input_tensors, "gather")
        self._check(tensor, "gather")
        opts = _options(dist.GatherOptions, opts, root, timeout)
        root = opts.rootRank
        whole = [output_tensors] if tensor is input_tensors else output_tensors
        outputs = list(tensors.only(whole, "gather")) if root == self._rank else []
        if root == self._rank:
            self._one_each(outputs, "gather")
            self._check_same(outputs, tensor, "gather")
        buffers, send = tensors.Buffers(outputs), tensors.contiguous(tensor)
        call = fields.copy("BNET_COLL_GATHER", send, root=root) | {"recv": library.ffi.NULL}
        if root == self._rank:
            call["recvs"] = tensors.addresses(buffers.plain)
        return self._run("gather", [tensor], [call], outputs, opts, held=(buffers, send), store=buffers.store)

    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Only the root has an ``output``; torch passes an empty tensor on the others."""
        root = opts.rootRank if opts is not None else 0
        self._check(tensor, "gather_single")
        if root == self._rank:
            self._check_share(output, tensor, "gather_single")
        buffers, send = tensors.Buffers([output]), tensors.contiguous(tensor)
        call = fields.copy("BNET_COLL_GATHER", send, root=root) | {"recv": tensors.address(buffers.plain[0])}
        return self._run("gather_single", [tensor], [call], [output], opts, held=(buffers, send), store=buffers.store)

    def scatter(
        self,
        output_tensors: Sequence[torch.Tensor] | torch.Tensor,
        input_tensors: Sequence[Any],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        tensor = tensors.only(output_tensors, "scatter")
        self._check(tensor, "scatter")
        opts = _options(dist.ScatterOptions, opts, root, timeout)
        root = opts.rootRank
        whole = [input_tensors] if tensor is output_tensors else input_tensors
        inputs = list(tensors.only(whole, "scatter")) if root == self._rank else []
        if root == self._rank:
            self._one_each(inputs, "scatter")
            self._check_same(inputs, tensor, "scatter")
        buffers, sends = tensors.Buffers([tensor]), [tensors.contiguous(one) for one in inputs]
        call = fields.copy("BNET_COLL_SCATTER", buffers.plain[0], root=root) | {"send": library.ffi.NULL}
        if root == self._rank:
            call["sends"] = tensors.addresses(sends)
        return self._run("scatter", [tensor], [call], [tensor], opts, held=(buffers, sends), store=buffers.store)

    # ---- from all ranks to all ----

    def allreduce(
        self,
        tensor_list: Sequence[torch.Tensor] | torch.Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> Work:
        tensor = tensors.only(tensor_list, "allreduce")
        opts = _options(dist.AllreduceOptions, opts, op, timeout)
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo and tensor.is_cpu:
            return self._allreduce_sparse(tensor, opts)
        self._check(tensor, "all_reduce")
        buffers = tensors.Buffers([tensor], reads=True)
        call = fields.reduction("BNET_COLL_ALLREDUCE", buffers.plain[0], opts.reduceOp)
        work = self._run("all_reduce", [tensor], [call], [tensor], opts, held=buffers, store=buffers.store)
        if tensor.numel() == 1 and getattr(opts, "asyncOp", True):
            ddp_join.keep(work)
        return work

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Work:
        """Waits here until all ranks have told how many entries they have."""
        if self._in_flight.stores:
            self._in_flight.await_stores(tensors.memory_of(tensor))
        exchange = sparse.Exchange(tensor, opts.reduceOp)
        first = dist.AllreduceOptions()
        first.timeout, first.asyncOp = opts.timeout, False

        def start() -> Work:
            own, rows = exchange.described(), tensors.empty((self._size, sparse.FIELDS), torch.int64)
            call = fields.copy("BNET_COLL_ALL_GATHER", own) | {"recv": tensors.address(rows)}
            self._post([call], [rows], first, (own, rows), None).wait()
            return self._post(exchange.calls(rows), [tensor], opts, exchange, exchange.store)

        return self._start("all_reduce", [tensor], opts, start)

    def allreduce_coalesced(self, tensor_list: Sequence[torch.Tensor], opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.AllreduceCoalescedOptions()
        large: list[torch.Tensor] = []
        small: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensor_list:
            self._check(tensor, "allreduce_coalesced")
            tensors.reduction(tensor.dtype, opts.reduceOp)
            group = large if tensor.nbytes >= _LARGE else small.setdefault(tensor.dtype, [])
            group.append(tensor)
        joined = {dtype: tensors.joined(group) for dtype, group in small.items()}
        buffers = tensors.Buffers(large, reads=True)
        plain = [*buffers.plain, *joined.values()]
        calls = [fields.reduction("BNET_COLL_ALLREDUCE", each, opts.reduceOp) for each in plain]

        def store() -> None:
            if buffers.store is not None:
                buffers.store()
            for dtype, group in small.items():
                tensors.split(joined[dtype], group)

        return self._run(
            "all_reduce_coalesced", tensor_list, calls, list(tensor_list), opts, held=(buffers, joined), store=store
        )

    def allgather(
        self,
        output_tensors: Sequence[Any],
        input_tensors: Sequence[torch.Tensor] | torch.Tensor,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        tensor = tensors.only(input_tensors, "allgather")
        outputs = output_tensors if tensor is input_tensors else tensors.only(output_tensors, "allgather")
        opts = _options(dist.distributed_c10d.AllgatherOptions, opts, timeout)
        return self.allgather_coalesced([[output] for output in outputs], [tensor], opts, result=[list(outputs)])

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        opts: Any = None,
        *,
        result: list[Any] | None = None,
    ) -> Work:
        """``output_lists[rank][i]`` gets that rank's ``input_list[i]``."""
        self._one_each(output_lists, "allgather")
        calls, held, stores = [], [], []
        for i, tensor in enumerate(input_list):
            self._check(tensor, "allgather")
            outputs = [row[i] for row in output_lists]
            self._check_same(outputs, tensor, "allgather")
            buffers, send = tensors.Buffers(outputs), tensors.contiguous(tensor)
            calls.append(fields.copy("BNET_COLL_ALL_GATHER", send) | {"recvs": tensors.addresses(buffers.plain)})
            held.append((buffers, send))
            stores.append(buffers.store)
        return self._run(
            "all_gather", input_list, calls, result or list(output_lists), opts, held=held, store=tensors.all_of(stores)
        )

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_share(output, tensor, "all_gather")
        buffers, sends = tensors.Buffers(outputs), [tensors.contiguous(tensor) for tensor in inputs]
        calls = [
            fields.copy("BNET_COLL_ALL_GATHER", send) | {"recv": tensors.address(plain)}
            for send, plain in zip(sends, buffers.plain, strict=True)
        ]
        return self._run(
            "all_gather_single", inputs, calls, list(outputs), opts, held=(buffers, sends), store=buffers.store
        )

    def reduce_scatter(
        self,
        output_tensors: Sequence[torch.Tensor] | torch.Tensor,
        input_tensors: Sequence[Any],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> Work:
        output = tensors.only(output_tensors, "reduce_scatter")
        inputs = list(input_tensors if output is output_tensors else tensors.only(input_tensors, "reduce_scatter"))
        self._check(output, "reduce_scatter")
        self._one_each(inputs, "reduce_scatter")
        self._check_same(inputs, output, "reduce_scatter")
        opts = _options(dist.ReduceScatterOptions, opts, op, timeout)
        buffers, sends = tensors.Buffers([output]), [tensors.contiguous(tensor) for tensor in inputs]
        call = fields.reduction("BNET_COLL_REDUCE_SCATTER", buffers.plain[0], opts.reduceOp)
        call |= {"send": library.ffi.NULL, "sends": tensors.addresses(sends)}
        return self._run("reduce_scatter", [output], [call], [output], opts, held=(buffers, sends), store=buffers.store)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_share(tensor, output, "reduce_scatter")
        buffers, sends = tensors.Buffers(outputs), [tensors.contiguous(tensor) for tensor in inputs]
        calls = [
            fields.reduction("BNET_COLL_REDUCE_SCATTER", plain, opts.reduceOp) | {"send": tensors.address(send)}
            for send, plain in zip(sends, buffers.plain, strict=True)
        ]
        return self._run(
            "reduce_scatter_single", outputs, calls, list(outputs), opts, held=(buffers, sends), store=buffers.store
        )

    # ---- compressed: opts are those of _quantized.py, which has checked everything else ----

    def allreduce_quantized(self, tensor: torch.Tensor, residual: torch.Tensor | None, opts: Any) -> Work:
        self._check(tensor, "all_reduce_quantized")
        call = fields.reduction("BNET_COLL_ALLREDUCE_Q", tensor, opts.reduceOp) | opts.fields() | fields.kept(residual)
        return self._run("all_reduce_quantized", [tensor], [call], [tensor], opts, held=(tensor, residual))

    def reduce_scatter_quantized(
        self, output: torch.Tensor, tensor: torch.Tensor, residual: torch.Tensor | None, opts: Any
    ) -> Work:
        self._check_share(tensor, output, "reduce_scatter_quantized")
        call = fields.reduction("BNET_COLL_REDUCE_SCATTER_Q", output, opts.reduceOp)
        call |= opts.fields() | fields.kept(residual) | {"send": tensors.address(tensor)}
        return self._run("reduce_scatter_quantized", [output], [call], [output], opts, held=(output, tensor, residual))

    # ---- all to all ----

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        opts = _options(dist.AllToAllOptions, opts, timeout)
        self._check(output, "all_to_all")
        self._check(tensor, "all_to_all")
        tensors.one_type([output, tensor], "all_to_all")
        width = tensor.element_size()
        recv_counts = [count * width for count in tensors.elements(output, output_splits, self._size)]
        send_counts = [count * width for count in tensors.elements(tensor, input_splits, self._size)]
        buffers, send = tensors.Buffers([output]), tensors.contiguous(tensor)
        if send.data_ptr() == output.data_ptr():
            send = send.clone()
        call = fields.exchange(send_counts, recv_counts)
        call |= {"send": tensors.address(send), "recv": tensors.address(buffers.plain[0])}
        return self._run("all_to_all_single", [], [call], [output], opts, held=(buffers, send), store=buffers.store)

    def alltoall(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        self._one_each(output_tensors, "all_to_all")
        self._one_each(input_tensors, "all_to_all")
        for tensor in (*output_tensors, *input_tensors):
            self._check(tensor, "all_to_all")
        tensors.one_type([*output_tensors, *input_tensors], "all_to_all")
        buffers, sends = tensors.Buffers(output_tensors), [tensors.contiguous(tensor) for tensor in input_tensors]
        call = fields.exchange([tensors.size_of(one) for one in sends], [tensors.size_of(one) for one in buffers.plain])
        call |= {"sends": tensors.addresses(sends), "recvs": tensors.addresses(buffers.plain)}
        return self._run(
            "all_to_all", [], [call], list(output_tensors), opts, held=(buffers, sends), store=buffers.store
        )

    def barrier(self, opts: Any = None, *, timeout: timedelta | None = None) -> Work:
        opts = _options(dist.BarrierOptions, opts, timeout)
        return self._run("barrier", [], [{"kind": "BNET_COLL_BARRIER"}], [], opts)

    # ---- point to point ----

    # Thousands may be in flight: what each keeps is little, for the sake of Python's garbage collector.

    def send(self, tensor_list: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        plain = tensors.only(tensor_list, "send")
        peer = self._peer("send", peer)
        if not tensors.is_ordinary(plain):
            tensors.check(plain, "send")
            plain = tensors.contiguous(plain)
        return self._message(True, tensor_list, plain, None, peer, tag)

    def recv(self, tensor_list: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        return self._receive(tensor_list, self._peer("recv", peer), tag)

    def recv_anysource(self, tensor_list: Sequence[torch.Tensor], tag: int) -> Work:
        return self._receive(tensor_list, -1, tag)

    def _receive(self, tensor_list: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        plain, store = tensors.only(tensor_list, "recv"), None
        if not tensors.is_ordinary(plain):
            tensors.check(plain, "recv")
            buffers = tensors.Buffers([plain])
            plain, store = buffers.plain[0], buffers.store
        return self._message(False, tensor_list, plain, store, peer, tag)

    def _peer(self, what: str, given: Any) -> int:
        peer = self._integer(f"{what}: the rank", given)
        if not 0 <= peer < self._size:
            raise ValueError(
                f"bagua_net, {self._label}: {what}: {peer} is no rank of this group, which has 0 to {self._size - 1}"
            )
        if peer == self._rank:
            raise ValueError(f"bagua_net, {self._label}: {what}: rank {peer} cannot exchange messages with itself")
        return peer

    def _integer(self, what: str, given: Any) -> int:
        """Also of other types, such as NumPy's. The library takes nothing else."""
        try:
            return operator.index(given)
        except TypeError:
            raise TypeError(f"bagua_net, {self._label}: {what} must be an integer, not {given!r}") from None

    def _message(
        self,
        sends: bool,
        tensor_list: Sequence[torch.Tensor],
        plain: torch.Tensor,
        store: Callable[[], None] | None,
        peer: int,
        tag: int,
    ) -> Work:
        """Posts it; ``plain`` and ``store``: see :class:`tensors.Buffers`."""
        tag = self._integer("the tag", tag)
        if not _LEAST_TAG <= tag <= _LARGEST_TAG:
            raise ValueError(
                f"bagua_net, {self._label}: the tag {tag} has more than 64 bits: use {_LEAST_TAG} to {_LARGEST_TAG}"
            )
        request = Request()
        work = Message(self._message_context, (request,), tensor_list, plain, store)
        work.about = (sends, peer, tag)
        work.limit_s = self._timeout_s if self._timeout_s > 0 else None
        try:
            self._in_flight.add(work)
            if observers.present():
                arguments = (sends, request, plain.data_ptr(), plain.nbytes, peer, tag)
                observers.observed("send" if sends else "recv", lambda: self._posted(work, arguments))
            else:
                self._messages.post(sends, request, plain.data_ptr(), plain.nbytes, peer, tag)
        except BaseException as error:
            work.abandon()
            self._not_posted(error, [request])
            raise
        return work if self._coalescing.works is None else self._began(work)

    def _posted(self, work: Message, arguments: tuple[Any, ...]) -> Message:
        self._messages.post(*arguments)
        return work

    # ---- coalescing ----

    def _start_coalescing(self, device: Any) -> None:
        self._coalescing.works = []

    def _end_coalescing(self, device: Any) -> Joint:
        parts, self._coalescing.works = self._coalescing.works or [], None
        return Joint(parts)

    # ---- checks ----

    def _check(self, tensor: torch.Tensor, what: str) -> None:
        """Also waits for collectives before this one that have yet to store something in its memory."""
        tensors.check(tensor, what)
        if self._in_flight.stores:
            self._in_flight.await_stores(tensors.memory_of(tensor))

    def _check_same(self, given: Sequence[torch.Tensor], other: torch.Tensor, what: str) -> None:
        tensors.same(given, other, what)
        if self._in_flight.stores:
            self._in_flight.await_stores(tensors.memory_of(given))

    def _one_each(self, given: Sequence[Any], what: str) -> None:
        if len(given) != self._size:
            raise ValueError(f"{what}: {self._size} tensors are needed, one for each rank, not {len(given)}")

    def _check_share(self, whole: torch.Tensor, share: torch.Tensor, what: str) -> None:
        self._check(whole, what)
        self._check(share, what)
        if whole.dtype != share.dtype or whole.numel() != share.numel() * self._size:
            raise ValueError(
                f"{what}: the larger tensor must have {self._size} × the elements of the smaller one, of the same "
                f"type; they have {whole.numel()} of {whole.dtype} and {share.numel()} of {share.dtype}"
            )

    # The names in torch up to 2.12.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
