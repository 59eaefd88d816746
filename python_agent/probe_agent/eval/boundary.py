"""Where training stops between two steps for a snippet.

Recording calls :func:`run_pending` on the training thread at the boundary, when one was wanted. It never raises: the
next thing that runs is training.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from typing import Any

from probe_agent.eval import frames
from probe_agent.eval.job import Job
from probe_agent.eval.snippet import Outcome, SnippetEnded

# Recording's modes of a thread.
SUSPENDED = 1

_lock = threading.Lock()
_pending: Job | None = None


def arm(job: Job) -> None:
    """`job` is to run at its boundary; there is one at a time."""
    global _pending
    with _lock:
        _pending = job
        job.native.want_boundary(True)


def disarm(job: Job) -> None:
    """`job` wants no boundary any more. Another one, armed since, does."""
    global _pending
    with _lock:
        if _pending is job:
            _pending = None
            job.native.want_boundary(False)


def is_wanted() -> bool:
    """Whether a snippet waits for a boundary."""
    return _pending is not None


def run_pending() -> None:
    """The calling thread trains and is between two steps: runs the snippet whose step this is."""
    interrupted = False
    try:
        job = _pending
        if job is not None:
            _at_boundary(job)
    except SnippetEnded:
        pass
    except KeyboardInterrupt:
        interrupted = True
    except BaseException as error:
        _say(error)
    if interrupted:
        # Ctrl-C was meant for training, which gets it as soon as it runs again.
        _thread.interrupt_main()


def _at_boundary(job: Job) -> None:
    step = job.native.step()
    if job.step >= 0 and step < job.step:
        return
    if job.step >= 0 and step > job.step:
        disarm(job)
        job.withdraw(Outcome("NO_BOUNDARY", f"training passed step {job.step} without a boundary; it is at {step} now"))
        return
    began = time.perf_counter()
    before = job.native.thread_mode(SUSPENDED)
    try:
        if job.step >= 0:
            _wait_for_word(job)
        disarm(job)
        if job.begin():
            run_here(job, began)
    finally:
        # Also where Ctrl-C ended the waiting.
        disarm(job)
        job.withdraw(Outcome("CANCELLED", "training was interrupted"))
        job.native.thread_mode(before)


def _wait_for_word(job: Job) -> None:
    """Until the collector says that every rank waits here, or that this comes to nothing. The GIL is free meanwhile."""
    while job.is_waiting() and not job.may_run:
        left = job.deadline - time.monotonic()
        if left <= 0:
            job.withdraw(Outcome("CANCELLED", "not every rank reached the step in time"))
        else:
            job.go.wait(min(left, 1.0))


def run_here(job: Job, began: float) -> None:
    """Runs a job that has begun on the calling thread, which trains and waits for it since `began`."""
    try:
        names = frames.names(threading.get_ident(), job.frame)
    except frames.NoFrameError as error:
        job.fail(error)
    else:
        job.run(names, began)


def _say(error: BaseException) -> None:
    words = f"a snippet between two steps: {type(error).__name__}: {error}"
    native: Any = sys.modules.get("probe_agent._native")
    if native is not None:
        native.set_problem(words)
