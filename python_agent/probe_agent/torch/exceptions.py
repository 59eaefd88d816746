"""Records uncaught exceptions as they happen, and exceptions that say that memory ran out.

Python calls `sys.excepthook` and `threading.excepthook` for uncaught ones. Our hooks come before the hooks from before, which
are called with the same arguments afterwards, even if ours fail. If the program installs its own hook later, ours is no longer
called; then the last exception that Python keeps (`sys.last_value`) is recorded when the interpreter ends.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback as tracebacks
from types import CodeType, FrameType, TracebackType
from typing import Any

from probe_agent import _native
from probe_agent.torch import modules
from probe_agent.torch.layers import skipped_by_dynamo

MAX_MESSAGE_LENGTH = 4096
MAX_TRACEBACK_LENGTH = 16384
#: Bytes of the beginning of a longer traceback; the rest is its end.
_BEGINNING = 4096
MAX_MEMORY_LENGTH = 8192
#: A hook that is not Python's own may end the process at once (MPI_Abort, os._exit), so the row is waited for.
_WAIT_SECONDS = 1.0

_installed = False
#: `id`s of exceptions whose hook is running. A hook that was installed after ours and calls it is between two of ours, which
#: record the exception once.
_under_way: set[int] = set()
#: `id` of the exception that ended the main thread, which `sys.last_value` keeps alive.
_fatal = 0


class _Hook:
    """A hook before `sys.excepthook`."""

    def __init__(self, previous: Any) -> None:
        # A program may ask for the hook's name.
        functools.update_wrapper(self, previous, updated=())
        self.previous = previous

    def __call__(self, kind: Any, value: Any, traceback: Any) -> Any:
        """Record the exception, and pass it on."""
        global _fatal
        own = self.previous is sys.__excepthook__
        recorded = _record_safely(value, traceback, threading.current_thread(), 0.0 if own else _WAIT_SECONDS)
        _fatal = id(value)
        try:
            return self.previous(kind, value, traceback)
        finally:
            if recorded:
                _under_way.discard(id(value))


class _ThreadHook:
    """A hook before `threading.excepthook`."""

    def __init__(self, previous: Any) -> None:
        functools.update_wrapper(self, previous, updated=())
        self.previous = previous

    def __call__(self, arguments: Any) -> Any:
        """Record the exception, and pass it on."""
        recorded, value = False, arguments.exc_value
        if arguments.exc_type is not SystemExit:
            thread = arguments.thread or threading.current_thread()
            recorded = _record_safely(value, arguments.exc_traceback, thread, 0.0)
        try:
            return self.previous(arguments)
        finally:
            if recorded:
                _under_way.discard(id(value))


def use_hooks(explicit: bool) -> None:
    """Install our hooks before the present ones, and look at exceptions that leave modules."""
    global _installed
    _installed = True
    stand_first()
    _native.set_passing(skipped_by_dynamo(_passing))


def stand_first() -> None:
    """Install our hooks before the present ones, also before hooks that were installed since the last call."""
    if not _installed:
        return
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)
    if not isinstance(threading.excepthook, _ThreadHook):
        threading.excepthook = _ThreadHook(threading.excepthook)


def remove() -> None:
    """Remove our hooks where they are the first; elsewhere they stay and only pass exceptions on."""
    global _installed
    _installed = False
    _native.set_passing(None)
    if isinstance(sys.excepthook, _Hook):
        sys.excepthook = sys.excepthook.previous
    if isinstance(threading.excepthook, _ThreadHook):
        threading.excepthook = threading.excepthook.previous


def at_exit() -> None:
    """Record the exception that ended the main thread, if a hook that was installed after ours was called instead."""
    value = getattr(sys, "last_value", None)
    if isinstance(sys.excepthook, _Hook) or value is None or hasattr(sys, "ps1") or id(value) == _fatal:
        return
    _record_safely(value, value.__traceback__, threading.main_thread(), 0.0)


def _record_safely(value: Any, traceback: TracebackType | None, thread: threading.Thread, wait: float) -> bool:
    """Record an uncaught exception, once. Returns whether this call did, and not an outer one."""
    if not _installed or value is None or id(value) in _under_way:
        return False
    _under_way.add(id(value))
    try:
        _native.record_exception(_described(value, traceback, thread, True), wait)
    except BaseException as error:  # Also a Ctrl-C meanwhile: the program's own hook must run now.
        _say(error)
    return True


def _passing(value: BaseException, traceback: TracebackType | None) -> None:
    """Record an exception that leaves an outermost module, if it says that memory ran out. Never raises."""
    try:
        if is_out_of_memory(value):
            _native.record_exception(_described(value, traceback, threading.current_thread(), False), 0.0)
    except BaseException as error:
        _say(error)


def _say(error: BaseException) -> None:
    try:
        _native.set_problem(f"an exception was not recorded: {error!r}")
    except BaseException:  # The problem cannot be reported either.
        pass


def _described(
    value: BaseException, traceback: TracebackType | None, thread: threading.Thread, uncaught: bool
) -> dict[str, Any]:
    frames = [(frame, line) for frame, line in tracebacks.walk_tb(traceback)]
    module, stage = _module_and_stage([frame for frame, _ in frames])
    user_line = _user_line(frames)
    out_of_memory = is_out_of_memory(value)
    return {
        "exception": _name_of(type(value)),
        "message": _message(value),
        "traceback": _printed(value, traceback),
        "uncaught": uncaught,
        "main": thread is threading.main_thread(),
        "module": module,
        "stage": stage,
        "function": user_line[0] if user_line else None,
        "file": user_line[1] if user_line else None,
        "line": user_line[2] if user_line else None,
        "out_of_memory": out_of_memory,
        "memory": _memory() if out_of_memory else None,
        "thread": thread.native_id or 0,
        "thread_name": thread.name,
    }


def _name_of(kind: type) -> str:
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(value: BaseException) -> str:
    try:
        return _cut(str(value), MAX_MESSAGE_LENGTH)
    except Exception as error:
        return f"(it can't be shown: {type(error).__name__})"


def _printed(value: BaseException, traceback: TracebackType | None) -> str:
    try:
        text = "".join(tracebacks.format_exception(type(value), value, traceback))
    except Exception as error:  # No memory left for it, or a class that can't be printed.
        return f"(it can't be shown: {type(error).__name__})"
    whole = text.encode(errors="replace")
    if len(whole) <= MAX_TRACEBACK_LENGTH:
        return whole.decode()
    left_out = "\n  … (the middle is left out) …\n"
    end = whole[-(MAX_TRACEBACK_LENGTH - _BEGINNING - len(left_out.encode())) :]
    return _cut(text, _BEGINNING) + left_out + end.decode(errors="ignore")


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def _user_line(frames: list[tuple[FrameType, int]]) -> tuple[str, str, int] | None:
    from probe_agent.user_code import is_user_frame

    for frame, line in reversed(frames):
        if is_user_frame(frame):
            return frame.f_code.co_name, frame.f_code.co_filename, line
    return None


def _module_and_stage(frames: list[FrameType]) -> tuple[str | None, str | None]:
    """The module and the stage of an exception, by the frames that it left, outermost first."""
    root = module = stage = None
    in_backward = False
    for frame in frames:
        code = frame.f_code
        if _is_of(code, "backward", "torch/_tensor.py", "torch/autograd/__init__.py"):
            in_backward, stage = True, "backward"
        elif _is_of(code, "_call_impl", "torch/nn/modules/module.py"):
            # Read so that the frame keeps no dictionary of its tensors, which the program may mean to free.
            module = _native.frame_locals(frame).get("self")
            root = module if root is None else root
            stage = "recompute" if in_backward else "forward"
        elif code.co_name in ("step", "wrapper", "profile_hook_step") and _is_of(code, code.co_name, "torch/optim/"):
            stage = "step"
    return modules.name_below(root, module) if module is not None else None, stage


def _is_of(code: CodeType, function: str, *files: str) -> bool:
    path = code.co_filename.replace(os.sep, "/")
    return code.co_name == function and any(f"/{file}" in path for file in files)


def is_out_of_memory(value: BaseException) -> bool:
    """Whether an exception says that memory ran out, on the host or on a device."""
    import torch

    # Before torch 2.5 the class had another name; then the message tells.
    if isinstance(value, (MemoryError, getattr(torch, "OutOfMemoryError", MemoryError))):
        return True
    if not isinstance(value, RuntimeError):
        return False
    words = _message(value)
    return (
        "DefaultCPUAllocator: can't allocate memory" in words
        or "DefaultCPUAllocator: not enough memory" in words
        or "CUDA out of memory" in words
        or "CUBLAS_STATUS_ALLOC_FAILED" in words
    )


def _memory() -> str:
    """Used and free memory: the host's as the kernel says, the devices' as torch's allocator says. CUDA is only asked if
    training has initialised it."""
    lines = [*_lines("/proc/self/status", "VmRSS", "VmHWM", "VmSize", "VmSwap")]
    lines += _lines("/proc/meminfo", "MemTotal", "MemAvailable", "SwapFree", "CommitLimit", "Committed_AS")
    try:
        import torch

        if torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                if torch.cuda.memory_reserved(device) > 0:
                    lines.append(torch.cuda.memory_summary(device, abbreviated=True))
    except Exception as error:
        lines.append(f"(torch's allocator can't be asked: {type(error).__name__})")
    return _cut("\n".join(lines), MAX_MEMORY_LENGTH)


def _lines(path: str, *wanted: str) -> list[str]:
    try:
        with open(path) as file:
            return [" ".join(line.split()) for line in file if line.split(":")[0] in wanted]
    except OSError:
        return []
