"""Measures the device time of modules, backward and optimizers, by CUDA events that native code records with its own records.

Nothing is recorded before the program has initialised CUDA, without CUDA, or on ROCm.
"""

from __future__ import annotations

from probe_agent import _native


def use_cuda_events(explicit: bool) -> None:
    """Record events as soon as CUDA is in use."""
    _native.use_device_events(True)


def remove() -> None:
    """Record no events any more."""
    _native.use_device_events(False)
