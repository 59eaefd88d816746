"""Runs torch.profiler for some steps in the thread that trains, with ranges for steps and modules, and writes the trace."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from probe_agent.capture import memory
from probe_agent.capture.takeover import ProgramsOwn, TakeoverWatch

#: The prefix of the ranges of modules in a trace, before the module's name. `crates/import` reads it.
MODULE = "probe_agent.module: "
# Functions that torch calls before it starts a profiler.
_STARTS = ("_prepare_profiler", "_enable_profiler")
_IS_RUNNING = "the program's own profiler is running"
_NO_ALLOCATOR = (
    "there is no CUDA allocator in this process: the profiler's memory events of {} steps were recorded instead"
)


def why_not(settings: dict[str, Any]) -> str | None:
    """Why a capture can't be made in this process; None where it can."""
    if "torch" not in sys.modules:
        return "torch is not imported"
    is_snapshot = settings["snapshot"] and memory.is_there()
    return (memory.why_not(settings) if is_snapshot else _why_no_profile()) or _why_no_file(settings)


def make(settings: dict[str, Any], native: Any) -> Session | memory.MemorySession:
    """The session for a capture's settings. Called on the thread that trains."""
    if settings["snapshot"] and memory.is_there():
        return memory.MemorySession(settings)
    return Session(settings, native)


def _why_no_profile() -> str | None:
    """Why the profiler can't be started; None where it can."""
    import torch.profiler

    if not torch.profiler.kineto_available():
        return "this torch was built without Kineto"
    if _is_on():
        return _IS_RUNNING
    from probe_agent import _native

    if not _native.sees_ranges():
        # An open range that outlives the profiler makes torch write to freed memory.
        return (
            "the agent does not see the program's ranges (record_function) here, and can't end them with the profiler"
        )
    return None


def _why_no_file(settings: dict[str, Any]) -> str | None:
    """Why a recorded trace can't be written; None where it can."""
    directory = settings["directory"]
    if not os.path.isdir(directory) or not os.access(directory, os.W_OK):
        return f"it can't write to {directory}, where its collector reads: it is on another machine, or in a container"
    if shutil.disk_usage(directory).free < settings["max_bytes"]:
        return f"{directory} has less free space than the trace may take ({settings['max_bytes']} bytes)"
    return None


def _is_on() -> bool:
    from torch.autograd import profiler

    return bool(getattr(profiler, "_is_profiler_enabled", False)) or _is_on_here()


def _is_on_here() -> bool:
    """Whether the calling thread is profiled."""
    import torch

    return bool(torch._C._autograd._profiler_enabled())


def _program_profiles() -> ProgramsOwn:
    return ProgramsOwn(_IS_RUNNING)


class Session:
    """One run of the profiler. Everything is called on the thread that trains."""

    suffix = ".json"
    is_of_all_threads = False
    started_own = "the program started its own profiler"

    def __init__(self, settings: dict[str, Any], native: Any) -> None:
        import torch
        from torch.profiler import ProfilerActivity, _KinetoProfile

        if _is_on():
            raise _program_profiles()
        wanted = set(settings["with"])
        #: Steps to record, and a note for the person who asked.
        self.steps: int = settings["steps"]
        self.note: str | None = None
        if settings["snapshot"]:
            wanted.add("memory")
            self.steps = settings["history"] or self.steps
            self.note = _NO_ALLOCATOR.format(self.steps)
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        #: Device activities are missing, or late, right after the profiler has been switched on for a device.
        self.needs_warmup = len(activities) > 1
        self._native = native
        self._modules = "modules" in wanted
        self._profile = _KinetoProfile(
            activities=activities,
            record_shapes="shapes" in wanted or "flops" in wanted,
            profile_memory="memory" in wanted,
            with_stack="stacks" in wanted,
            with_flops="flops" in wanted,
        )
        self._is_prepared = False
        #: Whether the profiler that runs in this thread is this session's.
        self._is_ours = False
        self._step: Any = None
        #: Ranges of the modules whose calls are open.
        self._open: list[_ModuleRange] = []
        self._taken_over: TakeoverWatch | None = None

    def prepare(self) -> None:
        """Prepares the profiler, which takes a while the first time."""
        import torch
        from torch.autograd import profiler

        profile = self._profile
        if "_inductor" in vars(torch):
            profile.prepare_trace()
        else:
            # `prepare_trace` looks up `torch._inductor`, and torch then imports all of torch.compile, which takes seconds. This does
            # what else it does.
            profile.profiler = profiler.profile(
                use_cpu=True,
                use_device="cuda" if self.needs_warmup else None,
                record_shapes=profile.record_shapes,
                with_flops=profile.with_flops,
                profile_memory=profile.profile_memory,
                with_stack=profile.with_stack,
                use_kineto=True,
            )
            profile.profiler._prepare_trace()
        self._is_prepared = True

    def start(self, when_program_profiles: Callable[[], None]) -> None:
        """Starts the profiler. `when_program_profiles` is called right before the program starts a profiler of its own."""
        self._is_prepared = False
        if _is_on():
            raise _program_profiles()
        # Ranges that began under a profiler of the program's that has ended.
        self._native.end_ranges()
        self._is_ours = True
        self._profile.start_trace()
        from torch.autograd import profiler

        self._taken_over = TakeoverWatch(profiler, _STARTS, when_program_profiles)
        if self._modules:
            self._native.set_module_ranges(_module_ranges(self._open))

    def begin_step(self, number: int) -> None:
        """Begins the range of the step with this number."""
        from torch.autograd.profiler import record_function

        self._step = record_function(f"ProfilerStep#{number}")
        self._step.__enter__()

    def end_step(self) -> None:
        """Ends the range of the step."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def may_stop(self) -> bool:
        """Whether the profiler may stop: no collective of the capture is pending, whose end writes to the profiler's memory."""
        return not self._native.is_collective_profiled()

    def abandon(self) -> None:
        """Does nothing: torch's profiler can be stopped on its own thread only."""

    def stop(self, is_wanted: bool) -> None:
        """Stops the profiler, whatever fails."""
        self._native.set_module_ranges(None)
        if self._taken_over is not None:
            self._taken_over.put_back()
        try:
            while self._open:
                self._open[-1].__exit__()
            self.end_step()
        finally:
            self._native.end_ranges()
            self._stop_profiler()

    def _stop_profiler(self) -> None:
        try:
            if self._is_prepared and not _is_on():
                # A prepared profiler can only be dropped by starting and stopping it.
                self._is_ours = True
                self._profile.start_trace()
            if self._is_ours and _is_on_here():
                self._profile.stop_trace()
        finally:
            if self._is_ours and _is_on_here():
                import torch
                from torch.autograd import profiler

                torch._C._autograd._disable_profiler()
                profiler._run_on_profiler_stop()

    def save(self, path: str) -> None:
        """Writes the trace in torch's format."""
        self._profile.export_chrome_trace(path)


class _ModuleRange:
    """A range around the call of a module, which ends with the call, or with the profiler if that is earlier."""

    __slots__ = ("_open", "_range")

    def __init__(self, range_: Any, open_: list[_ModuleRange]) -> None:
        self._range, self._open = range_, open_
        range_.__enter__()
        open_.append(self)

    def __exit__(self, *_: object) -> None:
        range_, self._range = self._range, None
        if range_ is not None:
            self._open.remove(self)
            range_.__exit__(None, None, None)


def _module_ranges(open_: list[_ModuleRange]) -> Callable[[Any], Any]:
    """A function that begins a range of the profiler for the call of a module on the present thread."""
    from torch._C._profiler import _RecordFunctionFast

    from probe_agent.torch import modules

    names: dict[int, tuple[weakref.ref[Any], str]] = {}
    thread = threading.get_ident()

    def begin(module: Any) -> _ModuleRange | None:
        if threading.get_ident() != thread:
            return None
        known = names.get(id(module))
        if known is not None and known[0]() is module:
            name = known[1]
        else:
            name = MODULE + modules.shown_name(module)
            try:
                names[id(module)] = (weakref.ref(module), name)
            except TypeError:  # A class without weak references.
                pass
        return _ModuleRange(_RecordFunctionFast(name), open_)

    return begin
