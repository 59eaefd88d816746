"""Adds hooks to torch's dictionaries of global hooks and removes them, while other threads may iterate these."""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple

from probe_agent import _native
from probe_agent.torch.layers import Unavailable

#: Seconds to wait for other threads to leave the code that iterates a table, and between two checks. The main thread may stand
#: still meanwhile, for 5 s at most.
_PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 0.0005

#: Functions in torch's file of modules that iterate the registration hooks, which run when a module is added to another.
REGISTERING = ["add_module", "__setattr__"]


class TableReader(NamedTuple):
    """The code that iterates a table: functions of a file (None: all of them), and a description for messages."""

    file: str
    functions: list[str] | None
    where: str


class TableHook:
    """A hook of ours in a table of torch's: like the handle that ``register_…_hook`` returns, but it changes the table only
    when no other thread iterates it."""

    def __init__(self, table: Any, function: Callable[..., None], iterating: TableReader) -> None:
        from torch.utils.hooks import RemovableHandle

        self._table, self._iterating = table, iterating
        self._handle = RemovableHandle(table)
        if not self._change(function):
            raise Unavailable(f"another thread was in {iterating.where} for {_PATIENCE_SECONDS:g} s")

    def remove(self) -> None:
        """Remove the hook. If other threads iterate the table all the time, it stays and does nothing; that is a problem."""
        if self._handle.id in self._table and not self._change(None):
            where = self._iterating.where
            _native.set_problem(f"a hook stays in torch: another thread was in {where} all the while")

    def _change(self, function: Callable[..., None] | None) -> bool:
        file, functions, _ = self._iterating
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _native.change_hook_table(self._table, self._handle.id, function, file, functions):
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True


def before_steps(function: Callable[..., None]) -> TableHook:
    """Have ``function(optimizer, args, kwargs)`` called before each step of any optimizer."""
    from torch.optim import optimizer

    return TableHook(optimizer._global_optimizer_pre_hooks, function, _of_optimizers())


def after_steps(function: Callable[..., None]) -> TableHook:
    """Have ``function(optimizer, args, kwargs)`` called after each step of any optimizer."""
    from torch.optim import optimizer

    return TableHook(optimizer._global_optimizer_post_hooks, function, _of_optimizers())


def at_registrations(function: Callable[..., None]) -> TableHook:
    """Have ``function(parent, name, child)`` called before a module becomes a part of another one."""
    from torch.nn.modules import module

    # A list of functions is needed: calls of modules, where training threads are most of the time, are in the same file.
    iterating = TableReader(module.__file__, REGISTERING, "the constructor of a module")
    return TableHook(module._global_module_registration_hooks, function, iterating)


def _of_optimizers() -> TableReader:
    from torch.optim import optimizer

    return TableReader(optimizer.__file__, None, "an optimizer's step")
