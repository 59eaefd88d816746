"""Installs the agent's hooks and patches in torch, and removes them: one file a layer.

Each layer has mechanisms in order of preference. One that fails its self-test, or that ``PROBE_LAYERS`` forbids, gives
way to the next; the last resort is ``off``. Which one runs is in ``probe.agents.layers``.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Callable

from probe_agent import _native, signals
from probe_agent.torch import (
    autograd,
    checkpoints,
    collectives,
    data,
    device,
    environment,
    exceptions,
    forward,
    memory,
    modules,
    operators,
    optimizer,
    pauses,
    process,
    spans,
)
from probe_agent.torch.layers import OFF, Unavailable, parse
from probe_agent.torch.unseen import unseen

_LAYERS: dict[str, list[tuple[str, Callable[[bool], None]]]] = {
    "backward": [("record_function", autograd.use_record_function), ("grad-hooks", autograd.use_grad_hooks)],
    "forward": [
        ("fast_call", forward.use_fast_call),
        ("tp_call", forward.use_tp_call),
        ("python-hooks", forward.use_python_hooks),
    ],
    "optimizer": [("record_function", optimizer.use_record_function), ("step-hooks", optimizer.use_step_hooks)],
    "data": [("next-patch", data.use_next_patch)],
    "collectives": [
        ("pg_hooks", collectives.use_group_hooks),
        ("patched-functions", collectives.use_patched_functions),
    ],
    "memory": [("statistics", memory.use_statistics)],
    "process": [("proc", process.use_proc)],
    "spans": [("record_function", spans.use_record_function), ("own", spans.use_own)],
    "metrics": [("log", spans.use_log)],
    "environment": [("torch", environment.use_torch)],
    "copies": [("record_function", operators.use_copies)],
    "sync_points": [("record_function", operators.use_sync_points)],
    "device_time": [("cuda_events", device.use_cuda_events)],
    "exceptions": [("hooks", exceptions.use_hooks)],
    "checkpoints": [("wrappers", checkpoints.use_wrappers)],
    "pauses": [("callbacks", pauses.use_callbacks)],
}

#: Mechanisms that are only tried if `PROBE_LAYERS` names them.
_BY_CHOICE = {"fast_call"}

_lock = threading.Lock()
_installed = False
_exit_registered = False


@unseen
def install() -> None:
    """Begin to record. Torch must be imported. A second call does nothing. Raises nothing but what a signal handler of the program
    raises in it.

    Layers that can't be installed are ``off`` in ``_native.layers()``; ``_native.problem()`` has the reason.
    """
    global _installed, _exit_registered
    with _lock:
        if _installed:
            return
        _installed = True
        problems: list[str] = []
        try:
            wanted = parse(
                os.environ.get("PROBE_LAYERS"), {layer: [name for name, _ in chain] for layer, chain in _LAYERS.items()}
            )
            problems += wanted.problems
            problems += _prepare()
            for layer, chain in _LAYERS.items():
                explicit = wanted.is_explicit(layer)
                allowed = [name for name in wanted.mechanisms[layer] if explicit or name not in _BY_CHOICE]
                _install_layer(layer, chain, allowed, explicit, problems)
            autograd.measure_costs()
        except BaseException as error:  # Training goes on, whatever happens to us.
            problems.append(f"recording is off: {error!r}")
            _native.enable(False)
            for layer in _LAYERS:
                _native.set_layer(layer, OFF)
            if signals.is_of_the_program(error):
                raise
        finally:
            if problems:
                _native.set_problem("; ".join(problems))
        if not _exit_registered:
            _exit_registered = True
            atexit.register(collectives.remove_hooks)


@unseen
def begin_in_child() -> None:
    """Begin anew in a forked child that becomes an agent. The hooks are in; what they noted of the parent is not the child's."""
    global _lock
    _lock = threading.Lock()
    optimizer.begin_in_child()
    import torch

    # After recording is on: facts are noted only then.
    environment.begin_in_child()
    if torch.cuda._is_in_bad_fork():
        # The parent has used CUDA, so the child can't.
        device.remove()
        _native.set_layer("device_time", OFF)
        memory.leave_devices_out()


@unseen
def uninstall() -> None:
    """Stop recording and put torch back as it was. Call it between two steps: open intervals are not finished."""
    global _installed
    with _lock:
        if not _installed:
            return
        _installed = False
        _native.enable(False)
        for part in (
            *(operators, forward, autograd, optimizer, data, collectives),
            *(modules, memory, process, spans, environment, device, exceptions, checkpoints, pauses),
        ):
            part.remove()
        for layer in _LAYERS:
            _native.set_layer(layer, OFF)


def _prepare() -> list[str]:
    """Prepare what every layer needs. Returns the problems."""
    import torch

    _native.prepare()
    _native.set_tensor_types(torch.Tensor, torch.nn.Parameter)
    functorch = getattr(torch._C, "_functorch", None)
    functions = ("is_functorch_wrapped_tensor", "is_batchedtensor", "maybe_get_bdim", "get_unwrapped")
    if all(hasattr(functorch, name) for name in functions):
        _native.set_tensor_transforms(*(getattr(functorch, name) for name in functions))
    _native.find_grad_mode(torch.is_grad_enabled)
    _native.set_walker(modules.register)
    problems = []
    try:
        modules.watch_registrations()
    except Unavailable as reason:
        problems.append(f"modules that are added later have the names of their classes: {reason}")
    _native.enable(True)
    return problems


def _install_layer(
    layer: str, chain: list[tuple[str, Callable[[bool], None]]], allowed: list[str], explicit: bool, problems: list[str]
) -> None:
    """Put in the first mechanism of ``allowed`` that works."""
    by_name = dict(chain)
    for mechanism in allowed:
        try:
            by_name[mechanism](explicit)
        except Unavailable as reason:
            if reason.args:
                problems.append(f"{layer}: no {mechanism}: {reason}")
        except Exception as error:
            if signals.is_of_the_program(error):
                raise
            problems.append(f"{layer}: no {mechanism}: {error!r}")
        else:
            _native.set_layer(layer, mechanism)
            return
    _native.set_layer(layer, OFF)
