"""Ends a snippet from outside, by an exception that Python raises in its thread."""

from __future__ import annotations

import ctypes


class SnippetEnded(BaseException):
    """Ends a snippet from outside; no `except Exception` of a snippet catches it."""


def interrupt(thread: int) -> None:
    """Raises SnippetEnded in a thread, when it next runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SnippetEnded))
