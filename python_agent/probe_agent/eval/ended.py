"""Ends a snippet from outside, by an exception that Python raises in its thread."""

from __future__ import annotations

import ctypes
from types import CodeType

from probe_agent import _native

#: The file that frames of an import in progress have.
_IMPORTS = "<frozen importlib._bootstrap>"


class SnippetEnded(BaseException):
    """Ends a snippet from outside; no `except Exception` of a snippet catches it."""


def is_importing(thread: int, within: CodeType) -> bool:
    """Whether a thread is importing a module, within its newest call of the function with the code `within`.

    An interrupt there would leave a package half imported: its parts stay in `sys.modules` without being attributes of it, and
    the next import of the package fails, which may be one of training.
    """
    for frame in _native.stacks().get(thread, []):
        if frame.f_code is within:
            break
        if frame.f_code.co_filename == _IMPORTS:
            return True
    return False


def interrupt(thread: int) -> None:
    """Raises SnippetEnded in a thread, when it next runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SnippetEnded))
