"""Device time of modules, backward and optimizers, by CUDA events that native code records beside its own records.

Nothing is recorded before the program has initialised CUDA, nor where there is none, nor on ROCm.
"""

from __future__ import annotations

from probe_agent import _native


def use_cuda_events(explicit: bool) -> None:
    """Record events as soon as CUDA is in use."""
    _native.use_device_events(True)


def remove() -> None:
    """Record none."""
    _native.use_device_events(False)
