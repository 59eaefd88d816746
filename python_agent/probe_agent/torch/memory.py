"""Samples torch's allocators at the end of each optimizer step, and at modules in a few of the steps. The background thread
measures the host's memory.

This never initialises CUDA: before training does, there is nothing to sample.
"""

from __future__ import annotations

from typing import Any

from probe_agent import _native, signals
from probe_agent.torch import hook_tables

#: Steps between two checks which devices are in use.
_CHECK_EVERY = 64

_handle: Any = None
_statistics: Any = None
_cuda: dict[str, Any] = {}
_is_compiling: Any = None
_devices: list[int] = []
_samples = 0


def use_statistics(explicit: bool) -> None:
    """Ask the caching allocators once a step, and have the background thread measure the host's memory."""
    global _handle, _statistics, _cuda, _is_compiling, _samples
    import torch

    _native.use_sampling("memory", True)
    _samples = 0
    _statistics = getattr(torch._C, "_cuda_memoryStats", None)
    if _statistics is not None and torch.version.cuda is not None:
        _cuda, _is_compiling = torch.cuda.__dict__, torch.compiler.is_compiling
        _handle = hook_tables.after_steps(_after_step)
        _native.watch_module_memory(_statistics, getattr(torch._C, "_cuda_getDevice", None), _cuda)


def remove() -> None:
    """Stop sampling."""
    global _handle
    _native.use_sampling("memory", False)
    _native.watch_module_memory(None, None, None)
    if _handle is not None:
        _handle.remove()
        _handle = None


def leave_devices_out() -> None:
    """Ask no allocator of a device any more; the host's memory is still measured."""
    global _statistics
    _statistics = None
    _native.watch_module_memory(None, None, None)


def sample() -> None:
    """Record the allocators' statistics of the devices in use. Never raises."""
    global _samples, _devices, _statistics
    if _handle is None or _statistics is None or not _cuda.get("_initialized"):
        return
    try:
        if _samples % _CHECK_EVERY == 0:
            _devices = [device for device in range(_cuda["device_count"]()) if _holds(_statistics(device))]
        _samples += 1
        for device in _devices:
            _native.memory_sample(device, _statistics(device))
    except Exception as error:
        if signals.is_of_the_program(error):
            raise
        _statistics = None
        _native.set_problem(f"memory: the allocator can't be asked: {error!r}")


def _holds(statistics: dict[str, Any]) -> bool:
    return bool(statistics) and statistics["reserved_bytes"]["all"]["peak"] > 0


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    # A forked child must not ask the allocator of its parent's device.
    if not _is_compiling() and _native.is_enabled():
        sample()
