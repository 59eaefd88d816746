"""Records the backward pass: calls of ``backward()`` and ``grad()``, and the autograd nodes that they run."""

from __future__ import annotations

import functools
from typing import Any, Callable

from probe_agent import _native, signals
from probe_agent.torch import modules
from probe_agent.torch.layers import Unavailable

#: First and last release of torch (major, minor) on which the RecordFunction callback is used by default. The
#: tests have run on both and on some in between (tests/matrix.py); what native code assumes of torch's C++ is the
#: same in every release between them (tests/torch_layout.py).
VERIFIED = ((2, 5), (2, 15))

_original: Callable[..., Any] | None = None
_ours: Callable[..., Any] | None = None
_ready: bool | None = None
_users = {"nodes": False, "optimizers": False}


def use_record_function(explicit: bool) -> None:
    """Record autograd nodes by torch's RecordFunction callback."""
    require_record_function(explicit)
    _wrap_engine()
    _use(nodes=True)


def use_grad_hooks(explicit: bool) -> None:
    """Record modules by the moments at which their gradients become ready: public hooks, coarser times."""
    import torch

    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise Unavailable("this torch has no post-accumulate-grad hooks")
    _wrap_engine()
    modules.want_gradient_hooks()


def require_record_function(explicit: bool) -> None:
    """Prepare the RecordFunction callback. Raises Unavailable if it can't be used. ``explicit``: on any version of torch."""
    global _ready
    import torch

    if _ready:
        return
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    if not (VERIFIED[0] <= version <= VERIFIED[1] or explicit):
        raise Unavailable(f"not verified with torch {torch.__version__}")
    _native.find_record_function()
    with torch.inference_mode(False), torch.enable_grad():
        a = torch.ones(1, device="cpu", requires_grad=True)
        b = torch.ones(1, device="cpu")
        _native.calibrate_record_function(lambda: torch.mul(a, b))
    _native.add_record_function()
    mode = _native.begin_self_test()
    try:
        with torch.autograd.profiler.record_function("probe_agent.self_test"):
            pass
    finally:
        _, ranges = _native.end_self_test(mode)
    if ranges != 1:
        _native.remove_record_function()
        raise Unavailable("its callback is not called")
    _ready = True


def measure_costs() -> None:
    """Measure what recording an event costs here, in a few milliseconds. Draws no random number and makes no gradient."""
    import torch

    if not _ready:
        _native.measure_costs(None)
        return
    with torch.inference_mode(False), torch.enable_grad():
        a = torch.ones(1, device="cpu", requires_grad=True)
        b = torch.ones(1, device="cpu")
        mode = _native.begin_self_test()
        try:
            _native.measure_costs(lambda: torch.mul(a, b))
        finally:
            _native.end_self_test(mode)


def use_for_optimizers() -> None:
    """Let the callback record optimizer steps too."""
    _use(optimizers=True)


def remove() -> None:
    """Put the engine's entry back, and take the callback out."""
    global _original, _ours, _ready
    _use(nodes=False, optimizers=False)
    if _ready:
        _ready = None
        _native.remove_record_function()
    if _original is not None:
        from torch import autograd
        from torch.autograd import graph

        # If other code has wrapped ours since, ours stays, and passes calls through.
        for namespace in (autograd, graph):
            if getattr(namespace, "_engine_run_backward", None) is _ours:
                namespace._engine_run_backward = _original
        _original = _ours = None


def _use(**users: bool) -> None:
    _users.update(users)
    _native.use_record_function(_users["nodes"], _users["optimizers"])


def _wrap_engine() -> None:
    """Wrap the one function through which Python runs the engine, where torch.autograd looks it up."""
    global _original, _ours
    from torch import _guards, autograd
    from torch.autograd import graph

    if _original is not None:
        return
    found = getattr(graph, "_engine_run_backward", None)
    if found is None or getattr(autograd, "_engine_run_backward", None) is not found:
        raise Unavailable("this torch runs its engine through another function")
    original: Any = found
    # No function of Python: its frame would be one more between the program's line and a hook that torch warns in, and the warning
    # would be said to come from another line (`stacklevel`).
    run = functools.partial(_native.run_backward, original, _nodes_are_silent, getattr(_guards, "_TLS", None))
    ours: Any = functools.update_wrapper(run, original)
    _original, _ours = original, ours
    autograd._engine_run_backward = ours
    graph._engine_run_backward = ours


def _nodes_are_silent() -> None:
    """Fall back to gradient hooks, with a problem: the callback was never called for a node."""
    try:
        _use(nodes=False)
        _native.set_problem("backward: no record_function: no autograd node came through it")
        modules.want_gradient_hooks()
        _native.set_layer("backward", "grad-hooks")
    except Exception as error:
        if signals.is_of_the_program(error):
            raise
        _native.set_layer("backward", "off")
        _native.set_problem(f"backward: {error!r}")
