# SPDX-License-Identifier: MIT
"""The process group: torch's operations, in terms of the library's collectives.

torch lets Python subclass ``ProcessGroup``. Such a group serves all devices, and torch creates no other backend for it,
so "cpu:bagua_net,cuda:nccl" is refused. C++ (DDP's reducer, functional collectives) calls the methods through torch's
trampolines, Python calls them by name; methods that 2.13 renamed have their old names as well. From 2.14 on, Python can
also subclass ``Backend``, a part of a group; this package uses one way for all versions.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .._native import library
from .._torch_backend import NAME
from . import _tensors as tensors
from ._callbacks import Callbacks
from ._identity import Identity
from ._network import Collectives, Messages, Rendezvous
from ._order import Order
from ._roll_call import RollCall
from ._work import Joint, Message, Work

_ALGO_AUTO = 0
_NO_TIME = timedelta(0)

#: Groups whose threads must end before the interpreter does.
_open: weakref.WeakSet[ProcessGroupBaguaNet] = weakref.WeakSet()


def _seconds(timeout: timedelta | None) -> float | None:
    """The timeout in an operation's options. None: the group's, which torch expresses by any value not positive."""
    return timeout.total_seconds() if timeout is not None and timeout > _NO_TIME else None


def _backends(group: Any) -> list[str]:
    """The requested backends, such as "cpu:bagua_net". Empty as long as torch does not know the group."""
    config = str(dist.distributed_c10d._world.pg_backend_config.get(group, ""))
    return [part for part in config.split(",") if part]


class _Block(threading.local):
    """The operations that this thread has started since it began to coalesce; None: it does not coalesce."""

    works: list[Work] | None = None


class ProcessGroupBaguaNet(Identity):
    """A group of ranks, made by ``init_process_group("bagua_net")`` and ``new_group``.

    Collectives run one at a time, in the order of their calls; point-to-point messages run independently. A collective
    that fails (a peer is gone, or nothing moved for the timeout) raises ``torch.distributed.DistBackendError`` in its
    wait, and so does every later one: make a new group. A message may be posted long before its peer posts its side. A
    wait for it that exceeds the group's timeout raises as well, but has no other effect.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(store, rank, size, name)
        self._label = f"group {name}" if name else "group"
        self._timeout_s = timeout.total_seconds()
        rendezvous = Rendezvous(store, rank, size)
        self._generation = rendezvous.generation
        self._collectives = Collectives(self._label, rendezvous, rank, size, self._timeout_s)
        try:
            self._messages = Messages(self._label, rendezvous, rank, size, self._timeout_s)
        except BaseException:
            self._collectives.close()
            raise
        self._order = Order(f"bagua_net {self._label}")
        self._callbacks = Callbacks(f"bagua_net {self._label} callbacks")
        self._coalescing = _Block()
        self._barriers = 0
        self._alone = False  # no other backend is requested; checked once torch knows the group
        self._ending = threading.RLock()
        self._ended = False
        _open.add(self)

    # ---- timeout ----

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = self._collectives.timeout_s = self._messages.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    # ---- end ----

    def shutdown(self) -> None:
        """Waits for the collectives and sends in progress, then closes all connections.

        It may wait in vain for other ranks: for collectives up to the group's timeout; sends fail after half a minute
        without progress. :meth:`abort` from another thread ends the wait.
        """
        with self._ending:
            if not self._ended:
                self._order.close()
                self._messages.finish_sends()
                self._close()
        self._callbacks.close()  # outside the lock: a callback may itself end the group, or wait for a thread that does

    def abort(self) -> None:
        """Makes all pending operations fail, then closes all connections. From any thread."""
        if self._ended:
            return
        self._collectives.abort()
        self._messages.abort()
        with self._ending:
            if not self._ended:
                self._order.close()
                self._close()
        self._callbacks.close()

    def _close(self) -> None:
        self._messages.close()
        self._collectives.close()
        self._ended = True
        _open.discard(self)

    def leave_to_parent(self) -> None:
        """In a child of fork(): the connections belong to its parent, and it has none of the threads."""
        refusal = f"bagua_net {self._label} belongs to the process that forked this one; make a group here"
        self._order.leave_to_parent(refusal)
        self._messages.leave_to_parent(refusal)
        self._ending = threading.RLock()
        self._ended = True

    # ---- running a collective ----

    def _run(self, task: Callable[[float | None], None], held: list[Any], opts: Any = None) -> Work:
        """Queues ``task(timeout in s or None)``. ``held`` is the result; the work keeps it alive."""
        self._refuse_company()
        limit = _seconds(getattr(opts, "timeout", None))
        work = Work(held, self._callbacks)
        self._order.run(lambda: task(limit), work, now=not getattr(opts, "asyncOp", True))
        if self._coalescing.works is not None:
            self._coalescing.works.append(work)
        return work

    # ---- from one rank or to one rank ----

    def broadcast(self, tensor_list: Sequence[torch.Tensor], opts: Any = None) -> Work:
        tensor = tensors.only(tensor_list, "broadcast")
        tensors.check(tensor, "broadcast")
        root = opts.rootRank if opts is not None else 0

        def task(limit: float | None) -> None:
            tensors.with_contiguous(tensor, lambda plain: self._broadcast(plain, root, limit), reads=root == self._rank)

        return self._run(task, [tensor], opts)

    def _broadcast(self, plain: torch.Tensor, root: int, limit: float | None) -> None:
        self._collectives.call(
            "broadcast", tensors.address(plain), tensors.size_of(plain), tensors.BYTES, root, timeout_s=limit
        )

    def reduce(self, tensor_list: Sequence[torch.Tensor], opts: Any = None) -> Work:
        tensor = tensors.only(tensor_list, "reduce")
        tensors.check(tensor, "reduce")
        opts = opts if opts is not None else dist.ReduceOptions()
        dtype, op = tensors.reduction(tensor.dtype, opts.reduceOp)
        root = opts.rootRank

        def task(limit: float | None) -> None:
            send = tensors.contiguous(tensor)
            recv = send if root == self._rank else None
            self._collectives.call(
                "reduce",
                tensors.address(send),
                library.ffi.NULL if recv is None else tensors.address(recv),
                send.numel(),
                dtype,
                op,
                root,
                timeout_s=limit,
            )
            if recv is not None and recv.data_ptr() != tensor.data_ptr():
                tensors.store(recv, tensor)

        return self._run(task, [tensor], opts)

    def gather(
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        tensor = tensors.only(input_tensors, "gather")
        tensors.check(tensor, "gather")
        root = opts.rootRank if opts is not None else 0
        outputs = list(tensors.only(output_tensors, "gather")) if root == self._rank else []
        if root == self._rank:
            self._one_each(outputs, "gather")
            tensors.same(outputs, tensor, "gather")

        def task(limit: float | None) -> None:
            all_values = tensors.room(len(outputs) * tensor.numel(), tensor.dtype)
            self._gather(all_values, tensor, root, limit)
            tensors.split(all_values, outputs)

        return self._run(task, outputs, opts)

    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Only the root has an ``output``; torch passes an empty tensor on the others."""
        root = opts.rootRank if opts is not None else 0
        tensors.check(tensor, "gather_single")
        if root == self._rank:
            self._check_share(output, tensor, "gather_single")

        def task(limit: float | None) -> None:
            gather = partial(self._gather, tensor=tensor, root=root, limit=limit)
            tensors.with_contiguous(output, gather, reads=False)

        return self._run(task, [output], opts)

    def _gather(self, plain: torch.Tensor, tensor: torch.Tensor, root: int, limit: float | None) -> None:
        send = tensors.contiguous(tensor)
        arguments = (tensors.address(send), tensors.address(plain), tensors.size_of(send), tensors.BYTES, root)
        self._collectives.call("gather", *arguments, timeout_s=limit)

    def scatter(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        tensor = tensors.only(output_tensors, "scatter")
        tensors.check(tensor, "scatter")
        root = opts.rootRank if opts is not None else 0
        inputs = list(tensors.only(input_tensors, "scatter")) if root == self._rank else []
        if root == self._rank:
            self._one_each(inputs, "scatter")
            tensors.same(inputs, tensor, "scatter")

        def scatter(plain: torch.Tensor, limit: float | None) -> None:
            all_values = tensors.joined(inputs)
            self._collectives.call(
                "scatter",
                tensors.address(all_values),
                tensors.address(plain),
                tensors.size_of(plain),
                tensors.BYTES,
                root,
                timeout_s=limit,
            )

        def task(limit: float | None) -> None:
            tensors.with_contiguous(tensor, lambda plain: scatter(plain, limit), reads=False)

        return self._run(task, [tensor], opts)

    # ---- from all ranks to all ----

    def allreduce(self, tensor_list: Sequence[torch.Tensor], opts: Any = None) -> Work:
        tensor = tensors.only(tensor_list, "allreduce")
        tensors.check(tensor, "allreduce")
        opts = opts if opts is not None else dist.AllreduceOptions()
        code = tensors.reduction(tensor.dtype, opts.reduceOp)

        def task(limit: float | None) -> None:
            tensors.with_contiguous(tensor, lambda plain: self._allreduce(plain, code, limit), reads=True)

        return self._run(task, [tensor], opts)

    def _allreduce(self, plain: torch.Tensor, code: tuple[int, int], limit: float | None) -> None:
        at = tensors.address(plain)
        self._collectives.call("allreduce", at, at, plain.numel(), *code, _ALGO_AUTO, timeout_s=limit)

    def allreduce_coalesced(self, tensor_list: Sequence[torch.Tensor], opts: Any = None) -> Work:
        for tensor in tensor_list:
            tensors.check(tensor, "allreduce_coalesced")
        opts = opts if opts is not None else dist.AllreduceCoalescedOptions()
        codes = {tensor.dtype: tensors.reduction(tensor.dtype, opts.reduceOp) for tensor in tensor_list}

        def task(limit: float | None) -> None:
            for dtype, code in codes.items():
                alike = [tensor for tensor in tensor_list if tensor.dtype == dtype]
                values = tensors.joined(alike)
                self._allreduce(values, code, limit)
                tensors.split(values, alike)

        return self._run(task, list(tensor_list), opts)

    def allgather(
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        tensor = tensors.only(input_tensors, "allgather")
        outputs = list(tensors.only(output_tensors, "allgather"))
        tensors.check(tensor, "allgather")
        self._one_each(outputs, "allgather")
        tensors.same(outputs, tensor, "allgather")

        def task(limit: float | None) -> None:
            all_values = tensors.room(self._size * tensor.numel(), tensor.dtype)
            self._all_gather(all_values, tensor, limit)
            tensors.split(all_values, outputs)

        return self._run(task, [outputs], opts)

    def _all_gather(self, plain: torch.Tensor, tensor: torch.Tensor, limit: float | None) -> None:
        send = tensors.contiguous(tensor)
        arguments = (tensors.address(send), tensors.address(plain), tensors.size_of(send), tensors.BYTES)
        self._collectives.call("all_gather", *arguments, timeout_s=limit)

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[torch.Tensor]], input_list: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """``output_lists[rank][i]`` gets that rank's ``input_list[i]``."""
        self._one_each(output_lists, "allgather_coalesced")
        for i, tensor in enumerate(input_list):
            tensors.check(tensor, "allgather_coalesced")
            tensors.same([outputs[i] for outputs in output_lists], tensor, "allgather_coalesced")

        def task(limit: float | None) -> None:
            for i, tensor in enumerate(input_list):
                all_values = tensors.room(self._size * tensor.numel(), tensor.dtype)
                self._all_gather(all_values, tensor, limit)
                tensors.split(all_values, [outputs[i] for outputs in output_lists])

        return self._run(task, list(output_lists), opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_share(output, tensor, "all_gather")

        def task(limit: float | None) -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                gather = partial(self._all_gather, tensor=tensor, limit=limit)
                tensors.with_contiguous(output, gather, reads=False)

        return self._run(task, list(outputs), opts)

    def reduce_scatter(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        output = tensors.only(output_tensors, "reduce_scatter")
        inputs = list(tensors.only(input_tensors, "reduce_scatter"))
        tensors.check(output, "reduce_scatter")
        self._one_each(inputs, "reduce_scatter")
        tensors.same(inputs, output, "reduce_scatter")
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        code = tensors.reduction(output.dtype, opts.reduceOp)

        def task(limit: float | None) -> None:
            all_values = tensors.joined(inputs)
            tensors.with_contiguous(
                output, lambda plain: self._reduce_scatter(plain, all_values, code, limit), reads=False
            )

        return self._run(task, [output], opts)

    def _reduce_scatter(
        self, plain: torch.Tensor, all_values: torch.Tensor, code: tuple[int, int], limit: float | None
    ) -> None:
        arguments = (tensors.address(all_values), tensors.address(plain), plain.numel(), *code)
        self._collectives.call("reduce_scatter", *arguments, timeout_s=limit)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_share(tensor, output, "reduce_scatter")
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        codes = [tensors.reduction(output.dtype, opts.reduceOp) for output in outputs]

        def task(limit: float | None) -> None:
            for output, tensor, code in zip(outputs, inputs, codes, strict=True):
                scatter = partial(self._reduce_scatter, all_values=tensors.contiguous(tensor), code=code, limit=limit)
                tensors.with_contiguous(output, scatter, reads=False)

        return self._run(task, list(outputs), opts)

    # ---- all to all ----

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        tensors.check(output, "all_to_all")
        tensors.check(tensor, "all_to_all")
        tensors.one_type([output, tensor], "all_to_all")
        recv_counts = tensors.elements(output, output_splits, self._size)
        send_counts = tensors.elements(tensor, input_splits, self._size)

        def task(limit: float | None) -> None:
            send = tensors.contiguous(tensor)
            if send.data_ptr() == output.data_ptr():
                send = send.clone()
            tensors.with_contiguous(
                output, lambda plain: self._all_to_all(plain, send, recv_counts, send_counts, limit), reads=False
            )

        return self._run(task, [output], opts)

    def alltoall(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        self._one_each(output_tensors, "all_to_all")
        self._one_each(input_tensors, "all_to_all")
        for tensor in (*output_tensors, *input_tensors):
            tensors.check(tensor, "all_to_all")
        tensors.one_type([*output_tensors, *input_tensors], "all_to_all")
        recv_counts = [tensor.numel() for tensor in output_tensors]
        send_counts = [tensor.numel() for tensor in input_tensors]

        def task(limit: float | None) -> None:
            values = tensors.room(sum(recv_counts), output_tensors[0].dtype)
            self._all_to_all(values, tensors.joined(input_tensors), recv_counts, send_counts, limit)
            tensors.split(values, output_tensors)

        return self._run(task, list(output_tensors), opts)

    def _all_to_all(
        self,
        plain: torch.Tensor,
        send: torch.Tensor,
        recv_counts: Sequence[int],
        send_counts: Sequence[int],
        limit: float | None,
    ) -> None:
        width = plain.element_size()
        self._collectives.call(
            "all_to_allv",
            tensors.address(send),
            [count * width for count in send_counts],
            tensors.address(plain),
            [count * width for count in recv_counts],
            tensors.BYTES,
            timeout_s=limit,
        )

    def barrier(self, opts: Any = None) -> Work:
        return self._run(lambda limit: self._collectives.call("barrier", timeout_s=limit), [], opts)

    # ---- point to point ----

    def send(self, tensor_list: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        tensor = tensors.only(tensor_list, "send")
        tensors.check(tensor, "send")
        self._refuse_company()
        plain = tensors.contiguous(tensor)
        work = self._message([tensor, plain], f"for rank {peer}", f"does it receive with this tag, {tag}?")
        at, nbytes = tensors.address(plain), tensors.size_of(plain)
        self._messages.send(at, nbytes, peer, tag, lambda error, _: work.finish(error))
        return self._sent_or_received(work)

    def _message(self, held: list[Any], whom: str, question: str) -> Message:
        late = f"rank {self._rank} waited {self._timeout_s:g} s in vain {whom}; {question}"
        return Message(held, self._callbacks, self._timeout_s, f"bagua_net, {self._label}: {late}")

    def recv(self, tensor_list: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        tensor = tensors.only(tensor_list, "recv")
        tensors.check(tensor, "recv")
        self._refuse_company()
        plain = tensor.detach()
        if not tensors.is_plain(plain):
            plain = tensors.room(plain.shape, plain.dtype)
        whom, who = ("for any rank", "any") if peer < 0 else (f"for rank {peer}", "it")
        work = self._message([tensor], whom, f"does {who} send with this tag, {tag}?")

        def report(error: Exception | None, source: int) -> None:
            if error is None and plain.data_ptr() != tensor.data_ptr():
                try:
                    tensors.store(plain, tensor)
                except RuntimeError as refused:  # for example a tensor whose elements share memory
                    error = refused
            work.finish(error, source)

        self._messages.receive(tensors.address(plain), tensors.size_of(plain), peer, tag, report)
        return self._sent_or_received(work)

    def recv_anysource(self, tensor_list: Sequence[torch.Tensor], tag: int) -> Work:
        return self.recv(tensor_list, -1, tag)

    def _refuse_company(self) -> None:
        if self._alone:
            return
        asked = _backends(self)
        if any(part != f"cpu:{NAME}" for part in asked):
            raise ValueError(
                f"bagua_net, {self._label}: its backends are {','.join(asked)}, and {NAME} serves CPU tensors and "
                f'shares a group with no other; use "{NAME}" alone, and new_group(backend=…) for the other'
            )
        self._alone = bool(asked)

    def _sent_or_received(self, work: Work) -> Work:
        if self._coalescing.works is not None:
            self._coalescing.works.append(work)
        return work

    # ---- coalescing ----

    def _start_coalescing(self, device: Any) -> None:
        self._coalescing.works = []

    def _end_coalescing(self, device: Any) -> Work:
        parts, self._coalescing.works = self._coalescing.works or [], None
        return Joint(parts, self._callbacks)

    # ---- monitored barrier ----

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the missing ranks. It uses only the store, so it works when the network does not.

        Up to torch 2.13, ``torch.distributed.monitored_barrier`` works only with groups of gloo: call this method, for
        the default group as ``torch.distributed.group.WORLD.monitored_barrier()``.

        Args:
            timeout: how long the others may take; the group's by default.
            wait_all_ranks: name all missing ranks, not only the first.

        Raises:
            DistBackendError: on rank 0, ranks are missing; on the others, rank 0 did not report that all are here.
            DistNetworkError: the store cannot be reached.
        """
        limit = timeout if timeout is not None and timeout > _NO_TIME else timedelta(seconds=self._timeout_s)
        self._barriers += 1
        roll_call = RollCall(self._store, f"{self._generation}/barrier/{self._barriers}", self._rank, self._size)
        problem = roll_call.hold(limit, wait_all_ranks)
        if problem:
            raise dist.DistBackendError(f"{self._label}: {problem}")

    # ---- checks ----

    def _one_each(self, given: Sequence[Any], what: str) -> None:
        if len(given) != self._size:
            raise ValueError(f"{what}: {self._size} tensors are needed, one for each rank, not {len(given)}")

    def _check_share(self, whole: torch.Tensor, share: torch.Tensor, what: str) -> None:
        tensors.check(whole, what)
        tensors.check(share, what)
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


@atexit.register
def _abort_open() -> None:
    """The interpreter does not wait for daemon threads: none may be in the middle of a message when it exits."""
    for group in list(_open):
        group.abort()


def _leave_to_parent() -> None:
    for group in list(_open):
        group.leave_to_parent()
    _open.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
