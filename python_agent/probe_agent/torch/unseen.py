"""Keeps what the agent does on a thread of the program from what the program has there to see everything: modes that see every
function of torch or every operator (``TorchFunctionMode``, ``TorchDispatchMode``), subclasses of Tensor, and profilers and
tracers of Python."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

from probe_agent import _native

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unseen(function: _Function) -> _Function:
    """Decorates: modes of the program that are active on this thread see nothing of a call, and its profilers only that there was
    one (before Python 3.11 also what it calls)."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        import torch

        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return _native.run_untraced(function, args, kwargs)

    return called  # type: ignore[return-value]  # as wraps says
