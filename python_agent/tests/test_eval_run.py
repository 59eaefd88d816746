"""Running snippets: output, errors, deadlines, limits, and what is left behind. Commands go in like the collector's,
and replies come out as the collector gets them."""

from __future__ import annotations

import importlib
import io
import logging
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from eval_support import PATIENCE, Collector, train_until_done, until
from probe_agent.eval import frames, job, namespace

# Catches the interrupt that ends it, twice.
SWALLOWS = """
import time

for _ in range(2):
    try:
        print("began", end="")
        while True: time.sleep(0.001)
    except BaseException: pass
"""


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
    until("it to wait", lambda: "in a call of wait" in namespace.where(thread.ident or 0))
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
    until("it to wait", lambda: "in a call of wait" in namespace.where(ident))
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
            collector.armed()
            out, _, outcome, error = train_until_done(collector)
        else:
            reply = collector.reply()
            assert reply[0] == "done", "before it is placed"
            out, outcome, error = "", *reply[2:4]
            assert "test_a_frame_that_is_not_there" in reply[-1], "the frames there are, as a hint"
        assert (out, outcome) == ("", "error") and "no frame 999" in error
    collector.send("arm", "print(kind)", frame=0)
    collector.armed()
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
    collector.armed()
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


def end_by_deadline(collector: Collector) -> None:
    """Makes the deadline of the running snippet pass now."""
    running = collector.runner.job
    assert running is not None
    running.deadline = time.monotonic()


@pytest.mark.parametrize("code", [
    "while True: pass",
    "import time\nwhile True:\n    try: time.sleep(0.001)\n    except Exception: pass",
    "def f():\n    try:\n        f2()\n    finally: pass\ndef f2():\n    while True: [x for x in range(100)]\nf()",
])  # fmt: skip
def test_a_deadline_ends_it(collector: Collector, code: str) -> None:
    began = time.monotonic()
    *_, outcome, error = collector.run(code, timeout_s=1.0)
    assert (outcome, error) == ("timeout", "it took longer than its deadline of 1 s")
    assert time.monotonic() - began >= 1.0
    assert collector.run("1 + 1")[0] == "2\n"


def test_what_would_train_beside_training_is_refused_and_says_where_it_may(collector: Collector) -> None:
    # A process that trains has imported it before a snippet comes.
    importlib.import_module("torch")
    train = "import torch\nx = torch.ones(2, requires_grad=True)\nx.sum().backward()"
    *_, outcome, error = collector.run(train)
    assert outcome == "error" and "must not train" in error and "hint: --at step" in error
    # The next one starts afresh, and torch is as it was.
    assert collector.run("import torch\ntorch.ones(3).tolist()")[0] == "[1.0, 1.0, 1.0]\n"


def test_one_that_swallows_its_end_is_ended_again(collector: Collector) -> None:
    # Its loop is over then, and so is the snippet.
    collector.send("decide", SWALLOWS, at="now")
    assert collector.reply()[0] == "placed" and collector.reply()[0] == "output"
    end_by_deadline(collector)
    assert collector.done()[2] == "ok"
    assert collector.run("3")[0] == "3\n"


def test_a_call_that_cannot_be_interrupted_is_said_to_run_on(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "GRACE_SECONDS", 1.0)
    release = threading.Lock()
    release.acquire()
    threading.blocked_for_test = release.acquire  # type: ignore[attr-defined]
    try:
        code = "import threading; print('began', end=''); threading.blocked_for_test(timeout=60)"
        collector.send("decide", code, at="now")
        assert collector.reply()[0] == "placed" and collector.reply()[0] == "output"
        end_by_deadline(collector)
        name, number, *ended, seconds, _, _, still_running, _ = collector.reply()
        assert (name, *ended, still_running) == ("done", "timeout", "it took longer than its deadline of 30 s", True)
        collector.send("decide", "1")
        refused = collector.reply()
        assert refused[2:4] == ("refused", "an earlier snippet is still running in this process")
        assert "probe.evals" in refused[-1]
    finally:
        release.release()
    # The second answer comes when it is over: the outcome as before, and the whole duration.
    again = collector.reply()
    assert (again[:2], list(again[2:4]), again[7]) == ((name, number), ended, False) and again[4] >= seconds
    until("it to be over", lambda: (it := collector.runner.job) is None or it.is_over())
    assert collector.run("4")[0] == "4\n"


def test_an_import_is_not_interrupted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """A package that is half imported cannot be imported again, by training either."""
    package = tmp_path / "imported_by_a_snippet"
    package.mkdir()
    (package / "part.py").write_text("whole = True\n")
    (package / "__init__.py").write_text(
        "from . import part\nimport sys, time\nprint('began', end='')\n"
        "while not hasattr(sys, 'go_on_for_test'): time.sleep(0.001)\nprint('x' * 100)\nwhole = part.whole\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(job, "GRACE_SECONDS", 1.0)
    try:
        code = "import imported_by_a_snippet\nprint('after')"
        collector.send("decide", code, at="now", max_output=20)
        assert collector.reply()[0] == "placed" and collector.reply()[0] == "output"
        end_by_deadline(collector)
        _, _, outcome, _, _, _, _, still_running, _ = collector.reply()
        assert (outcome, still_running) == ("timeout", True)
        # It prints more than its limit within the import, which is no reason to interrupt it either.
        sys.go_on_for_test = True  # type: ignore[attr-defined]
        out, _, outcome, _ = collector.done()
        assert outcome == "timeout" and "after" not in out
        assert sys.modules["imported_by_a_snippet"].whole
        assert collector.run("import imported_by_a_snippet; imported_by_a_snippet.part.whole")[0] == "True\n"

        # One that does not end is interrupted all the same, later.
        monkeypatch.setattr(job, "MAX_IMPORT_SECONDS", 1.0)
        (tmp_path / "never_imported.py").write_text(
            "import time\nprint('began', end='')\nwhile True: time.sleep(0.001)\n"
        )
        collector.send("decide", "import never_imported", at="now")
        assert collector.reply()[0] == "placed" and collector.reply()[0] == "output"
        end_by_deadline(collector)
        while (ended := collector.reply())[7]:
            pass
        assert ended[2] == "timeout"
    finally:
        sys.modules.pop("imported_by_a_snippet", None)
        sys.modules.pop("imported_by_a_snippet.part", None)
        if hasattr(sys, "go_on_for_test"):
            del sys.go_on_for_test


@pytest.mark.parametrize("code", ["1 + 1", "while True: pass", SWALLOWS])
def test_no_interrupt_is_left_behind(code: str) -> None:
    # In a process of its own: a thread that CPython 3.11 profiles would spin for ever on a flag that was left up.
    script = f"""
import faulthandler, sys, threading
faulthandler.dump_traceback_later(30, exit=True)
from probe_agent.eval.snippet import SnippetExecution, parse
code = {code!r}
execution = SnippetExecution(code, "<snippet>", parse(code, "<snippet>"))
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
            print("training\n", end="")
            printed.set()
            time.sleep(0.001)

    thread = threading.Thread(target=training)
    thread.start()
    code = "import threading, time\nfor _ in range(20): print('mine'); time.sleep(0.002)\n" \
        "t = threading.Thread(target=print, args=('of a thread of it\\n',), kwargs={'end': ''}); t.start(); t.join()"  # fmt: skip
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


def test_logging_of_training_goes_on(collector: Collector) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("t").addHandler(handler)
    collector.run("import logging; logging.getLogger('t').warning('seen')")
    assert stream.getvalue() == "seen\n"
