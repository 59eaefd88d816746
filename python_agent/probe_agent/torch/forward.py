"""Records calls of modules, by the ``tp_call`` slot, else by torch's global forward hooks."""

from __future__ import annotations

from typing import Any

from probe_agent import _native
from probe_agent.torch.layers import Unavailable, skipped_by_dynamo

_handles: list[Any] = []
_patched = False
_subclass_hook: Any = None


class _Plain:
    """A class whose objects can't be called: its slot is empty."""


def use_tp_call(explicit: bool) -> None:
    """Patch ``nn.Module`` and all its subclasses, present and future."""
    global _patched, _subclass_hook
    import torch

    _native.find_slot(torch.nn.Module, _Plain)
    _patched = True
    _subclass_hook = torch.nn.Module.__dict__.get("__init_subclass__")
    # Dynamo makes classes of modules while it traces, to copy graphs.
    hook = skipped_by_dynamo(_init_subclass)
    torch.nn.Module.__init_subclass__ = classmethod(hook)  # type: ignore[arg-type]  # bound by its descriptor
    patch_all()
    _native.keep_slots(True)
    if not _self_test():
        remove()
        raise Unavailable("calls of a module don't come through the slot")


def use_fast_call(explicit: bool) -> None:
    """Patch the slot, and call the ``forward`` of a module without hooks directly, past torch's own ``__call__``. Only used
    if ``PROBE_LAYERS`` names it."""
    import torch
    from torch.autograd import profiler
    from torch.nn.modules import module

    try:
        from torch._C import _is_tracing
        from torch._C._dynamo.eval_frame import get_eval_frame_callback
    except ImportError as error:
        raise Unavailable(f"this torch does not say what watches calls: {error}") from None
    if not hasattr(profiler, "_is_profiler_enabled"):
        raise Unavailable("this torch does not say whether it profiles")
    use_tp_call(explicit)
    _native.use_fast_calls(True, torch.nn.Module, vars(module), vars(profiler), _is_tracing, get_eval_frame_callback)


def use_python_hooks(explicit: bool) -> None:
    """Register global forward hooks: public, and slow."""
    from torch.nn.modules import module

    _handles.append(module.register_module_forward_pre_hook(_pre_hook))
    _handles.append(module.register_module_forward_hook(_hook, always_call=True))
    if not _self_test():
        remove()
        raise Unavailable("torch does not call its global forward hooks")


def patch_all() -> None:
    """Patch the slot of every module type that has the original in it."""
    import torch

    seen: set[type] = set()
    waiting: list[type] = [torch.nn.Module]
    while waiting:
        cls = waiting.pop()
        if cls not in seen:
            seen.add(cls)
            _native.patch_type(cls)
            _native.name_type(cls)
            waiting.extend(type.__subclasses__(cls))


def slots_are_patched() -> bool:
    """Whether modules are recorded by their slot."""
    return _patched


def remove() -> None:
    """Remove hooks and patches of module types."""
    global _patched
    _native.use_fast_calls(False)
    for handle in _handles:
        handle.remove()
    _handles.clear()
    if _patched:
        import torch

        _patched = False
        _native.keep_slots(False)
        if _subclass_hook is None:
            del torch.nn.Module.__init_subclass__
        else:
            torch.nn.Module.__init_subclass__ = _subclass_hook
        waiting: list[type] = [torch.nn.Module]
        while waiting:
            cls = waiting.pop()
            _native.unpatch_type(cls)
            waiting.extend(type.__subclasses__(cls))


def _init_subclass(cls: type, **arguments: Any) -> None:
    if _subclass_hook is None:
        import torch

        super(torch.nn.Module, cls).__init_subclass__(**arguments)
    else:
        _subclass_hook.__get__(None, cls)(**arguments)
    _native.patch_type(cls)
    _native.name_type(cls)


def _pre_hook(module: Any, args: tuple[Any, ...]) -> None:
    import torch

    if not torch.compiler.is_compiling():
        _native.forward_enter(module, args)


def _hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
    import torch

    if not torch.compiler.is_compiling():
        _native.forward_exit(module)


def _self_test() -> bool:
    """Whether a call of a module is seen. Records nothing and draws no random number."""
    import torch

    module = torch.nn.Identity()
    mode = _native.begin_self_test()
    try:
        module(None)
    finally:
        calls, _ = _native.end_self_test(mode)
    return calls == 1
