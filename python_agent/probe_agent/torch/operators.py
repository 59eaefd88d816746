"""Records copies of tensors, and the points where the host reads a tensor's values, in a few of the steps."""

from __future__ import annotations

import os
import sysconfig
from typing import Any

import probe_agent
from probe_agent import _native
from probe_agent.torch import autograd, synchronize

_ready = False


def use_copies(explicit: bool) -> None:
    """Record copies by the RecordFunction callback of operators."""
    _require(explicit)
    _native.use_operators(True, None, _libraries())


def use_sync_points(explicit: bool) -> None:
    """Record reads of tensors by the RecordFunction callback of operators, and waits for devices."""
    _require(explicit)
    _native.use_operators(None, True, _libraries())
    synchronize.patch()


def remove() -> None:
    """Take the callback out, and the patches."""
    global _ready
    _ready = False
    synchronize.remove()
    _native.use_operators(False, False, None)


def _require(explicit: bool) -> None:
    """Prepare the callback: calibration finds its inputs by copies between tensors whose addresses are known."""
    global _ready
    import torch

    autograd.require_record_function(explicit)
    if _ready:
        return
    with torch.inference_mode(False), torch.no_grad():
        # Every other source has gaps, so that calibration sees contiguous tensors and others.
        like: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
        pairs = [(torch.zeros(2 + n, **like), torch.ones(2 + n, 1 + n % 2, **like)[:, 0]) for n in range(4)]

        def copy(index: int) -> tuple[int, int, int, bool]:
            to, source = pairs[index]
            to.copy_(source)
            return to._cdata, source._cdata, source.numel() * source.element_size(), source.is_contiguous()

        mode = _native.begin_self_test()
        try:
            _native.calibrate_operators(copy)
        finally:
            _native.end_self_test(mode)
    _ready = True


def _libraries() -> list[str]:
    """The directories of files that are not the program's own."""
    import torch

    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if paths.get(name)}
    found |= {os.path.dirname(module.__file__) for module in (torch, probe_agent) if module.__file__}
    return sorted(os.path.join(path, "") for path in found)
