"""Optimizers' steps, which end training steps."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from probe_agent import _native
from probe_agent.torch import autograd, forward

_handles: list[Any] = []
_seen: dict[int, weakref.ref[Any]] = {}


def use_record_function(explicit: bool) -> None:
    """Times by the RecordFunction range around each step; the hook before it says whose it is."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    autograd.require_record_function(explicit)
    autograd.use_for_optimizers()
    _handles.append(register_optimizer_step_pre_hook(_pre))


def use_step_hooks(explicit: bool) -> None:
    """Times by torch's global hooks before and after each step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    _handles.append(register_optimizer_step_pre_hook(_pre))
    _handles.append(register_optimizer_step_post_hook(_post))


def remove() -> None:
    """Take the hooks out."""
    for handle in _handles:
        handle.remove()
    _handles.clear()
    _seen.clear()


def _pre(optimizer: Any, args: Any, kwargs: Any) -> None:
    import torch

    if torch.compiler.is_compiling():
        return
    address = id(optimizer)
    if address not in _seen:
        _seen[address] = weakref.ref(optimizer, partial(_gone, address))
    if _native.optimizer_pre(optimizer) and forward.slots_are_patched():
        # fx assigned nn.Module.__call__ (symbolic_trace), which put the original back into every slot.
        forward.patch_all()


def _post(optimizer: Any, args: Any, kwargs: Any) -> None:
    import torch

    if not torch.compiler.is_compiling():
        _native.optimizer_post(optimizer)


def _gone(address: int, _reference: Any) -> None:
    _seen.pop(address, None)
    _native.optimizer_gone(address)
