"""What the program has of its own and comes first: a profiler, a history of its allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ProgramsOwn(Exception):
    """The program's own is running; the text says what."""


class Takeover:
    """Sees the program start one of its own: torch allows one at a time, and the program's goes first."""

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
        """What the program calls by this name."""
        return self._originals.get(name)

    def put_back(self) -> None:
        """What the program calls is torch's own again."""
        for name, ours in self._ours.items():
            if getattr(self._module, name, None) is ours:
                setattr(self._module, name, self._originals[name])
