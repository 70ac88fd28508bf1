# SPDX-License-Identifier: MIT
"""bagua.torch_api.algorithms: Bagua's constructors give the settings of ``bagua_net.algorithms``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from .. import algorithms as ours
from ..algorithms._registry import ALGORITHMS


class _Constructor(NamedTuple):
    """Of Bagua: its name, and its arguments with their defaults."""

    name: str
    defaults: dict[str, Any]


#: What settings of this package are called in Bagua.
_RENAMED = {
    "communication_interval": "interval",
    "peer_selection_mode": "peers",
    "sync_interval_ms": "interval_ms",
}


#: By the name that Bagua's registry has, which is the one that attach takes as well.
_CONSTRUCTORS = {
    "gradient_allreduce": _Constructor("GradientAllReduceAlgorithm", {"hierarchical": False, "average": True}),
    "bytegrad": _Constructor("ByteGradAlgorithm", {"hierarchical": True, "average": True}),
    "decentralized": _Constructor(
        "DecentralizedAlgorithm", {"hierarchical": True, "peer_selection_mode": "all", "communication_interval": 1}
    ),
    "low_precision_decentralized": _Constructor(
        "LowPrecisionDecentralizedAlgorithm", {"hierarchical": True, "communication_interval": 1}
    ),
    "qadam": _Constructor("QAdamAlgorithm", {"q_adam_optimizer": None, "hierarchical": True}),
    "async": _Constructor(
        "AsyncModelAverageAlgorithm", {"peer_selection_mode": "all", "sync_interval_ms": 500, "warmup_steps": 0}
    ),
}
#: Bagua has no error feedback, and its scripts pass no GradScaler, which residuals must follow.
_AS_BAGUA = {"bytegrad": {"error_feedback": False}}
#: The way of the bytes, and the optimizer, which with_bagua is given anyway: any value will do.
_IGNORED = ("hierarchical", "q_adam_optimizer")


def settings(name: str, *arguments: Any, **named: Any) -> ours.Algorithm:
    """The settings for a call of Bagua's constructor.

    Raises:
        TypeError: the constructor has no such argument.
        ValueError: the algorithm, or a value other than Bagua's default, has no counterpart.
    """
    if name not in _CONSTRUCTORS:
        raise ValueError(f"bagua_net.compat: Bagua has no algorithm {name!r}; it has {', '.join(_CONSTRUCTORS)}")
    if name not in ALGORITHMS:
        raise ValueError(
            f"bagua_net.compat: {name} is not among the algorithms of this version: {', '.join(ALGORITHMS)}"
        )
    constructor, make = _CONSTRUCTORS[name], ALGORITHMS[name]
    fields = {field.name for field in dataclasses.fields(make())}  # type: ignore[arg-type]
    passed: dict[str, Any] = dict(_AS_BAGUA.get(name, {}))
    for argument, value in _bound(constructor, arguments, named).items():
        field = _RENAMED.get(argument, argument)
        if field in fields:
            passed[field] = value
        elif argument not in _IGNORED and value != constructor.defaults[argument]:
            raise ValueError(
                f"bagua_net.compat: {constructor.name}({argument}={value!r}) has no counterpart; "
                f"bagua_net.algorithms.{type(make()).__name__} has {', '.join(sorted(fields)) or 'no settings'}"
            )
    return make(**passed)


def _bound(constructor: _Constructor, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments that were given, by name."""
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in constructor.defaults.items()
    ]
    try:
        return dict(inspect.Signature(parameters).bind(*arguments, **named).arguments)
    except TypeError as error:
        raise TypeError(f"bagua_net.compat: {constructor.name}: {error}") from None


class Algorithm:
    """Bagua's way from a name to an algorithm."""

    @classmethod
    def init(cls, name: str, **arguments: Any) -> ours.Algorithm:
        return settings(name, **arguments)

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError(
            f"bagua_net.compat: {cls.__name__} derives from Bagua's Algorithm, whose hooks are not kept; "
            "write a communication hook for DistributedDataParallel (register_comm_hook)"
        )


def _constructor(name: str) -> Callable[..., ours.Algorithm]:
    def made(*arguments: Any, **named: Any) -> ours.Algorithm:
        return settings(name, *arguments, **named)

    made.__name__ = made.__qualname__ = _CONSTRUCTORS[name].name
    return made


GradientAllReduceAlgorithm = _constructor("gradient_allreduce")
ByteGradAlgorithm = _constructor("bytegrad")
DecentralizedAlgorithm = _constructor("decentralized")
LowPrecisionDecentralizedAlgorithm = _constructor("low_precision_decentralized")
QAdamAlgorithm = _constructor("qadam")
AsyncModelAverageAlgorithm = _constructor("async")


def __getattr__(name: str) -> Any:
    if name == "QAdamOptimizer":
        return getattr(ours, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
