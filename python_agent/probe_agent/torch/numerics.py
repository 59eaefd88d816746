"""Records numbers of a step that torch computes anyway: the norm of the gradients that ``clip_grad_norm_`` returns, and whether
``GradScaler`` skipped the step. They are rows of ``python.metrics``. This waits for no device: a norm on a device is NULL."""

from __future__ import annotations

import functools
from typing import Any

from probe_agent import _native
from probe_agent.torch import optimizer
from probe_agent.torch.layers import skipped_by_dynamo

#: Names of the metrics. The program's own metrics do not have this prefix.
NORM = "torch.clip_grad_norm_"
SKIPPED = "torch.amp.skipped_step"

_originals: list[tuple[Any, str, Any, Any]] = []


def use_wrappers() -> None:
    """Wrap both functions in the namespaces that programs import them from."""
    import torch
    from torch.amp import grad_scaler
    from torch.nn import utils
    from torch.nn.utils import clip_grad

    if _originals:
        return
    clip, plain, log = clip_grad.clip_grad_norm_, torch.Tensor, _native.log_metrics
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(clip)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return clip(*args, **kwargs)
        norm = clip(*args, **kwargs)
        # Reading a value of another class may need a collective.
        if type(norm) is plain:
            log({NORM: norm})
        return norm

    scaled = grad_scaler.GradScaler.step

    @functools.wraps(scaled)
    def step(self: Any, scaled_optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return scaled(self, scaled_optimizer, *args, **kwargs)
        before = optimizer.steps_begun()
        done = scaled(self, scaled_optimizer, *args, **kwargs)
        # An optimizer that scales by itself decides on the device, and steps in any case.
        if before is not None and self._enabled and not getattr(scaled_optimizer, "_step_supports_amp_scaling", False):
            log({SKIPPED: optimizer.steps_begun() == before})
        return done

    for namespaces, name, original, ours in (
        ((clip_grad, utils), "clip_grad_norm_", clip, clip_grad_norm_),
        ((grad_scaler.GradScaler,), "step", scaled, step),
    ):
        skipped_by_dynamo(ours)
        for namespace in namespaces:
            if getattr(namespace, name, None) is original:
                setattr(namespace, name, ours)
                _originals.append((namespace, name, ours, original))


def remove() -> None:
    """Put the functions back."""
    while _originals:
        namespace, name, ours, original = _originals.pop()
        if getattr(namespace, name, None) is ours:
            setattr(namespace, name, original)
