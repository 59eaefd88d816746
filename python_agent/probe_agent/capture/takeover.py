"""Notices that the program starts its own profiler or allocator history, which takes precedence over a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ProgramsOwn(Exception):
    """The program's own profiler or history is running; the message says which."""


class TakeoverWatch:
    """Calls `called` when the program starts its own: torch allows one at a time, and the program's takes precedence."""

    def __init__(self, module: Any, names: tuple[str, ...], called: Callable[[], None]) -> None:
        self._module = module
        self._originals = {name: getattr(module, name) for name in names if hasattr(module, name)}
        self._ours = {name: self._before(called, original) for name, original in self._originals.items()}
        for name, ours in self._ours.items():
            setattr(module, name, ours)

    @staticmethod
    def _before(called: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
        def starts(*arguments: Any, **named: Any) -> Any:
            called()
            return original(*arguments, **named)

        return starts

    def original(self, name: str) -> Callable[..., Any] | None:
        """torch's function of this name, without ours around it."""
        return self._originals.get(name)

    def put_back(self) -> None:
        """Puts torch's own functions back."""
        for name, ours in self._ours.items():
            if getattr(self._module, name, None) is ours:
                setattr(self._module, name, self._originals[name])
