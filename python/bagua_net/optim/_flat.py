# SPDX-License-Identifier: MIT
"""An elementwise optimizer that updates a few long parameters where it had many short ones."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ._bucket import Bucket, groups

_log = logging.getLogger("bagua_net.optim")

#: For each group, its parameters with a gradient and where their data are.
_Layout = list[list[tuple[int, int]]]


class FlatOptimizer(Optimizer):  # type: ignore[misc]
    """Steps an optimizer on flat tensors; :func:`bagua_net.optim.fuse_optimizer` makes it.

    Parameters of one group, type and device that have a gradient, and equal counts of steps, are joined: their data
    become views of one tensor, and each step copies their gradients into another. Parameters without a gradient are
    left alone, as the optimizer does. Groups, settings, ``zero_grad``, hooks, schedulers and GradScaler see the
    parameters as they were; so does ``state_dict``, which the optimizer itself can load, and the other way round.

    After a step, ``state`` has views of each parameter's flat state; counts in it are those of the last checkpoint.

    Attributes:
        inner: the optimizer. Do not step it.
    """

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self._share(inner.state, inner.param_groups)
        self._buckets: list[list[Bucket]] = []  # for each group
        self._alone: list[list[torch.Tensor]] = []
        self._flat_state: dict[torch.Tensor, Any] = defaultdict(dict)
        self._layout: _Layout | None = None
        self._told = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; a closure is called once.

        Raises:
            ValueError: a gradient is sparse; a parameter is distributed (DTensor), or shares its memory; or the state
                that the optimizer keeps shows that it is not elementwise.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            live = [[each for each in group["params"] if each.grad is not None] for group in self.param_groups]
            moved = _layout_of(live) != self._layout
            if moved:
                self._join(live)
            for bucket in self._all():
                bucket.gather()
            self._step_flat()
            self._tell_autograd()
            if moved:
                self._export()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """That of the optimizer before it was fused."""
        self._export()
        state: dict[str, Any] = super().state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a state of this optimizer, or of one that was not fused."""
        super().load_state_dict(state_dict)
        self.inner.__setstate__({"state": self.state, "param_groups": self.param_groups})
        self._share(self.inner.state, self.inner.param_groups)
        self._flat_state.clear()
        self._layout = None

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a fused optimizer cannot be copied or pickled: copy its state_dict()")

    # ---- the two forms ----

    def _share(self, state: Any, param_groups: Any) -> None:
        """Both optimizers have the same state and groups."""
        self.state, self.param_groups = state, param_groups

    def _all(self) -> list[Bucket]:
        return [bucket for buckets in self._buckets for bucket in buckets]

    def _step_flat(self) -> None:
        parameters = [group["params"] for group in self.param_groups]
        try:
            for group, buckets, alone in zip(self.param_groups, self._buckets, self._alone, strict=True):
                group["params"] = [*(bucket.flat for bucket in buckets), *alone]
            self.inner.state = self._flat_state
            self.inner.step()
        finally:
            self.inner.state = self.state
            for group, own in zip(self.param_groups, parameters, strict=True):
                group["params"] = own

    def _tell_autograd(self) -> None:
        """That the joined parameters were changed in place, as far as it knows by another tensor: a graph from before
        the step must not be used after it."""
        torch.autograd.graph.increment_version([each for bucket in self._all() for each in bucket.parameters])

    def _export(self) -> None:
        """Brings the state up to date: of the joined parameters, the others, and what belongs to none."""
        flats = {bucket.flat: bucket for bucket in self._all()}
        for key, state in self._flat_state.items():
            if key not in flats:
                self.state[key] = state
            elif state:
                self.state.update(zip(flats[key].parameters, flats[key].states(state), strict=True))

    def _join(self, live: list[list[torch.Tensor]]) -> None:
        if self._layout is not None and not self._told:
            self._told = True
            _log.warning("other parameters have gradients than before, or moved: each such step joins them again")
        self._export()
        parts = [list(groups(parameters, self._state_of)) for parameters in live]
        old = self._all()
        _check([parameter for some in parts for part in some if len(part) > 1 for parameter in part], old)
        self._alone = [[part[0] for part in some if len(part) == 1] for some in parts]
        self._buckets = [
            [Bucket(part, list(map(self._state_of, part))) for part in some if len(part) > 1] for some in parts
        ]
        _release(old, self._all())
        self._layout = _layout_of(live)
        joined = {parameter for bucket in self._all() for parameter in bucket.parameters}
        self._flat_state.clear()
        self._flat_state.update({key: state for key, state in self.state.items() if key not in joined})
        self._flat_state.update({bucket.flat: bucket.state for bucket in self._all() if bucket.state})

    def _state_of(self, parameter: torch.Tensor) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self.state.get(parameter, {})
        return state


def _layout_of(live: list[list[torch.Tensor]]) -> _Layout:
    return [[(id(parameter), parameter.data_ptr()) for parameter in parameters] for parameters in live]


def _release(old: list[Bucket], new: list[Bucket]) -> None:
    """Gives parameters that are not joined again memory of their own: as a view they would keep that of all."""
    joined = {parameter for bucket in new for parameter in bucket.parameters}
    for bucket in old:
        for parameter in bucket.parameters:
            if parameter not in joined:
                parameter.data = parameter.data.clone()


def _check(parameters: list[torch.Tensor], buckets: list[Bucket]) -> None:
    """
    Raises:
        ValueError: as :meth:`FlatOptimizer.step`.
    """
    ours = {bucket.flat.untyped_storage().data_ptr() for bucket in buckets}
    seen: set[int] = set()
    for number, parameter in enumerate(parameters):
        what = f"parameter {number} of those to be joined, of the shape {tuple(parameter.shape)},"
        if type(parameter) not in (torch.nn.Parameter, torch.Tensor):
            raise ValueError(f"{what} is a {type(parameter).__name__}: fuse_optimizer takes plain parameters")
        if parameter.grad.layout is not torch.strided:
            raise ValueError(f"{what} has a sparse gradient: fuse_optimizer takes dense ones")
        storage = parameter.untyped_storage()
        if parameter.numel() == 0 or storage.data_ptr() in ours:
            continue
        if storage.nbytes() != parameter.nbytes or storage.data_ptr() in seen:
            raise ValueError(f"{what} shares its memory with other tensors, which would not follow when it is moved")
        seen.add(storage.data_ptr())
