# SPDX-License-Identifier: MIT
"""torch.compile must not trace the backend, whose operations hand addresses of tensors to the library, nor the
algorithms, which it would compile anew as their counters and threads change."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ._torch_internals import unknown


def exclude(package: str) -> None:
    """Tells dynamo to run each function of the loaded modules of ``package`` as it is, with all that it calls.

    dynamo asks once per code object, so that a call costs nothing more than before; torch.compiler.disable would wrap
    each call. Nothing happens where torch was built without dynamo.

    Raises:
        RuntimeError: dynamo has no such function.
    """
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        return
    try:
        skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
        set_strategy = eval_frame.set_code_exec_strategy
    except AttributeError as error:
        raise unknown(f"dynamo has changed: {error}") from None
    for code in codes(package):
        set_strategy(code, skip)


def codes(package: str) -> Iterator[CodeType]:
    """The code of all functions and methods that were defined in the package."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and f"{name}.".startswith(f"{package}."):
            for value in list(vars(module).values()):
                yield from _of(value, package)


def _of(value: Any, package: str) -> Iterator[CodeType]:
    """Of a function, however it is decorated, or of a class. What is only imported from elsewhere is left alone."""
    if isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from _of(part, package)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _of(value.__func__, package)
    elif isinstance(value, functools.cached_property):
        yield from _of(value.func, package)
    elif hasattr(value, "__wrapped__"):
        yield from _of(inspect.unwrap(value), package)
    elif isinstance(value, FunctionType) and value.__module__.startswith(package):
        yield value.__code__
    elif isinstance(value, type) and value.__module__.startswith(package):
        for member in list(vars(value).values()):
            yield from _of(member, package)
