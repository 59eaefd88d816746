"""Snippets between two steps: this thread trains."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from eval_support import PATIENCE, Collector, train_until_done, until
from probe_agent._native import ThreadMode
from probe_agent.eval import boundary, runner
from test_recording_modes import Functions, Operators


def test_a_snippet_runs_between_steps_on_the_training_thread(collector: Collector) -> None:
    here = threading.get_ident()
    local_name = "of training"  # noqa: F841
    collector.send("arm", "import threading\nprint(threading.get_ident(), local_name)")
    assert collector.armed() == ("armed", 1, 0)
    out, _, outcome, _ = train_until_done(collector)
    assert (out, outcome) == (f"{here} of training\n", "ok")
    assert collector.native.modes == [ThreadMode.SUSPENDED, ThreadMode.RECORD]
    assert not collector.native.wanted.is_set()


def test_modes_of_the_program_see_the_tensors_that_a_snippet_asks_and_nothing_else(collector: Collector) -> None:
    x, seen = torch.ones(2), []
    with Functions(seen), Operators(seen):
        for code in ("1 + 1", "x.sum()"):
            collector.send("arm", f"print({code})")
            collector.armed()
            assert train_until_done(collector)[2] == "ok"
            seen.append("a snippet is over")
    assert seen[0] == "a snippet is over" and seen[1] == "function torch.Tensor.sum" and x is not None


def test_a_muted_snippet_runs_and_says_only_how_it_ended(collector: Collector) -> None:
    collector.send("arm", "print('x')\nraise ValueError('of the muted')", mute=True)
    collector.armed()
    out, _, outcome, error = train_until_done(collector)
    assert (out, outcome) == ("", "error") and "of the muted" in error


def test_at_its_step_training_waits_for_every_rank(collector: Collector) -> None:
    collector.send("arm", "print('ran')", step=3)
    assert collector.armed() == ("armed", 1, 0)
    for step in (1, 2):
        collector.native.steps = step
        boundary.run_pending()
        assert collector.native.replies.empty()
    collector.native.steps = 3
    training = threading.Thread(target=boundary.run_pending)
    training.start()
    assert collector.reply() == ("arrived", 1, 3, 0)
    assert training.is_alive() and collector.native.replies.empty()
    collector.send("go", id=1)
    assert collector.done()[:3] == ("ran\n", "", "ok")
    training.join(PATIENCE)
    assert not training.is_alive()


def test_an_older_collector_is_told_that_ranks_would_not_meet(collector: Collector) -> None:
    collector.send("arm", "print('ran')", step=3, hears_arrived=False)
    assert collector.done()[2:] == (
        "refused",
        "the collector is older than this agent and can't bring ranks to the same step",
    )
    assert not collector.native.wanted.is_set()


def test_a_rank_that_is_behind_trains_on_to_its_next_boundary(collector: Collector) -> None:
    collector.send("arm", "print('ran')", step=3)
    assert collector.armed() == ("armed", 1, 0)
    collector.native.steps = 7  # The command arrived after that step: the snippet stops at the next boundary.
    for step in (7, 8):
        collector.native.steps = step
        training = threading.Thread(target=boundary.run_pending)
        training.start()
        assert collector.reply() == ("arrived", 1, step, step - 7)
        collector.send("next" if step == 7 else "go", id=1)
        training.join(PATIENCE)
        assert not training.is_alive()
    assert collector.done()[:3] == ("ran\n", "", "ok")
    assert not collector.native.wanted.is_set()


@pytest.mark.parametrize("how", ["cancel", "disconnected", "deadline"])
def test_what_never_got_its_word_never_runs(collector: Collector, how: str) -> None:
    collector.send("arm", "print('ran')", step=3, timeout_s=0.3 if how == "deadline" else 30)
    collector.armed()
    collector.native.steps = 3
    training = threading.Thread(target=boundary.run_pending)
    training.start()
    # On a slow machine the deadline may have passed before: then training does not wait.
    passed = (lambda: not collector.native.replies.empty()) if how == "deadline" else (lambda: False)
    until("training to wait", lambda: collector.native.modes or passed())
    if how != "deadline":
        assert collector.reply()[0] == "arrived"
        collector.send(how, id=1)
    out, _, outcome, _ = collector.done()
    assert (out, outcome) == ("", "cancelled") if how != "deadline" else outcome in ("cancelled", "no_boundary")
    training.join(PATIENCE)
    collector.send("go", id=1)
    boundary.run_pending()
    assert collector.run("5")[0] == "5\n"


def test_told_to_stop_before_its_step_training_stops_at_the_next_boundary(collector: Collector) -> None:
    collector.send("arm", "print('ran')", step=1000)
    assert collector.armed() == ("armed", 1, 0)
    boundary.run_pending()
    collector.send("next", id=1)
    until("it to be heard", lambda: (job := collector.runner.job) is not None and job.nexts == 1 and job.step == 0)
    training = threading.Thread(target=boundary.run_pending)
    training.start()
    assert collector.reply() == ("arrived", 1, 0, 1)
    collector.send("go", id=1)
    assert collector.done()[:3] == ("ran\n", "", "ok")
    training.join(PATIENCE)


class Preempted(Exception):
    """An exception that a program's signal handler raises."""


@pytest.fixture
def preempted() -> Iterator[None]:
    def handle(number: int, frame: Any) -> None:
        raise Preempted

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_while_training_waits_for_the_others_reaches_the_program(
    collector: Collector, preempted: None
) -> None:
    collector.send("arm", "print('ran')", step=0)
    collector.armed()

    def preempt() -> None:
        assert collector.reply()[0] == "arrived"
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=preempt).start()
    with pytest.raises(Preempted):
        boundary.run_pending()
    assert collector.done()[2] == "cancelled"
    assert collector.run("5")[0] == "5\n"


def test_a_signal_in_a_snippet_between_steps_reaches_the_program(collector: Collector, preempted: None) -> None:
    collector.send("arm", "import signal; signal.raise_signal(signal.SIGUSR1)", step=-1)
    collector.armed()
    with pytest.raises(Preempted):
        boundary.run_pending()
    assert collector.done()[2] == "error"


def test_without_a_boundary_it_says_where_training_is(collector: Collector) -> None:
    # The message names the requested time, and not the rest of it when the command came.
    collector.send("arm", "1", timeout_s=1.0, asked_s=1800.0)
    collector.armed()
    *_, outcome, error = collector.done()
    assert outcome == "no_boundary"
    assert "within 1800 s" in error and "eval_support.py:" in error
    assert not collector.native.wanted.is_set()
    boundary.run_pending()
    assert collector.native.replies.empty()


def test_a_deadline_on_the_training_thread_does_not_escape_into_training(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is looked at all the time, and is where the snippet ends: whichever comes first, this thread gets nothing of it.
    monkeypatch.setattr(runner, "TICK_SECONDS", 0.0001)
    code = "import time\nt = mine.job.deadline = time.monotonic() + 0.02\nwhile time.monotonic() < t: pass"
    mine = collector.runner  # noqa: F841
    for _ in range(20):
        collector.send("arm", code)
        collector.armed()
        outcome = train_until_done(collector)[2]
        assert outcome in ("ok", "timeout")
        # An interrupt that was still on its way would be raised here.
        for number in range(2000):
            str(number)


def test_snippets_within_a_snippet_do_not_run(collector: Collector) -> None:
    collector.send("arm", "from probe_agent.eval import boundary\nboundary.run_pending()\nprint('once')")
    collector.armed()
    assert train_until_done(collector)[0] == "once\n"


def test_ctrl_c_while_training_waits_is_trainings_own(collector: Collector) -> None:
    import _thread

    collector.send("arm", "print('ran')", step=1)
    collector.armed()
    collector.native.steps = 1
    # A shell that starts the tests in the background may have set the signal to be ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(
        target=lambda: (until("training to wait", lambda: collector.native.modes), _thread.interrupt_main())
    ).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            boundary.run_pending()
            for _ in range(1000):
                time.sleep(0.001)
    finally:
        signal.signal(signal.SIGINT, before)
    assert collector.done()[2] == "cancelled"
    assert collector.native.modes == [ThreadMode.SUSPENDED, ThreadMode.RECORD]
