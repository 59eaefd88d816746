"""The names that the training code sees, and the code that its thread runs."""

from __future__ import annotations

import builtins
import sys
import threading
from types import FrameType
from typing import Any

from probe_agent.user_code import is_ours, is_user_frame

# Names that describe a module, and would be wrong for the snippet.
_NOT_NAMES = ("__name__", "__builtins__", "__spec__", "__loader__", "__package__", "__doc__", "__cached__")


def training_thread() -> int:
    """`threading.get_ident()` of the thread that trains; the main thread if no thread has trained yet."""
    native = sys.modules.get("probe_agent._native")
    return (native.training_thread() if native is not None else 0) or threading.main_thread().ident or 0


def snapshot(thread: int) -> dict[str, Any]:
    """A new dictionary of every name that the user's frames of `thread` see: the innermost frame's locals win, then its
    globals, then the next frame's outward, then `__main__`. Assignments in it do not change theirs."""
    names: dict[str, Any] = {}
    main = sys.modules.get("__main__")
    if main is not None:
        names.update(main.__dict__)
    for frame in reversed(user_frames(thread)):
        names.update(frame.f_globals)
        names.update(local_variables(frame))
    return as_snippets(names)


def of_frame(frame: FrameType) -> dict[str, Any]:
    """A new dictionary of the names that one frame sees: its locals and those of functions around it, then globals."""
    return as_snippets({**frame.f_globals, **local_variables(frame)})


def local_variables(frame: FrameType) -> dict[str, Any]:
    """A new dictionary of a running frame's variables. Not by `f_locals`: up to Python 3.12 the frame would keep alive what
    they are now until it returns, and a dictionary that the program has from `locals()` would change."""
    native = sys.modules.get("probe_agent._native")
    if native is None:
        return dict(frame.f_locals)
    variables: dict[str, Any] = native.frame_locals(frame)
    return variables


def as_snippets(names: dict[str, Any]) -> dict[str, Any]:
    """`names` with the names that describe a module replaced by those of a snippet."""
    for name in _NOT_NAMES:
        names.pop(name, None)
    names["__name__"] = "__probe__"
    names["__builtins__"] = builtins
    return names


def user_frames(thread: int) -> list[FrameType]:
    """Frames of the user's own code on `thread`, innermost first."""
    frames = stack(thread)
    return [frame for frame in frames if is_user_frame(frame)]


def stack(thread: int) -> list[FrameType]:
    """All Python frames of `thread`, innermost first. Not by `f_back` in Python: up to 3.11 that corrupts the interpreter
    where garbage is collected meanwhile."""
    from probe_agent import _native

    return _native.stacks().get(thread, [])


def where(thread: int) -> str:
    """The position of `thread` in words: the line of the user's code, and the function that it has called there."""
    frames = [frame for frame in stack(thread) if not is_ours(frame.f_code.co_filename)]
    if not frames:
        return "nowhere in Python code"
    mine = next((frame for frame in frames if is_user_frame(frame)), frames[0])
    words = _location(mine)
    if mine is not frames[0]:
        words += f", in a call of {frames[0].f_code.co_name} ({_location(frames[0])})"
    return words


def _location(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
