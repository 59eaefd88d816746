"""Ends a snippet beside training at what its syntax could not show: training itself.

A profile function, which Python keeps for each thread by itself: nothing that training's threads run is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from probe_agent.eval.rules import TELLING

MESSAGE = (
    "{what} cannot run beside training, on another thread than training's; hint: --at step runs it between two steps"
)


class BesideTrainingError(RuntimeError):
    """A snippet beside training did what only the training thread may do."""


def refuse(what: str) -> None:
    """Ends the snippet."""
    raise BesideTrainingError(MESSAGE.format(what=what))


@contextmanager
def guarded() -> Iterator[None]:
    """Watches the calling thread for modules that train, optimizer steps and collectives."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = sys.getprofile()
    sys.setprofile(_profile_function(torch))
    try:
        yield
    finally:
        sys.setprofile(before)


def _profile_function(torch: Any) -> Any:
    module, optimizer = torch.nn.Module, torch.optim.Optimizer
    call = getattr(module, "_wrapped_call_impl", module.__call__).__code__
    distributed = torch.distributed
    collectives = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "__file__", None)
    public = frozenset(getattr(sys.modules.get("torch.distributed.distributed_c10d"), "__all__", ())) - TELLING

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code is call:
            this = frame.f_locals.get("self")
            if isinstance(this, module) and this.training and torch.is_grad_enabled():
                refuse(f"calling {type(this).__name__}, which is in training mode with gradients on,")
        elif code.co_name == "step":
            this = frame.f_locals.get("self")
            if isinstance(this, optimizer):
                refuse(f"{type(this).__name__}.step")
        elif code.co_filename == collectives and code.co_name in public and distributed.is_initialized():
            refuse(f"torch.distributed.{code.co_name}, which speaks with other ranks,")

    return profile
