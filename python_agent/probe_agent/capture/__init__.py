"""`probe capture` within a training process: the functions that the collector's snippets call.

:func:`check` and :func:`wait` run beside training, :func:`arm` between two steps. Each prints a line of JSON for the collector.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
from typing import Any

from probe_agent.capture import session
from probe_agent.capture.window import CaptureWindow

# Seconds between two checks of a wait; a snippet that is to end is ended between two checks.
_CHECK_SECONDS = 0.05

_lock = threading.Lock()
_window: CaptureWindow | None = None


def _is_chosen(settings: dict[str, Any]) -> bool:
    return [platform.node(), os.getpid()] in settings["processes"]


def _say(**facts: Any) -> None:
    # One write, because lines of several processes are mixed.
    sys.stdout.write(json.dumps({"host": platform.node(), "pid": os.getpid(), **facts}) + "\n")


def _current() -> CaptureWindow | None:
    return _window if _window is not None and not _window.over.is_set() else None


def check(text: str) -> None:
    """Prints whether a capture can begin here. Changes nothing."""
    settings = json.loads(text)
    if _is_chosen(settings):
        _say(problem="a capture is under way here already" if _current() else session.why_not(settings))


def arm(text: str) -> None:
    """Begins a capture at the boundary between two steps where this runs."""
    global _window
    settings = json.loads(text)
    if not _is_chosen(settings):
        return
    from probe_agent import _native

    with _lock:
        if _current() is not None:
            _say(problem="a capture is under way here already")
            return
        _window = CaptureWindow(settings, _native)
    _window.arm()
    _say(step=_native.step())


def wait(text: str) -> None:
    """Prints the capture's progress and its result. If this snippet is ended before that, the capture ends too."""
    settings = json.loads(text)
    if not _is_chosen(settings):
        return
    window = _window
    if window is None or window.name != settings["capture"]:
        _say(problem="the capture did not begin here")
        return
    reported = 0
    try:
        window.is_waited_for = True
        while not window.over.wait(_CHECK_SECONDS):
            done = window.steps_done
            if done > reported:
                reported = done
                _say(steps=done)
        _say(**window.report())
    except BaseException:
        # The command has ended, or gave up.
        window.cancel("no command waits for the capture any more")
        raise


def begin_in_child() -> None:
    """Forgets the capture of the parent, in a forked child that becomes an agent."""
    global _lock, _window
    _lock, _window = threading.Lock(), None


def at_end() -> None:
    """Ends a capture when the agent ends in this process."""
    window = _current()
    if window is not None:
        window.cancel("the process, or its agent, ended")
        window.end_here()
