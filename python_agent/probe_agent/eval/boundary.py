"""The boundary between two steps, where training stops for a snippet.

Recording calls :func:`run_pending` on the training thread at a boundary, if :func:`is_wanted`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from probe_agent import signals
from probe_agent._native import Outcome, ThreadMode
from probe_agent.eval import frames, groups, safe_text
from probe_agent.eval.ended import SnippetEnded
from probe_agent.eval.job import BoundaryDecision, SnippetJob
from probe_agent.eval.snippet import SnippetResult

_lock = threading.Lock()
_pending: SnippetJob | None = None
# The function that is called at every boundary.
_watcher: Callable[[], None] | None = None


def begin_in_child() -> None:
    """Forgets the parent's snippet, in a forked child that becomes an agent. The thread that may have held the lock is gone."""
    global _lock, _pending, _watcher
    _lock, _pending, _watcher = threading.Lock(), None, None


def arm(job: SnippetJob) -> None:
    """Makes `job` run at its boundary. One job at a time."""
    global _pending
    with _lock:
        _pending = job
        _want(job.native)


def disarm(job: SnippetJob) -> None:
    """Takes `job` back; another job that was armed since stays armed."""
    global _pending
    with _lock:
        if _pending is job:
            _pending = None
            _want(job.native)


def _want(native: Any) -> None:
    native.want_boundary(is_wanted())


def watch(watcher: Callable[[], None], native: Any) -> None:
    """`watcher()` is called at every boundary from here on, after the snippet that runs there. One at a time."""
    global _watcher
    with _lock:
        _watcher = watcher
        _want(native)


def unwatch(watcher: Callable[[], None], native: Any) -> None:
    """`watcher` is not called any more."""
    global _watcher
    with _lock:
        if _watcher == watcher:
            _watcher = None
            _want(native)


def is_wanted() -> bool:
    """Whether a snippet waits for a boundary, or boundaries are watched."""
    return _pending is not None or _watcher is not None


def run_pending() -> None:
    """Runs the snippet of this step, if there is one, and calls the watcher. The calling thread trains and is between two steps.

    Raises only what is the program's: Ctrl-C, and what its signal handlers raise meanwhile.
    """
    try:
        job = _pending
        if job is not None:
            _at_boundary(job)
    except SnippetEnded:
        pass
    except BaseException as error:
        if signals.is_of_the_program(error):
            raise
        _say(error)
    watcher = _watcher
    if watcher is not None:
        watcher()


def _at_boundary(job: SnippetJob) -> None:
    if job.step >= 0 and job.native.step() < job.step:
        return
    began = time.perf_counter()
    before = ThreadMode.RECORD
    stays_armed = False
    try:
        # Inside the try: an exception that a signal raises right after this must not leave the thread suspended.
        before = job.native.thread_mode(ThreadMode.SUSPENDED)
        if job.step >= 0 and _word_of_the_collector(job) is BoundaryDecision.NEXT:
            stays_armed = True
            job.waited += time.perf_counter() - began
            return
        disarm(job)
        if job.begin():
            run_here(job, began)
    finally:
        # This also runs if Ctrl-C ended the wait.
        if not stays_armed:
            disarm(job)
            job.withdraw(SnippetResult(Outcome.CANCELLED, "training was interrupted"))
        job.native.thread_mode(before)


def _word_of_the_collector(job: SnippetJob) -> BoundaryDecision | None:
    """Says that training waits here, and waits until the collector knows whether all ranks wait at this same boundary.

    None if the snippet was withdrawn meanwhile. The GIL is free during the wait.
    """
    job.arrive(groups.positions())
    while job.is_waiting():
        left = job.deadline - time.monotonic()
        if left <= 0:
            job.withdraw(SnippetResult(Outcome.CANCELLED, "not every rank reached the step in time"))
        else:
            word = job.take_word(min(left, 1.0))
            if word is not None:
                return word
    return None


def run_here(job: SnippetJob, began: float) -> None:
    """Runs a job that has begun on the calling thread, which trains and waits for it since `began`."""
    try:
        names = frames.names(threading.get_ident(), job.frame)
    except frames.NoFrameError as error:
        job.fail(error)
    else:
        job.run(names, began)
        if job.execution.of_program is not None:
            raise job.execution.of_program


def _say(error: BaseException) -> None:
    words = f"a snippet between two steps: {safe_text.described(error)}"
    native: Any = sys.modules.get("probe_agent._native")
    if native is not None:
        native.set_problem(words)
