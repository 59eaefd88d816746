"""Snippets and training that do not stop: the answers to the command, and the rows of `probe.evals` meanwhile."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Iterator

import pytest

from conftest import PATIENCE, SCRIPTS, Home, Run, wait_for


@pytest.fixture(scope="module")
def stubborn_training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, pathlib.Path]]:
    home, wishes = Home(tmp_path_factory.mktemp("home")), tmp_path_factory.mktemp("wishes")
    run = home.train("python", str(SCRIPTS / "stubborn.py"), str(wishes))
    try:
        run.wait_for_step(3)
        yield run, wishes
        (wishes / "end").touch()
        run.finish()
    finally:
        home.close()


def rows_of(run: Run, code: str) -> list[dict]:
    return run.query(f"SELECT status, duration, error FROM probe.evals WHERE code = '{code}' ORDER BY id DESC LIMIT 1")


def let_go(fifo: pathlib.Path) -> None:
    """Ends the read of a FIFO in a process that holds it open itself."""
    descriptor = os.open(fifo, os.O_RDWR)
    os.write(descriptor, b"x")
    os.close(descriptor)


@pytest.mark.parametrize("library", ["CDLL", "PyDLL"])
def test_a_call_that_cannot_be_stopped_is_running_until_it_ends(
    stubborn_training: tuple[Run, pathlib.Path], tmp_path: pathlib.Path, library: str
) -> None:
    """CDLL releases the GIL, so the agent reports that the call still runs. PyDLL keeps it, and the agent cannot report."""
    run, _ = stubborn_training
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = (
        f'import ctypes, os; fifo = os.open("{fifo}", os.O_RDWR)\n'
        f"ctypes.{library}(None).read(fifo, ctypes.create_string_buffer(1), 1); os.close(fifo)"
    )
    try:
        done = run.eval(code, "--at", "now", "--timeout", "4s")
        answered = time.monotonic()
        assert done.returncode == 5, done.stderr
        assert "still" in done.stderr and "running" in done.stderr and "stack" in done.stderr, done.stderr
        (row,) = rows_of(run, code)
        assert (row["status"], row["duration"]) == ("running", None), row
    finally:
        over = time.monotonic()
        let_go(fifo)
    wait_for("it to end", lambda: rows_of(run, code)[0]["status"] == "timeout")
    # All of it, and not only what it took until its deadline: it began before it was answered, and ended after it was let go.
    assert rows_of(run, code)[0]["duration"] >= over - answered
    # And the next one runs.
    assert run.eval("print(x.shape)").returncode == 0


def test_a_gil_that_cannot_be_had_is_said(stubborn_training: tuple[Run, pathlib.Path]) -> None:
    run, wishes = stubborn_training
    os.mkfifo(wishes / "gil")
    wait_for("the GIL to be kept", (wishes / "kept").exists)
    try:
        # Given up: it is taken back, and never runs.
        done = run.eval(f"open('{wishes}/given_up', 'w')", "--timeout", "4s")
        assert done.returncode == 5 and "no thread there gets the GIL" in done.stderr, done.stderr
        # Waited for: that is said meanwhile, and it runs as soon as it can.
        waits = run.home.spawn("probe", run.name, "eval", "print('at last')", "--timeout", "100s")
        said: pathlib.Path = waits.err_path  # type: ignore[attr-defined]
        wait_for("that to be said", lambda: "has held the GIL for 5 s" in said.read_text())
        assert waits.poll() is None
    finally:
        let_go(wishes / "kept")
    assert waits.wait(PATIENCE) == 0 and waits.out_path.read_text() == "at last\n"  # type: ignore[attr-defined]
    assert "stack shows where it is" in said.read_text()
    assert not (wishes / "given_up").exists()


def test_what_a_snippet_says_is_of_any_size_and_the_connection_stays(
    stubborn_training: tuple[Run, pathlib.Path],
) -> None:
    """More than a message may have: in one write, in an exception, and in what is no UTF-8."""
    run, _ = stubborn_training
    (before,) = run.query("SELECT pid, problem FROM probe.agents")
    done = run.eval("print('é' * 8_500_000)")
    assert (done.returncode, done.stdout) == (5, "é" * (8 << 20)), done.stderr[-1000:]
    assert "more than its limit of 16777216 bytes, and the last 222784 bytes are left out" in done.stderr
    done = run.eval("print('x' * 17_000_000)", "--max-output", "20M")
    assert (done.returncode, len(done.stdout)) == (0, 17_000_001), done.stderr[-1000:]
    for at in ("now", "step"):
        done = run.eval("raise ValueError('x' * 17_000_000 + chr(0xdc80))", "--at", at)
        assert done.returncode == 1 and "... (16990001 more characters)" in done.stderr, done.stderr[-1000:]
    done = run.eval("raise ValueError(chr(0xdc80))")
    assert done.returncode == 1 and "ValueError: \\udc80" in done.stderr, done.stderr
    done = run.eval("raise KeyboardInterrupt", "--at", "step")
    assert done.returncode == 1, done.stderr
    assert run.query("SELECT pid, problem FROM probe.agents") == [before] and "lost the collector" not in run.errors


def test_without_a_boundary_it_is_said_where_training_is(stubborn_training: tuple[Run, pathlib.Path]) -> None:
    run, wishes = stubborn_training
    (wishes / "sleep").touch()
    try:
        wait_for("training to stand", lambda: "stand" in frames(run))
        done = run.eval("print('ran')", "--at", "step", "--timeout", "4s")
    finally:
        (wishes / "sleep").unlink()
    assert (done.returncode, done.stdout) == (5, ""), done.stderr
    assert "stubborn.py:" in done.stderr and "in stand" in done.stderr and "hint: " in done.stderr


def frames(run: Run) -> str:
    done = run.home.probe(run.name, "eval", "--frames")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_frames_are_listed_and_one_is_asked(stubborn_training: tuple[Run, pathlib.Path]) -> None:
    run, wishes = stubborn_training
    (wishes / "sleep").touch()
    try:
        wait_for("training to stand", lambda: "stand" in frames(run))
        lines = frames(run).splitlines()
        assert lines[0].split() == ["frame", "function", "at", "names"]
        assert lines[1].split()[:2] == ["0", "<module>"] and "stubborn.py:" in lines[1]
        assert lines[2].split()[:2] == ["1", "stand"]
        wanted = "print('wish' in dir(), 'wanted' in dir())"
        assert run.eval(wanted, "--frame", "1").stdout == "False True\n"
        done = run.eval("print('ran')", "--frame", "9")
        assert (done.returncode, done.stdout) == (1, "")
        assert "the training thread has no frame 9, only 0 to " in done.stderr and "stand" in done.stderr
        console = run.home.probe("gpt", "console", stdin="\\frames\n\\frame 1\n>>> print('loss' in dir())\n")
        assert console.returncode == 0 and console.stdout.endswith("True\n"), console.stderr
        assert "stubborn.py:" in console.stdout
    finally:
        (wishes / "sleep").unlink()


def test_what_ends_a_process_is_said_to_have(home: Home, tmp_path: pathlib.Path) -> None:
    """os._exit can't be prevented; the command reports how the process ended."""
    run = home.train("python", str(SCRIPTS / "stubborn.py"), str(tmp_path))
    run.wait_for_step(3)
    done = run.eval("import os; os._exit(3)")
    assert done.returncode in (1, 3), done.stderr
    assert "gone" in done.stderr or "disconnected" in done.stderr, done.stderr
    assert run.process.wait(PATIENCE) == 3
