"""Ranges and numbers that a program names. Imports no torch, and never raises into training."""

from __future__ import annotations

import functools
import inspect
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeVar

    _Function = TypeVar("_Function")


class Span:
    """A named range: a context manager that may be entered again and again, also within itself, and a decorator."""

    __slots__ = ("_keys", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._keys: list[int] = []

    def __enter__(self) -> Span:
        """Begins the range."""
        key = 0
        native: Any = sys.modules.get("probe_agent._native")
        if native is not None:
            try:
                key = native.span_begin(self._name if isinstance(self._name, str) else repr(self._name))
            except Exception as error:  # A name that is no text.
                from probe_agent import signals

                if signals.is_of_the_program(error):
                    raise
        self._keys.append(key)
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the range."""
        key = self._keys.pop() if self._keys else 0
        if key:
            native: Any = sys.modules.get("probe_agent._native")
            native.span_end(key)

    def __call__(self, function: _Function) -> _Function:
        """Decorates: each call is a range."""
        name = self._name
        plain: Any = function
        if inspect.iscoroutinefunction(plain):

            @functools.wraps(plain)
            async def waited_for(*args: Any, **kwargs: Any) -> Any:
                with Span(name):
                    return await plain(*args, **kwargs)

            return waited_for  # type: ignore[return-value]  # as wraps says

        @functools.wraps(plain)
        def called(*args: Any, **kwargs: Any) -> Any:
            with Span(name):
                return plain(*args, **kwargs)

        return called  # type: ignore[return-value]  # as wraps says


def log(values: Mapping[str, Any] | None, named: dict[str, Any]) -> None:
    """Records numbers by name, as :func:`probe_agent.log` describes it."""
    native: Any = sys.modules.get("probe_agent._native")
    if native is None:
        return
    try:
        native.log_metrics({**values, **named} if values else named)
    except Exception as error:
        from probe_agent import signals

        if signals.is_of_the_program(error):
            raise
        native.set_problem(f"probe_agent.log: {error!r}")
