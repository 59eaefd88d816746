"""Keeps what the agent asks of tensors from what the program has put around them: modes that see every function of torch or every
operator (``TorchFunctionMode``, ``TorchDispatchMode``), and subclasses of Tensor."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unseen(function: _Function) -> _Function:
    """Decorates: modes of the program that are active on this thread see nothing of a call."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        import torch

        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return function(*args, **kwargs)

    return called  # type: ignore[return-value]  # as wraps says
