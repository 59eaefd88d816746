"""Puts back the modes that a snippet between two steps switched, before training goes on.

`model.eval()` before an evaluation is common, and is not meant to train without dropout afterwards. So the modes from
before are put back, with a message. An assignment, `model.training = False`, stays.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def put_back(say: Callable[[str], object]) -> Iterator[None]:
    """Puts back what the calling thread switches meanwhile, and calls `say` with a line for each."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    modes: dict[int, tuple[Any, bool]] = {}
    restore = _watch_modes(torch.nn.Module, modes)
    try:
        yield
    finally:
        restore()
        changed = [(module, mode) for module, mode in modes.values() if module.training is not mode]
        for module, mode in changed:
            module.training = mode
        if changed:
            first = changed[0]
            to = "training" if first[1] else "evaluation"
            others = f" and {len(changed) - 1} modules with it" if len(changed) > 1 else ""
            say(f"put back: {type(first[0]).__name__}{others} in {to} mode, which the snippet had left")
        if torch.is_grad_enabled() is not gradients:
            torch.set_grad_enabled(gradients)
            say(f"put back: gradients are {'on' if gradients else 'off'} on the training thread")
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)
            say(f"put back: the default dtype is {dtype}")


def _watch_modes(module_class: Any, modes: dict[int, tuple[Any, bool]]) -> Callable[[], None]:
    """Notes in `modes`, by id, the modes of modules before this thread first changed them. Returns a function that ends this."""
    original = module_class.train
    thread = threading.get_ident()

    def train(self: Any, mode: bool = True) -> Any:
        if threading.get_ident() == thread and isinstance(mode, bool):
            modes.setdefault(id(self), (self, self.training))
        return original(self, mode)

    def restore() -> None:
        # If other code replaced the method meanwhile, its replacement stays.
        if module_class.train is train:
            module_class.train = original

    train.__doc__, train.__wrapped__ = original.__doc__, original  # type: ignore[attr-defined]
    module_class.train = train
    return restore
