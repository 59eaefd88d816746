"""Uncaught exceptions, and hooks of the program's own, which must not notice the agent's."""

from __future__ import annotations

import _thread
import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from recording_support import Net, Recorder, in_process
from torch import nn

torch.set_num_threads(1)

#: `threading.__excepthook__`, which Python 3.9 lacks.
THREADS_HOOK = _thread._excepthook


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    import probe_agent.torch as agent

    # pytest has hooks of its own.
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(threading, "excepthook", THREADS_HOOK)
    agent.install()
    yield Recorder()
    agent.uninstall()
    assert sys.excepthook is sys.__excepthook__ and threading.excepthook is THREADS_HOOK


class Failing(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


class Model(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Net(), Failing(error)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](x)


def in_a_thread(function: Any, name: str = "worker") -> None:
    thread = threading.Thread(target=function, name=name)
    thread.start()
    thread.join()


def test_an_exception_in_a_thread_is_recorded_and_printed_as_before(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        Model(KeyError("x"))(torch.ones(2, 32))

    for _ in range(2):  # Twice: the second one may have the first one's address.
        in_a_thread(fail)
    rows = recorder.take()["python.exceptions"]
    assert [(row["exception"], row["message"], row["uncaught"], row["main"]) for row in rows] == [
        ("KeyError", "'x'", True, False)
    ] * 2
    assert [(row["module"], row["stage"], row["thread_name"]) for row in rows] == [
        ("layers.1", "forward", "worker")
    ] * 2
    assert rows[0]["function"] == "forward" and rows[0]["file"] == __file__
    assert rows[0]["traceback"].startswith("Traceback") and not rows[0]["out_of_memory"] and rows[0]["memory"] is None
    printed = capsys.readouterr().err
    assert printed.count("Exception in thread worker") == 2 and "probe_agent" not in printed
    # SystemExit in a thread is no uncaught exception.
    in_a_thread(sys.exit)
    assert recorder.take()["python.exceptions"] == []


def test_the_programs_own_hooks_are_called_once_with_what_was_raised(recorder: Recorder) -> None:
    from probe_agent.torch import exceptions

    called: list[Any] = []
    ours = threading.excepthook

    def own(arguments: Any) -> None:
        called.append((arguments.exc_type, arguments.exc_value, arguments.exc_traceback, arguments.thread))
        ours(arguments)  # Programs that install their hook later do this.

    threading.excepthook = own
    exceptions.stand_first()
    error = ValueError("y")

    def fail() -> None:
        raise error

    in_a_thread(fail)
    ((kind, value, traceback, thread),) = called
    assert kind is ValueError and value is error and traceback is error.__traceback__ and thread.name == "worker"
    assert [row["message"] for row in recorder.take()["python.exceptions"]] == ["y"]

    before = sys.excepthook
    sys.excepthook = lambda *arguments: called.append(arguments)
    exceptions.stand_first()
    sys.excepthook(ValueError, error, error.__traceback__)
    assert called[1] == (ValueError, error, error.__traceback__)
    (row,) = recorder.take()["python.exceptions"]
    assert (row["message"], row["uncaught"], row["main"]) == ("y", True, True)
    sys.excepthook, threading.excepthook = before, ours


def test_memory_that_runs_out_is_recorded_although_it_is_caught(recorder: Recorder) -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), RuntimeError("a bug"), KeyError("z")):
        with pytest.raises(type(error)) as caught:
            Model(error)(torch.ones(2, 32))
        assert caught.value is error
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        nn.Identity()(torch.empty(1 << 55, dtype=torch.uint8))  # Not within a module.
    rows = recorder.take()["python.exceptions"]
    names = [row["exception"] for row in rows]
    assert names == ["torch.OutOfMemoryError", "MemoryError"]
    for row in rows:
        assert (row["uncaught"], row["out_of_memory"], row["module"], row["stage"]) == (
            False,
            True,
            "layers.1",
            "forward",
        )
        assert "VmRSS: " in row["memory"] and "MemAvailable: " in row["memory"]
        assert "raise self.error" in row["traceback"]


def test_texts_are_bounded_and_odd_exceptions_harm_nobody(recorder: Recorder) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("ü" * 10_000)
        (deep if levels % 2 else lambda levels: deep(levels))(levels - 1)

    def odd() -> None:
        raise Odd

    in_a_thread(lambda: deep(300))
    in_a_thread(odd)
    first, second = recorder.take()["python.exceptions"]
    assert 4000 < len(first["message"].encode()) <= 4096
    assert 16_000 < len(first["traceback"].encode()) <= 16_384
    assert first["traceback"].startswith("Traceback") and first["traceback"].rstrip().endswith("ü")
    assert second["exception"].endswith("Odd") and second["message"] == "(it can't be shown: RuntimeError)"


def many() -> dict[str, int]:
    import probe_agent.torch as agent
    from probe_agent import _native

    def fail() -> None:
        raise ValueError

    threading.excepthook = lambda arguments: None  # Prints nothing.
    agent.install()
    for _ in range(300):
        in_a_thread(fail)
    rows = _native.take_rows()
    dropped = rows["probe.drops"][("python.exceptions", "too many exceptions")]
    return {"kept": len(rows["python.exceptions"]), "dropped": dropped}


def test_one_that_comes_again_and_again_is_counted() -> None:
    assert in_process(many) == {"kept": 256, "dropped": 44}


def switched_off() -> dict[str, Any]:
    import probe_agent.torch as agent
    from probe_agent import _native

    before = sys.excepthook, threading.excepthook  # On an older Python pytest's exceptiongroup has its own there.
    agent.install()
    in_a_thread(lambda: [][1])
    own = (sys.excepthook, threading.excepthook) == before
    return {"own": own, "rows": len(_native.take_rows()["python.exceptions"]), "layer": _native.layers()["exceptions"]}


def test_a_layer_that_is_off_leaves_everything_alone() -> None:
    assert in_process(switched_off, "-exceptions") == {"own": True, "rows": 0, "layer": "off"}


def test_a_failed_step_s_tensors_can_be_freed(recorder: Recorder) -> None:
    """As by a program that clears the frames of an error, which it keeps, and tries a smaller batch."""
    activations: list[Any] = []

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.inner = nn.Linear(4, 4), Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(x)
            activations.append(weakref.ref(x))
            result: torch.Tensor = self.inner(x)
            return result

    kept = []
    try:
        Outer()(torch.ones(1, 4))
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)
        kept.append(error)
    gc.collect()
    assert [row["module"] for row in recorder.take()["python.exceptions"]] == ["inner"]
    assert [activation() for activation in activations] == [None]


def names_of_hooks() -> list[str]:
    import probe_agent.torch as agent

    def own(kind: Any, value: Any, trace: Any) -> None:
        """The program's."""

    sys.excepthook = own
    agent.install()
    return [sys.excepthook.__name__, str(sys.excepthook.__doc__), threading.excepthook.__name__]


def test_hooks_have_the_names_of_those_from_before() -> None:
    assert in_process(names_of_hooks) == ["own", "The program's.", THREADS_HOOK.__name__]
