"""Snippets running: output, errors, deadlines, limits, and what is left behind. Commands go in as the collector's
would, replies come out as it would get them."""

from __future__ import annotations

import importlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from eval_support import Command, Native, Snippet
from probe_agent._native import At, CommandKind, ThreadMode
from probe_agent.eval import boundary, frames, job, namespace, runner
from probe_agent.eval.runner import Runner

PATIENCE = 20.0

# Catches what ends it, twice.
SWALLOWS = """
import time
for _ in range(2):
    try:
        while True: time.sleep(0.001)
    except BaseException: pass
"""


class Collector:
    """The collector's side of a runner that serves on a thread, as in a training process."""

    def __init__(self, native: Native | None = None) -> None:
        self.native = native or Native()
        self.runner = Runner(self.native)
        self.thread = threading.Thread(target=self.runner.serve, daemon=True)
        self.thread.start()
        self.ids = 0

    def send(self, kind: str, code: str = "", **more: Any) -> int:
        brings_snippet = kind in ("decide", "arm")
        self.ids += brings_snippet
        command = Command(getattr(CommandKind, kind.upper()), id=more.pop("id", self.ids))
        command.connection = more.pop("connection", command.connection)
        command.reason = more.pop("reason", command.reason)
        if brings_snippet:
            command.snippet = Snippet(code, getattr(At, more.pop("at", "auto").upper()), **more)
        self.native.commands.put(command)
        return self.ids

    def reply(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.native.replies.get(timeout=PATIENCE)
        return found

    def done(self) -> tuple[str, str, str, str]:
        """What was printed on each stream until the snippet was done, its outcome and its error."""
        printed = {False: b"", True: b""}
        while True:
            reply = self.reply()
            if reply[0] == "output":
                printed[reply[2]] += reply[3]
            elif reply[0] == "done":
                return printed[False].decode(), printed[True].decode(), reply[2], reply[3]

    def run(self, code: str, at: str = "now", **more: Any) -> tuple[str, str, str, str]:
        self.send("decide", code, at=at, **more)
        assert self.reply()[:3] == ("placed", self.ids, "now")
        return self.done()


@pytest.fixture
def collector() -> Iterator[Collector]:
    streams = sys.stdout, sys.stderr
    made = Collector()
    yield made
    made.native.commands.put(None)
    made.thread.join(PATIENCE)
    assert not made.thread.is_alive()
    until("the streams to be what they were", lambda: (sys.stdout, sys.stderr) == streams)


def until(what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.002)


def test_output_and_the_last_value_are_shown(collector: Collector) -> None:
    out, err, outcome, error = collector.run("import sys\nprint('a', 'é')\nprint('b', file=sys.stderr)\n{1: 'x'}")
    assert (out, err, outcome, error) == ("a é\n{1: 'x'}\n", "b\n", "ok", "")
    assert collector.run("None")[0] == ""
    assert collector.run("import sys; sys.stdout.buffer.write(b'raw\\n'); sys.stdout.writelines(['x', 'y'])")[0] == (
        "raw\nxy"
    )


def test_a_long_value_is_cut(collector: Collector) -> None:
    out = collector.run("'x' * 1_000_000")[0]
    assert len(out) < 11_000 and "990000 more characters" in out


def test_a_snippet_sees_the_training_code_and_changes_none_of_its_names(collector: Collector) -> None:
    asked, answered = threading.Event(), threading.Event()
    frame_locals: dict[str, Any] = {}

    def training() -> None:
        train_loader = "outer"  # noqa: F841
        seen = 1

        def inner() -> None:
            step = 7  # noqa: F841
            asked.set()
            answered.wait(PATIENCE)

        inner()
        frame_locals.update(seen=seen)

    thread = threading.Thread(target=training)
    thread.start()
    asked.wait(PATIENCE)
    names = namespace.snapshot(thread.ident or 0)
    assert (names["train_loader"], names["step"], names["seen"]) == ("outer", 7, 1)
    assert names["PATIENCE"] == PATIENCE, "globals of the frames too"
    names["seen"] = 2
    where = namespace.where(thread.ident or 0)
    assert f"{__file__}:" in where and "in inner" in where and "in a call of wait" in where
    answered.set()
    thread.join()
    assert frame_locals == {"seen": 1}


def test_one_frame_can_be_asked_for_by_its_number(collector: Collector) -> None:
    import heapq

    asked, answered = threading.Event(), threading.Event()

    def training() -> None:
        here, depth = "outer", 1  # noqa: F841

        def key(x: int) -> int:
            here, depth = "inner", x  # noqa: F841
            asked.set()
            answered.wait(PATIENCE)
            return x

        heapq.nlargest(1, [7], key=key)

    thread = threading.Thread(target=training)
    thread.start()
    asked.wait(PATIENCE)
    ident = thread.ident or 0
    try:
        found = frames.of(ident)
        functions = [frame.f_code.co_name for frame in found]
        outer, inner = functions.index("training"), functions.index("key")
        library = functions.index("nlargest")
        assert outer < library < inner, "counted from the outermost"
        assert (frames.names(ident, outer)["here"], frames.names(ident, outer)["depth"]) == ("outer", 1)
        assert (frames.names(ident, inner)["here"], frames.names(ident, inner)["depth"]) == ("inner", 7)
        # That one alone: not the names of the frames around it, and a library's only by its number.
        assert "here" not in frames.names(ident, library) and frames.names(ident, library)["n"] == 1
        assert frames.names(ident, None)["here"] == "inner"
        lines = frames.listing(found).splitlines()
        assert lines[0].split() == ["frame", "function", "at", "names"]
        assert lines[library + 1].endswith("library") and not lines[inner + 1].endswith("library")
        assert lines[inner + 1].split()[0] == str(inner) and "test_eval_run.py:" in lines[inner + 1]
        with pytest.raises(frames.NoFrameError, match=f"no frame 99, only 0 to {len(found) - 1}") as raised:
            frames.names(ident, 99)
        assert "nlargest" in raised.value.hint
    finally:
        answered.set()
        thread.join()
    with pytest.raises(frames.NoFrameError, match="no Python code"):
        frames.names(ident, 0)


def test_names_are_completed_beside_a_snippet_that_runs(collector: Collector) -> None:
    session = collector.run("mine_alone = 1", session="completing")
    assert session[2] == "ok"
    number = collector.send("decide", "import time\nprint('began', end='')\nwhile True: time.sleep(0.001)", at="now")
    assert collector.reply()[0] == "placed" and collector.reply()[0] == "output"
    for session, expected in (("completing", b"mine_alone\n"), ("", b"")):
        collector.send("decide", complete="mine_al", session=session)
        assert collector.reply()[0] == "placed"
        assert collector.reply()[2:] == (False, expected)
        assert collector.reply()[2] == "ok"
    collector.send("cancel", id=number, reason="enough")
    assert collector.done()[2:] == ("cancelled", "enough")
    collector.run("", session="completing", end_session=True)
    collector.runner.allowed = False
    collector.send("decide", complete="mine_al")
    assert collector.reply()[2] == "refused"


def test_a_frame_that_is_not_there_runs_nothing(collector: Collector) -> None:
    for kind in ("decide", "arm"):
        collector.send(kind, "print('ran')", frame=999)
        if kind == "arm":
            assert collector.reply()[0] == "armed"
            out, _, outcome, error = train_until_done(collector)
        else:
            reply = collector.reply()
            assert reply[0] == "done", "before it is placed"
            out, outcome, error = "", *reply[2:4]
            assert "test_a_frame_that_is_not_there" in reply[-1], "the frames there are, as a hint"
        assert (out, outcome) == ("", "error") and "no frame 999" in error
    collector.send("arm", "print(kind)", frame=0)
    assert collector.reply()[0] == "armed"
    assert "NameError" in train_until_done(collector)[3], "the outermost frame does not see this one's"


def test_frames_of_libraries_give_no_names(collector: Collector) -> None:
    def key(x: int) -> int:
        found.append(namespace.snapshot(threading.get_ident()))
        return x

    found: list[dict[str, Any]] = []
    import heapq

    heapq.nlargest(1, [1, 2], key=key)
    assert "found" in found[0] and "iterable" not in found[0]


def test_an_exception_is_a_traceback_of_the_snippet_alone(collector: Collector) -> None:
    out, _, outcome, error = collector.run("x = 1\ndef f():\n    raise ValueError('planted')\nprint('before')\nf()")
    assert (out, outcome) == ("before\n", "error")
    lines = error.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: planted"
    assert '"<probe eval 1>", line 5' in error and "raise ValueError('planted')" in error
    assert "probe_agent" not in error


def test_what_ends_a_program_ends_a_snippet_alone(collector: Collector) -> None:
    assert collector.run("raise SystemExit")[2:] == ("ok", "")
    assert collector.run("import sys; sys.exit(3)")[2:] == ("error", "SystemExit: 3")
    assert collector.run("raise KeyboardInterrupt")[2] == "error"
    assert collector.thread.is_alive()


def test_what_never_ends_by_itself_ends_a_snippet_alone(collector: Collector) -> None:
    endless = "def f(): return f()\nf()"
    assert collector.run(endless)[3].splitlines()[-1].startswith("RecursionError")
    collector.send("arm", endless)
    assert collector.reply()[0] == "armed"
    assert train_until_done(collector)[3].splitlines()[-1].startswith("RecursionError")
    # A thread that it leaves behind beside training does not keep the process from ending.
    code = "import threading\nstop = threading.Event()\nt = threading.Thread(target=stop.wait)\nt.start()\n"
    assert collector.run(code + "print(t.daemon)\nthreading.left_behind = t, stop")[0] == "True\n"
    left, stop = threading.left_behind  # type: ignore[attr-defined]
    del threading.left_behind  # type: ignore[attr-defined]
    assert left.is_alive()
    stop.set()
    left.join(PATIENCE)
    assert collector.run("7")[0] == "7\n"


def test_what_does_not_compile_is_an_error_at_once(collector: Collector) -> None:
    for code in ("print(", "x = " + "(" * 300 + ")" * 300, "a\0b"):
        collector.send("decide", code)
        name, _, outcome, error, *_ = collector.reply()
        assert (name, outcome) == ("done", "error") and error, code
    assert "probe_agent" not in error


@pytest.mark.parametrize("code", [
    "while True: pass",
    "import time\nwhile True:\n    try: time.sleep(0.001)\n    except Exception: pass",
    "def f():\n    try:\n        f2()\n    finally: pass\ndef f2():\n    while True: [x for x in range(100)]\nf()",
])  # fmt: skip
def test_a_deadline_ends_it(collector: Collector, code: str) -> None:
    began = time.monotonic()
    *_, outcome, error = collector.run(code, timeout_s=0.3)
    assert (outcome, error) == ("timeout", "it took longer than its deadline of 0.3 s")
    assert time.monotonic() - began >= 0.3
    assert collector.run("1 + 1")[0] == "2\n"


def test_what_would_train_beside_training_is_refused_and_says_where_it_may(collector: Collector) -> None:
    # A process that trains has imported it before anybody asks.
    importlib.import_module("torch")
    train = "import torch\nx = torch.ones(2, requires_grad=True)\nx.sum().backward()"
    *_, outcome, error = collector.run(train)
    assert outcome == "error" and "must not train" in error and "hint: --at step" in error
    # The next one starts afresh, and torch is as it was.
    assert collector.run("import torch\ntorch.ones(3).tolist()")[0] == "[1.0, 1.0, 1.0]\n"


def test_one_that_swallows_its_end_is_ended_again(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine the second attempt may come late: it is not to be said before that it runs on.
    monkeypatch.setattr(job, "GRACE_SECONDS", PATIENCE)
    # Its loop is over then, and so is the snippet.
    assert collector.run(SWALLOWS, timeout_s=0.2)[2] == "ok"
    assert collector.run("3")[0] == "3\n"


def test_a_call_that_cannot_be_interrupted_is_said_to_run_on(collector: Collector) -> None:
    release = threading.Event()
    threading.blocked_for_test = release.wait  # type: ignore[attr-defined]
    try:
        collector.send("decide", "import threading; threading.blocked_for_test(20)", at="now", timeout_s=0.1)
        assert collector.reply()[0] == "placed"
        name, number, *ended, seconds, _, _, still_running, _ = collector.reply()
        assert (name, *ended, still_running) == ("done", "timeout", "it took longer than its deadline of 0.1 s", True)
        collector.send("decide", "1")
        refused = collector.reply()
        assert refused[2:4] == ("refused", "an earlier snippet is still running in this process")
        assert "probe.evals" in refused[-1]
    finally:
        release.set()
    # And once more when it is over: how it ended is as was said, and how long it took in all.
    again = collector.reply()
    assert (again[:2], list(again[2:4]), again[7]) == ((name, number), ended, False) and again[4] >= seconds
    until("it to be over", lambda: collector.runner.job is None)
    assert collector.run("4")[0] == "4\n"


@pytest.mark.parametrize("code", ["1 + 1", "while True: pass", SWALLOWS])
def test_no_interrupt_is_left_behind(code: str) -> None:
    # In a process of its own: a thread that CPython 3.11 profiles would spin for ever on a flag that was left up.
    script = f"""
import faulthandler, sys, threading
faulthandler.dump_traceback_later(30, exit=True)
from probe_agent.eval.snippet import Execution, parse
code = {code!r}
execution = Execution(code, "<snippet>", parse(code, "<snippet>"))
done = threading.Event()
def end():
    while not done.wait(0.05):
        execution.end()
ender = threading.Thread(target=end)
ender.start()
execution.run({{}})
done.set()
ender.join()
sys.setprofile(lambda *_: None)
(lambda: 0)()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_cancelling_ends_it(collector: Collector) -> None:
    number = collector.send("decide", "import time\nprint('began')\nwhile True: time.sleep(0.001)", at="now")
    assert collector.reply()[0] == "placed"
    assert collector.reply()[0] == "output"
    collector.send("cancel", id=number, reason="the client hung up")
    assert collector.done()[2:] == ("cancelled", "the client hung up")


def test_a_lost_connection_ends_what_it_asked_for(collector: Collector) -> None:
    collector.send("decide", "while True: pass", at="now", connection=5)
    assert collector.reply()[0] == "placed"
    collector.send("disconnected", connection=5)
    assert collector.done()[2] == "cancelled"


def test_output_is_cut_at_its_limit(collector: Collector) -> None:
    out, _, outcome, error = collector.run(
        "while True:\n    try: print('x' * 100)\n    except Exception: pass", max_output=1000
    )
    assert (len(out), outcome) == (1000, "output_limit")
    assert error == "it printed more than its limit of 1000 bytes, and the last 9 bytes are left out"


def test_what_other_threads_print_stays_where_it_was(collector: Collector, capsys: pytest.CaptureFixture[str]) -> None:
    printed, ended = threading.Event(), threading.Event()
    stream = sys.stdout

    def training() -> None:
        while not ended.is_set():
            print("training")
            printed.set()
            time.sleep(0.001)

    thread = threading.Thread(target=training)
    thread.start()
    code = "import threading, time\nfor _ in range(20): print('mine'); time.sleep(0.002)\n" \
        "t = threading.Thread(target=print, args=('of a thread of it',)); t.start(); t.join()"  # fmt: skip
    printed.wait(PATIENCE)
    out = collector.run(code)[0]
    ended.set()
    thread.join()
    assert out == "mine\n" * 20
    assert sys.stdout is stream
    rest = capsys.readouterr().out
    assert "training\n" in rest and "of a thread of it\n" in rest and "mine" not in rest


def test_a_stream_that_training_put_there_meanwhile_stays(collector: Collector) -> None:
    before, other = sys.stdout, io.StringIO()
    collector.send("decide", "print('a')\nimport time\nwhile not hasattr(time, 'go'): time.sleep(0.001)", at="now")
    assert collector.reply()[0] == "placed" and collector.reply()[0] == "output"
    sys.stdout = other
    time.go = True  # type: ignore[attr-defined]
    try:
        assert collector.done()[2] == "ok"
        assert sys.stdout is other
    finally:
        sys.stdout = before
        del time.go  # type: ignore[attr-defined]


def test_snippets_can_be_switched_off(collector: Collector) -> None:
    collector.runner.allowed = False
    collector.send("decide", "1")
    assert collector.reply()[2:4] == ("refused", "this process runs no snippets (PROBE_EVAL=off)")


# Between steps: this thread trains


def train_until_done(collector: Collector, steps: int = 10_000) -> tuple[str, str, str, str]:
    """Trains here, with a boundary after each step, until the snippet is done."""
    for _ in range(steps):
        collector.native.steps += 1
        if collector.native.wanted.is_set():
            boundary.run_pending()
        if not collector.native.replies.empty():
            return collector.done()
        time.sleep(0.001)
    raise AssertionError("it never ran")


def test_a_snippet_runs_between_steps_on_the_training_thread(collector: Collector) -> None:
    here = threading.get_ident()
    local_name = "of training"  # noqa: F841
    collector.send("arm", "import threading\nprint(threading.get_ident(), local_name)")
    assert collector.reply() == ("armed", 1, 0)
    out, _, outcome, _ = train_until_done(collector)
    assert (out, outcome) == (f"{here} of training\n", "ok")
    assert collector.native.modes == [ThreadMode.SUSPENDED, ThreadMode.RECORD]
    assert not collector.native.wanted.is_set()


def test_a_muted_snippet_runs_and_says_only_how_it_ended(collector: Collector) -> None:
    collector.send("arm", "print('x')\nraise ValueError('of the muted')", mute=True)
    assert collector.reply()[0] == "armed"
    out, _, outcome, error = train_until_done(collector)
    assert (out, outcome) == ("", "error") and "of the muted" in error


def test_at_its_step_training_waits_for_every_rank(collector: Collector) -> None:
    collector.send("arm", "print('ran')", step=3)
    assert collector.reply() == ("armed", 1, 0)
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
    assert collector.reply() == ("armed", 1, 0)
    collector.native.steps = 7  # It was told when it had passed that step: it stops at the next boundary.
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
    assert collector.reply()[0] == "armed"
    collector.native.steps = 3
    training = threading.Thread(target=boundary.run_pending)
    training.start()
    # The deadline may have passed before this machine came to it: then training has nothing to wait for.
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
    assert collector.reply() == ("armed", 1, 0)
    boundary.run_pending()
    collector.send("next", id=1)
    until("it to be heard", lambda: collector.runner.job is not None and collector.runner.job.nexts == 1)
    training = threading.Thread(target=boundary.run_pending)
    training.start()
    assert collector.reply() == ("arrived", 1, 0, 1)
    collector.send("go", id=1)
    assert collector.done()[:3] == ("ran\n", "", "ok")
    training.join(PATIENCE)


class Preempted(Exception):
    """What a program's signal handler may raise."""


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
    assert collector.reply()[0] == "armed"

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
    assert collector.reply()[0] == "armed"
    until("it to be armed", collector.native.wanted.is_set)
    with pytest.raises(Preempted):
        boundary.run_pending()
    assert collector.done()[2] == "error"


def test_without_a_boundary_it_says_where_training_is(collector: Collector) -> None:
    # What was asked for is said, and not what had been left of it when the command came.
    collector.send("arm", "1", timeout_s=0.2, asked_s=1800.0)
    assert collector.reply()[0] == "armed"
    *_, outcome, error = collector.done()
    assert outcome == "no_boundary"
    assert "within 1800 s" in error and "test_eval_run.py:" in error
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
        assert collector.reply()[0] == "armed"
        outcome = train_until_done(collector)[2]
        assert outcome in ("ok", "timeout")
        # Whatever was still on its way would come here.
        for number in range(2000):
            str(number)


def test_snippets_within_a_snippet_do_not_run(collector: Collector) -> None:
    collector.send("arm", "from probe_agent.eval import boundary\nboundary.run_pending()\nprint('once')")
    assert collector.reply()[0] == "armed"
    assert train_until_done(collector)[0] == "once\n"


def test_ctrl_c_while_training_waits_is_trainings_own(collector: Collector) -> None:
    import _thread

    collector.send("arm", "print('ran')", step=1)
    assert collector.reply()[0] == "armed"
    collector.native.steps = 1
    # Whoever starts the tests in the background may have had the signal ignored.
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


def test_logging_of_training_goes_on(collector: Collector) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("t").addHandler(handler)
    collector.run("import logging; logging.getLogger('t').warning('seen')")
    assert stream.getvalue() == "seen\n"
