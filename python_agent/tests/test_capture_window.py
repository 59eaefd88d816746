"""The profiler of a capture is off again however it is ended, and imports nothing while training waits."""

from __future__ import annotations

import sys
import time
from typing import Any

from recording_support import in_interpreter


def cancelled_capture() -> dict[str, Any]:
    import probe_agent.torch
    from probe_agent import _native
    from probe_agent.capture import session
    from probe_agent.capture.window import CaptureWindow
    from probe_agent.eval import boundary
    from torch.autograd import profiler

    probe_agent.torch.install()
    _native.set_boundary_callback(boundary.run_pending)
    settings = {"capture": "c", "timeout_s": 100.0, "with": ["modules"], "snapshot": False, "steps": 2}
    window = CaptureWindow({**settings, "history": 0, "directory": "/nowhere", "max_bytes": 1}, _native)
    window.is_waited_for = True
    asked: list[bool] = []
    on_main_thread, watch = window._on_main_thread, session.TakeoverWatch

    def ask() -> None:
        asked.append(True)
        on_main_thread()

    def cancel_and_watch(*arguments: Any) -> Any:
        # The profiler has just been started.
        window.cancel("Ctrl-C")
        while not asked:
            time.sleep(0.001)
        return watch(*arguments)

    window._on_main_thread = ask  # type: ignore[method-assign]
    session.TakeoverWatch = cancel_and_watch  # type: ignore[assignment, misc]
    window.arm()
    window.at_boundary()
    return {
        "over": window.over.is_set(),
        "problem": window.report()["problem"],
        "profiled": session._is_on(),
        "start": type(profiler._enable_profiler).__name__,  # type: ignore[attr-defined]
        "imported": [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules],
    }


def test_a_capture_that_is_cancelled_while_it_starts_ends_there() -> None:
    """Its end on the main thread must not come in the middle of its beginning there."""
    found = in_interpreter(cancelled_capture)
    assert found.pop("problem") == "Ctrl-C"
    assert found == {
        "over": True, "profiled": False, "start": "builtin_function_or_method", "imported": []
    }  # fmt: skip
