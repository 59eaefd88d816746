"""Finds parameters that get gradients and are in no optimizer: the gradients are computed, and nothing learns by them."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any


def find(roots: Iterable[Any], optimizers: Iterable[Any]) -> dict[str, Any]:
    """The facts for ``python.environment``: how many numbers the parameters have together that are below the outermost modules
    ``roots``, have a gradient and are in none of ``optimizers`` nor of the others that live; and the name of the first of them.

    Nothing where no parameter is in an optimizer: it may have copies of all, of another type or of all in one piece. Call it when
    an optimizer is about to step: the gradients of the step are there.
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
        # An optimizer may not have stepped yet. Looking for one takes a while, so it is only done here.
        others = _parameters_of(_living_optimizers())
        found = {address: entry for address, entry in found.items() if address not in others}
    return {
        "unoptimized_parameters": sum(int(parameter.numel()) for _, parameter in found.values()),
        "unoptimized_parameter": next((name for name, _ in found.values()), None),
    }


def _parameters_of(optimizers: Iterable[Any]) -> set[int]:
    return {id(parameter) for of in optimizers for group in of.param_groups for parameter in group["params"]}


def _living_optimizers() -> list[Any]:
    import torch

    optimizer = torch.optim.Optimizer
    return [
        known for known in gc.get_objects() if issubclass(type(known), optimizer) and hasattr(known, "param_groups")
    ]
