"""The names that the training code sees, and where its thread is."""

from __future__ import annotations

import builtins
import os
import site
import sys
import sysconfig
import threading
from functools import lru_cache
from types import FrameType, ModuleType
from typing import Any

# A module's own, which would say something wrong about the snippet.
_NOT_NAMES = ("__name__", "__builtins__", "__spec__", "__loader__", "__package__", "__doc__", "__cached__")


def training_thread() -> int:
    """`threading.get_ident()` of the thread that trains; the main thread where nobody has trained yet."""
    native = sys.modules.get("probe_agent._native")
    return (native.training_thread() if native is not None else 0) or threading.main_thread().ident or 0


def snapshot(thread: int) -> dict[str, Any]:
    """A new dictionary of every name that the user's frames of `thread` see: the innermost frame's locals win, then its
    globals, then the next frame's outward, then `__main__`. What is assigned in it changes nothing of theirs."""
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
    """`names` with what a module says of itself replaced by what is so of a snippet."""
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
    """All Python frames of `thread`, innermost first."""
    frames = []
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def where(thread: int) -> str:
    """Where `thread` is: the line of the user's code, and what it has called there."""
    frames = [frame for frame in stack(thread) if not is_ours(frame.f_code.co_filename)]
    if not frames:
        return "nowhere in Python code"
    mine = next((frame for frame in frames if is_user_frame(frame)), frames[0])
    words = _place(mine)
    if mine is not frames[0]:
        words += f", in a call of {frames[0].f_code.co_name} ({_place(frames[0])})"
    return words


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def is_user_frame(frame: FrameType) -> bool:
    """Whether a frame runs the user's own code: `__main__`'s wherever it lies, and what lies outside of libraries."""
    name = frame.f_globals.get("__name__", "")
    if name in ("__main__", "__mp_main__"):
        return not frame.f_code.co_filename.startswith("<frozen ")
    if _is_of_main_package(name):
        return True
    file = frame.f_code.co_filename
    if file.startswith("<"):
        # Made at run time: it belongs to the module whose names it sees.
        file = frame.f_globals.get("__file__") or file
    return is_user_file(file)


def is_user_module(module: ModuleType) -> bool:
    """Whether a module is the user's own."""
    name = getattr(module, "__name__", "")
    if name in ("__main__", "__mp_main__") or _is_of_main_package(name):
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        if name in sys.builtin_module_names:
            return False
        paths = list(getattr(module, "__path__", []))
        return bool(paths) and is_user_file(os.path.join(paths[0], "__init__.py"))
    return is_user_file(file)


def _is_of_main_package(name: str) -> bool:
    """`python -m package.train`: the package is the user's, installed or not."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    package = spec.name.partition(".")[0] if spec is not None and "." in spec.name else None
    # Launchers of torch run as modules too.
    return package not in (None, "torch", "probe_agent") and name.partition(".")[0] == package


@lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    """Whether a source file is the user's own: outside the standard library, installed packages, torch and us."""
    if file.startswith("<"):
        return not file.startswith(("<frozen ", "<__array_function__"))
    path = os.path.abspath(file)
    if "/site-packages/" in path or "/dist-packages/" in path or is_ours(path):
        return False
    return not any(path.startswith(directory) for directory in _library_directories())


def is_ours(file: str) -> bool:
    """Whether a source file is of the agent."""
    return file.startswith(_OURS)


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@lru_cache(maxsize=1)
def _library_directories() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], site.getusersitepackages()}
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch:
        found.add(os.path.dirname(torch))
    # The interpreter's own modules, where it is not the environment's.
    found.add(os.path.dirname(os.path.abspath(os.__file__)))
    return tuple(os.path.abspath(path) + os.sep for path in found)
