"""Finds parameters that get gradients and are in no optimizer: the gradients are computed for nothing."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Callable

#: Parameters in no optimizer that had a gradient at the last :func:`remember`, by their address: the gradient, its version and that
#: of the parameter. Torch counts how often a tensor was changed.
_before: dict[int, tuple[weakref.ref[Any], int, int]] = {}
_Optimizers = Callable[[], Iterable[Any]]


def remember(roots: Iterable[Any], optimizers: Iterable[Any], living: _Optimizers) -> dict[str, Any]:
    """Remember the gradients that there are, for :func:`find`, which takes the same arguments. There are no facts."""
    _, found = _without_optimizer(roots, optimizers, living)
    _before.clear()
    for address, (_, parameter) in found.items():
        gradient = parameter.grad
        _before[address] = (weakref.ref(gradient), gradient._version, parameter._version)
    return {}


def find(roots: Iterable[Any], optimizers: Iterable[Any], living: _Optimizers) -> dict[str, Any]:
    """The facts for ``python.environment``: the size of all parameters together that are below the outermost modules ``roots``,
    got a gradient since :func:`remember` and are in no optimizer, and the name of the first of them.

    ``optimizers`` are those that have stepped. ``living()`` returns all that there are, and is only called if parameters are in
    none of ``optimizers``. There are no facts if no parameter is in an optimizer: it may work on copies of them. Call this when an
    optimizer is about to step, because the gradients of the step are there then. A gradient that has not changed was
    left by earlier training, as that of a teacher. A parameter that has changed was in an optimizer that is gone: some programs
    train several models in turn, each with optimizers made anew.
    """
    is_any_optimized, found = _without_optimizer(roots, optimizers, living)
    if not is_any_optimized:
        return {}
    found = {address: entry for address, entry in found.items() if _learns_nothing(address, entry[1])}
    return {
        "unoptimized_parameters": sum(int(parameter.numel()) for _, parameter in found.values()),
        "unoptimized_parameter": next((name for name, _ in found.values()), None),
    }


def _learns_nothing(address: int, parameter: Any) -> bool:
    """Whether the parameter has got a gradient since :func:`remember`, and has not changed. False where it had none before: whether
    it has changed is not known."""
    before = _before.get(address)
    if before is None:
        return False
    reference, version, of_parameter = before
    gradient = parameter.grad
    has_new_gradient = bool(gradient._version != version) or reference() is not gradient
    return has_new_gradient and bool(parameter._version == of_parameter)


def _without_optimizer(
    roots: Iterable[Any], optimizers: Iterable[Any], living: _Optimizers
) -> tuple[bool, dict[int, tuple[str, Any]]]:
    """Whether any parameter is in an optimizer, and those with a gradient that are in none: name and parameter by address."""
    optimized = _parameters_of(optimizers)
    is_any_optimized = False
    found: dict[int, tuple[str, Any]] = {}
    for root in roots:
        for name, parameter in root.named_parameters():
            if id(parameter) in optimized:
                is_any_optimized = True
            # The gradient of a parameter that was computed from others is not kept, and asking for it warns.
            elif parameter.requires_grad and parameter.is_leaf and parameter.grad is not None:
                found.setdefault(id(parameter), (name, parameter))
    if found and is_any_optimized:
        others = _parameters_of(living())
        found = {address: entry for address, entry in found.items() if address not in others}
    return is_any_optimized, found


def _parameters_of(optimizers: Iterable[Any]) -> set[int]:
    # An optimizer that is being made has no groups yet.
    groups = (group for of in optimizers for group in getattr(of, "param_groups", ()))
    return {id(parameter) for group in groups for parameter in group["params"]}
