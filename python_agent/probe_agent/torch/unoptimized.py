"""Finds parameters that get gradients and are in no optimizer: the gradients are computed for nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable


def find(roots: Iterable[Any], optimizers: Iterable[Any], living: Callable[[], Iterable[Any]]) -> dict[str, Any]:
    """The facts for ``python.environment``: the size of all parameters together that are below the outermost modules ``roots``,
    have a gradient and are in no optimizer, and the name of the first of them.

    ``optimizers`` are those that have stepped. ``living()`` returns all that there are, and is only called if parameters are in
    none of ``optimizers``. There are no facts if no parameter is in an optimizer: it may work on copies of them. Call this when an
    optimizer is about to step, because the gradients of the step are there then.
    """
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
    if not is_any_optimized:
        return {}
    if found:
        others = _parameters_of(living())
        found = {address: entry for address, entry in found.items() if address not in others}
    return {
        "unoptimized_parameters": sum(int(parameter.numel()) for _, parameter in found.values()),
        "unoptimized_parameter": next((name for name, _ in found.values()), None),
    }


def _parameters_of(optimizers: Iterable[Any]) -> set[int]:
    # An optimizer that is being made has no groups yet.
    groups = (group for of in optimizers for group in getattr(of, "param_groups", ()))
    return {id(parameter) for group in groups for parameter in group["params"]}
