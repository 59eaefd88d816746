"""Captures CUDA's caching allocator: a snapshot, with the history of allocations in the steps before it."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from probe_agent.capture.takeover import ProgramsOwn, TakeoverWatch

# Events that a history keeps. torch takes some KB of host memory for each, and overwrites the oldest.
_MAX_EVENTS = 1 << 18
#: The key of the steps in a snapshot: number, begin and end (nanoseconds from 1970). `crates/import` reads it.
STEPS = "probe_agent.steps"
_NO_STACKS = "the history has no stacks: to name their lines, torch would import torch.compile in this process, which takes seconds"
_IS_ON = "the program's own memory history is on"


def is_there() -> bool:
    """Whether this process has a caching allocator: CUDA, or ROCm, was initialized."""
    import torch

    return bool(torch.cuda.is_initialized())


def why_not(settings: dict[str, Any]) -> str | None:
    """Why a snapshot can't be taken, or a history recorded; None where it can."""
    import torch

    memory = torch.cuda.memory
    if not hasattr(memory, "_snapshot"):
        return "this torch takes no snapshots of its allocator"
    if not settings["history"]:
        return None
    if not hasattr(torch._C, "_cuda_isHistoryEnabled"):
        return "this torch does not say whether the program's own memory history is on"
    return _IS_ON if torch._C._cuda_isHistoryEnabled() else None


class MemorySession:
    """One snapshot, after some steps of history. It has the methods of the profiler's `Session`."""

    needs_warmup = False
    suffix = ".pickle"
    is_of_all_threads = True
    started_own = "the program used the memory history of its allocator itself"

    def __init__(self, settings: dict[str, Any]) -> None:
        self.steps: int = settings["history"]
        self.note: str | None = None
        self._max_bytes: int = settings["max_bytes"]
        self._boundaries: list[tuple[int, int, int]] = []
        self._began: tuple[int, int] | None = None
        self._snapshot: Any = None
        self._lock = threading.Lock()
        self._is_on = False
        self._taken_over: TakeoverWatch | None = None

    def prepare(self) -> None:
        """Does nothing: there is nothing to prepare."""

    def start(self, when_program_records: Callable[[], None]) -> None:
        """Switches the history on, if one is wanted. `when_program_records` is called right before the program starts its own."""
        if not self.steps:
            return
        import torch

        memory = torch.cuda.memory
        with self._lock:
            if torch._C._cuda_isHistoryEnabled():
                raise ProgramsOwn(_IS_ON)
            self._is_on = True
            # If a snapshot has frames, torch looks up `torch._inductor` to name their lines, which imports it.
            context = "all" if "_inductor" in vars(torch) else None
            self.note = _NO_STACKS if context is None else None
            memory._record_memory_history("all", context=context, stacks="python", max_entries=_MAX_EVENTS)
        self._taken_over = TakeoverWatch(memory, ("_record_memory_history",), when_program_records)

    def begin_step(self, number: int) -> None:
        """Notes that the step with this number begins."""
        self._began = (number, time.time_ns())

    def end_step(self) -> None:
        """Notes that the step ends."""
        began, self._began = self._began, None
        if began is not None:
            self._boundaries.append((*began, time.time_ns()))

    def may_stop(self) -> bool:
        """Whether the capture may stop now: always."""
        return True

    def stop(self, is_wanted: bool) -> None:
        """Takes the snapshot if it is wanted, and switches the history off, whatever fails."""
        if self._taken_over is not None:
            self._taken_over.put_back()
        self.end_step()
        try:
            if is_wanted:
                import torch

                self._snapshot = torch.cuda.memory._snapshot()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Switches the history off. Any thread may call this, any number of times."""
        with self._lock:
            is_on, self._is_on = self._is_on, False
            if is_on:
                import torch

                original = self._taken_over.original("_record_memory_history") if self._taken_over is not None else None
                (original or torch.cuda.memory._record_memory_history)(None)

    def save(self, path: str) -> None:
        """Writes the snapshot, as torch does, with the steps of its history."""
        snapshot, self._snapshot = self._snapshot, None
        kept = max((len(trace) for trace in snapshot.get("device_traces", ())), default=0)
        if self.steps and kept >= _MAX_EVENTS:
            few = f"the history of its steps has the last {_MAX_EVENTS} events of a device only"
            self.note = few if self.note is None else f"{few}; {self.note}"
        with open(path, "wb") as file:
            pickle.dump({**snapshot, STEPS: self._boundaries}, _Bounded(file, self._max_bytes), protocol=4)


class _Bounded:
    """A file of limited size; a write beyond it raises ValueError."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._limit, self._remaining = file, limit, limit

    def write(self, data: Any) -> int:
        self._remaining -= memoryview(data).nbytes
        if self._remaining < 0:
            raise ValueError(f"the snapshot takes more than {self._limit} bytes (--max-bytes)")
        return self._file.write(data)
