"""Snapshots and history of CUDA's allocator: off again whatever fails, within bounds. A stand-in replaces the allocator."""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from probe_agent.capture import memory
from probe_agent.capture.takeover import ProgramsOwn


class Allocator:
    """A stand-in for the parts of torch.cuda.memory that captures use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on = False
        self.fails = False
        self.events: list[dict[str, Any]] = []
        self.context: object = None
        monkeypatch.setattr(torch, "_inductor", types.ModuleType("torch._inductor"), raising=False)
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: self.is_on, raising=False)
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self.record)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", self.snapshot)

    def record(self, enabled: str | None = "all", **settings: Any) -> None:
        self.is_on, self.context = enabled is not None, settings.get("context")

    def snapshot(self) -> dict[str, Any]:
        if self.fails:
            raise RuntimeError("no snapshot")
        return {"segments": [], "device_traces": [self.events]}


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    return Allocator(monkeypatch)


def settings(history: int = 2, max_bytes: int = 1 << 20) -> dict[str, Any]:
    return {"history": history, "max_bytes": max_bytes}


def nothing() -> None:
    pass


def test_a_history_is_off_whatever_fails(allocator: Allocator) -> None:
    for fails, is_wanted in ((False, True), (False, False), (True, True)):
        session = memory.MemorySession(settings())
        allocator.fails = fails
        session.start(nothing)
        assert allocator.is_on and torch.cuda.memory._record_memory_history != allocator.record
        session.begin_step(7)
        if fails:
            with pytest.raises(RuntimeError, match="no snapshot"):
                session.stop(is_wanted)
        else:
            session.stop(is_wanted)
        assert not allocator.is_on and torch.cuda.memory._record_memory_history == allocator.record


def test_a_history_has_stacks_where_naming_their_lines_imports_nothing(
    allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_compiling in (True, False):
        if not is_compiling:
            monkeypatch.delattr(torch, "_inductor")
        session = memory.MemorySession(settings())
        session.start(nothing)
        assert allocator.context == ("all" if is_compiling else None)
        session.stop(True)
        session.save(str(tmp_path / "snapshot.pickle"))
        assert (session.note is None) == is_compiling
    assert "has no stacks" in str(session.note)


def test_the_program_s_own_history_is_left_alone(allocator: Allocator) -> None:
    allocator.is_on = True
    assert memory.why_not(settings()) == "the program's own memory history is on"
    assert memory.why_not(settings(history=0)) is None
    session = memory.MemorySession(settings())
    with pytest.raises(ProgramsOwn, match="own memory history"):
        session.start(nothing)
    session.stop(False)
    assert allocator.is_on
    # The program's history begins while ours is on: ours ends before that, and its end does not end the program's.
    allocator.is_on = False
    session = memory.MemorySession(settings())
    session.start(session.abandon)
    torch.cuda.memory._record_memory_history()
    session.stop(False)
    assert allocator.is_on


def test_a_snapshot_is_plain_data_with_its_steps_and_within_its_bytes(
    allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "snapshot.pickle"
    monkeypatch.setattr(memory, "_MAX_EVENTS", 3)
    allocator.events = [{"action": "alloc", "size": 1}] * 3
    session = memory.MemorySession(settings())
    session.start(nothing)
    for number in (4, 5):
        session.begin_step(number)
        session.end_step()
    session.stop(True)
    session.save(str(path))
    assert session.note == "the history of its steps has the last 3 events of a device only"
    read = pickle.loads(path.read_bytes())
    assert read["device_traces"] == [allocator.events]
    assert [(number, begin <= end) for number, begin, end in read[memory.STEPS]] == [(4, True), (5, True)]
    session = memory.MemorySession(settings(history=0, max_bytes=20))
    session.stop(True)
    with pytest.raises(ValueError, match="more than 20 bytes"):
        session.save(str(path))
