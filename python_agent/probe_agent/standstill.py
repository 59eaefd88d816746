"""Changes hooks and patches while training runs: the main thread stands still meanwhile, at a point where it may be stopped."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Callable

#: Parts of torch in the middle of which its hooks must not change: an optimizer's step iterates them, and what traces a
#: model would take ours for a part of it.
_BUSY = ("optim/optimizer.py", "jit/", "fx/", "_dynamo/", "_export/", "export/", "_functorch/", "_inductor/")
_MODULE = "nn/modules/module.py"


def during(work: Callable[[], None], patience: float) -> float | None:
    """Calls ``work()`` on this thread, which must not be the main one, while the main thread stands still.

    Returns the seconds that the main thread stood still, or None if it reached no point where it may be stopped within
    ``patience`` seconds; then ``work`` was not called. Import the Python modules that ``work`` needs before: the main
    thread may be in the middle of an import.
    """
    _import_first()
    from probe_agent import _native

    return _native.while_main_stands(_StoppingPoint().is_good, work, patience)


def why_not(patience: float) -> str:
    """The words for a main thread that could not be stopped in time: where it is now."""
    from probe_agent import _native

    stack = _native.stacks().get(threading.main_thread().ident or 0)
    where = ""
    if stack:
        code = stack[0].f_code
        where = f"; it is in {code.co_name} ({code.co_filename}:{stack[0].f_lineno})"
    return f"its main thread came to no place between two calls of torch within {patience:g} s{where}"


def _import_first() -> None:
    """Everything that is imported when recording begins or ends."""
    from torch.optim import optimizer  # noqa: F401
    from torch.utils.data import dataloader  # noqa: F401

    import probe_agent.eval.runner
    import probe_agent.torch  # noqa: F401


class _StoppingPoint:
    """Decides on the main thread whether that thread may be stopped. Everything is looked up before, so that this can't fail."""

    def __init__(self) -> None:
        import torch
        from torch.nn.modules import module

        from probe_agent import _native
        from probe_agent.torch import hook_tables

        root = os.path.join(os.path.dirname(torch.__file__), "")
        own = os.path.join(os.path.dirname(__file__), "")
        # The import system: our own imports may need its locks.
        self.busy = (own, "<frozen importlib", *(root + part for part in _BUSY))
        self.module = root + _MODULE.replace("/", os.sep)
        names = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_hooks")
        self.hooks: list[Any] = [getattr(module, name, ()) for name in names]
        self.optimizers = root + _BUSY[0].replace("/", os.sep)
        self.registering = hook_tables.REGISTERING
        self.stacks = _native.stacks

    def is_good(self) -> bool:
        """Whether the main thread may be stopped at the point where this interrupted its code."""
        busy = (*self.busy, self.module) if any(self.hooks) else self.busy
        frame: Any = sys._getframe().f_back
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(busy):
                return False
            if code.co_name in self.registering and code.co_filename == self.module:
                return False
            frame = frame.f_back
        # The other threads go on. The main thread is not stopped while one of them iterates an optimizer's hooks.
        main = threading.get_ident()
        return not any(
            frame.f_code.co_filename == self.optimizers
            for thread, stack in self.stacks().items()
            if thread != main
            for frame in stack
        )
