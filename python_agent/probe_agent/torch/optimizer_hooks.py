"""Torch's global hooks before and after each optimizer's step: put in and taken out while other threads train."""

from __future__ import annotations

import time
from typing import Any, Callable

from probe_agent import _native
from probe_agent.torch.layers import Unavailable

#: Other threads are waited for so long to be out of an optimizer's step, which may take long; and between two looks.
_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.0005


class Hook:
    """One of ours in a table of torch's: what its ``register_optimizer_step_…_hook`` returns, but for the moment at which
    the table changes."""

    def __init__(self, table: Any, function: Callable[..., None]) -> None:
        from torch.utils.hooks import RemovableHandle

        self._table = table
        self._handle = RemovableHandle(table)
        if not _change(table, self._handle.id, function):
            raise Unavailable(f"another thread was in an optimizer's step for {_PATIENCE_SECONDS:g} s")

    def remove(self) -> None:
        """Take it out. Where other threads are in a step all the while it stays, and does nothing any more."""
        if self._handle.id in self._table and not _change(self._table, self._handle.id, None):
            _native.set_problem("optimizer: a hook stays in torch: another thread was in a step all the while")


def before_steps(function: Callable[..., None]) -> Hook:
    """Have ``function(optimizer, args, kwargs)`` called before each step of any optimizer."""
    from torch.optim import optimizer

    return Hook(optimizer._global_optimizer_pre_hooks, function)


def after_steps(function: Callable[..., None]) -> Hook:
    """Have ``function(optimizer, args, kwargs)`` called after each step of any optimizer."""
    from torch.optim import optimizer

    return Hook(optimizer._global_optimizer_post_hooks, function)


def _change(table: Any, key: int, function: Callable[..., None] | None) -> bool:
    from torch.optim import optimizer

    user = optimizer.__file__
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not _native.change_hook_table(table, key, function, user):
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
