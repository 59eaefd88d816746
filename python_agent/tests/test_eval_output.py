"""Streams of training while snippets begin and end beside it."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import threading
import weakref

import pytest
from probe_agent.eval.output import OutputSender, captured


def outlet() -> OutputSender:
    return OutputSender(lambda stderr, piece: None, 1 << 20, lambda: None)


def test_all_output_after_the_limit_is_counted() -> None:
    sent: list[bytes] = []
    over = OutputSender(lambda stderr, piece: sent.append(piece), 100, lambda: None)
    for _ in range(3):
        over.text(False, "x" * 60)
    assert b"".join(sent) == b"x" * 100 and over.left_out == 80


def test_a_snippet_that_ends_while_training_prints_leaves_the_stream_it_prints_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CPython's print() holds no reference to sys.stdout, and writes its pieces one after the other."""
    snippet = captured(outlet(), lambda said: None)
    there = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if text == "first":
                stand_in = weakref.ref(sys.stdout)
                snippet.__exit__(None, None, None)
                gc.collect()
                there.append(stand_in() is not None)
            return super().write(text)

    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    beginning = threading.Thread(target=snippet.__enter__)
    beginning.start()
    beginning.join()
    assert sys.stdout is not stream
    print("first", "second")
    assert there == [True] and sys.stdout is stream
    assert stream.getvalue() == "first second\n"


def test_a_snippet_has_no_input_and_closes_none_of_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, read = io.StringIO("for training\n"), []
    monkeypatch.setattr(sys, "stdin", stream)
    with captured(outlet(), lambda said: None):
        snippets = sys.stdin
        with pytest.raises(EOFError):
            input()
        with pytest.raises(SystemExit):
            exit()
        assert (sys.stdin.read(), list(sys.stdin), sys.stdin.isatty()) == ("", [], False)
        training = threading.Thread(target=lambda: read.append(sys.stdin.readline()))
        training.start()
        training.join()
    assert read == ["for training\n"] and sys.stdin is stream and not stream.closed
    assert snippets.readline() == "" and snippets.seek(0) == 0 and snippets.readline() == "for training\n"


def test_stand_ins_are_used_again_unless_somebody_keeps_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    seen, kept = set(), []
    for number in range(40):
        with captured(outlet(), lambda said: None):
            seen.add(id(sys.stdout))
            if number == 20:
                kept.append(sys.stdout)
    assert len(seen) < 10
    with captured(outlet(), lambda said: None):
        assert sys.stdout is not kept[0]
        kept[0].write("kept\n")
    assert stream.getvalue() == "kept\n"


def test_a_stream_that_training_puts_back_after_a_snippet_is_not_stood_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training writes elsewhere for a while, from within one snippet's time on: it puts back the stream from before."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    for _ in range(sys.getrecursionlimit()):
        with captured(outlet(), lambda said: None):
            elsewhere = contextlib.redirect_stdout(io.StringIO())
            elsewhere.__enter__()
        elsewhere.__exit__(None, None, None)
    print("here")
    assert stream.getvalue() == "here\n"
    with captured(outlet(), lambda said: None):
        pass
    assert sys.stdout is stream


def test_what_stood_for_one_stream_never_stands_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may be about to write to it."""
    seen: dict[str, set[int]] = {"stdout": set(), "stderr": set()}
    kept = []
    for number in range(20):
        with captured(outlet(), lambda said: None):
            for name, ids in seen.items():
                ids.add(id(getattr(sys, name)))
            if number == 5:
                kept.append(sys.stdout)
    assert not seen["stdout"] & seen["stderr"]
