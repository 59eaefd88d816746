"""The classes that wrap a model, and what they wrap."""

from __future__ import annotations

from typing import Any

#: Classes of torch and of Lightning Fabric that wrap a module, and the attribute that has it, which is not part of the module's name.
WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "ActivationWrapper": "_checkpoint_wrapped_module",
    "_FabricModule": "_forward_module",
}

#: Where these classes are: one of the same name elsewhere is another one.
_PACKAGES = ("torch.", "lightning.fabric.", "lightning_fabric.")


def wrapper_of(module: Any) -> str | None:
    """The name in :data:`WRAPPERS` of the class of ``module``, or of one that it inherits from; None for other modules."""
    for cls in type(module).__mro__:
        if cls.__name__ in WRAPPERS and cls.__module__.startswith(_PACKAGES):
            return cls.__name__
    return None
