"""Records garbage collections (``gc.callbacks``) and compilations of ``torch.compile`` (TorchDynamo's callbacks).

TorchDynamo is not imported for this; its callbacks are registered when the program imports it.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from probe_agent import _native
from probe_agent.imports import CallbackFinder

_DYNAMO = "torch._dynamo.callback"

_finder: CallbackFinder | None = None
_handler: Any = None


def use_callbacks(explicit: bool) -> None:
    """Register callbacks of Python's garbage collector and of TorchDynamo."""
    global _finder
    if _native.garbage_collection in gc.callbacks:
        return
    _native.use_pauses(True)
    gc.callbacks.append(_native.garbage_collection)
    if _DYNAMO in sys.modules:
        _watch_compilations()
    else:
        _finder = CallbackFinder(_DYNAMO, _watch_compilations)
        sys.meta_path.insert(0, _finder)


def remove() -> None:
    """Remove the callbacks, and wait for no import any more."""
    global _finder, _handler
    _native.use_pauses(False)
    if _native.garbage_collection in gc.callbacks:
        gc.callbacks.remove(_native.garbage_collection)
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    _finder = None
    for callbacks, ours in (("start_callbacks", _compilation_begins), ("end_callbacks", _compilation_ends)):
        registered: list[Any] = getattr(_handler, callbacks, [])
        if ours in registered:
            registered.remove(ours)
    _handler = None


def _watch_compilations() -> None:
    global _finder, _handler
    _finder = None
    handler: Any = getattr(sys.modules.get(_DYNAMO), "callback_handler", None)
    try:
        handler.register_start_callback(_compilation_begins)
        handler.register_end_callback(_compilation_ends)
    except AttributeError:  # A torch without them (before 2.5): compilations are not seen.
        return
    _handler = handler


def _compilation_begins(*_: object) -> None:
    # A whole training step may be compiled, of which nothing else is seen before it ends.
    _native.first_use()
    _native.compilation_begin()


def _compilation_ends(*arguments: object) -> None:
    compile_id = getattr(arguments[0], "compile_id", None) if arguments else None
    _native.compilation_end(compile_id if isinstance(compile_id, str) else None)
