"""Whether an exception was raised by one of the program's signal handlers, which Python runs wherever the main thread is.

Code of ours that must not fail in training catches the errors in it. An exception that a handler raises there (for a
checkpoint before preemption, say) is no such error: the program expects it.
"""

from __future__ import annotations

import functools
import opcode
import signal
from types import CodeType, TracebackType
from typing import Any

_RAISE = opcode.opmap["RAISE_VARARGS"]


def is_of_the_program(error: BaseException, traceback: TracebackType | None = None) -> bool:
    """Whether ``error``, which left code of ours, is the program's: Ctrl-C, an exit, or what a signal handler raised."""
    return not isinstance(error, Exception) or is_of_a_handler(error, traceback)


def is_ctrl_c(error: BaseException) -> bool:
    """Whether ``error`` is the KeyboardInterrupt that Python raises between two instructions, and not one that some code
    raises itself, which is no Ctrl-C."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is None or traceback.tb_frame.f_code.co_code[traceback.tb_lasti] != _RAISE


def is_of_a_handler(error: BaseException, traceback: TracebackType | None = None) -> bool:
    """Whether a signal handler written in Python raised ``error``."""
    codes = {code for code in map(_code_of, map(signal.getsignal, signal.valid_signals())) if code is not None}
    traceback = traceback or error.__traceback__
    while codes and traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """The code of a handler: a function, a method, a partial one, or an object that can be called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", type(handler).__call__)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
