"""Inputs for a module like those that training gives it: its next call is looked at once, without keeping its tensors.

Tensors of floats become random ones of the same shape, strides, type and device; those of integers and booleans (indices,
masks) are copied, since their values decide what is done.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

#: Bytes of indices and masks that are copied.
MAX_COPIED = 64 << 20
_PLAIN = (int, float, bool, str, bytes, complex, type(None))


class UnknownInput(Exception):
    """An argument that can't be made again."""


class _Floats(NamedTuple):
    """The description of a tensor of floats."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    device: Any
    requires_grad: bool


class ModuleCall(NamedTuple):
    """A call of a module."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    #: Why the call can't be made again; empty where it can.
    problem: str
    #: The inputs in words: (8, 128, 64) float32.
    words: str
    #: Whether gradients were on, and by type of device the dtype of autocast where that was on.
    gradients: bool
    autocast: dict[str, Any]


#: The first call of each module after :func:`watch`. The references are weak, so an entry goes with its module.
_seen: weakref.WeakKeyDictionary[Any, ModuleCall] = weakref.WeakKeyDictionary()
_watched: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def watch(module: Any) -> None:
    """Notes the module's next call."""
    if module not in _watched:
        _watched[module] = module.register_forward_pre_hook(_note, prepend=True, with_kwargs=True)


def forget(module: Any) -> ModuleCall | None:
    """Stops watching a module. Returns the call that it had since :func:`watch`, if there was one."""
    handle = _watched.pop(module, None)
    if handle is not None:
        handle.remove()
    return _seen.pop(module, None)


def has_seen(module: Any) -> bool:
    """Whether the module was called since :func:`watch`."""
    return module in _seen


def _note(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Runs once, on the training thread: raises nothing, and waits for no device."""
    try:
        handle = _watched.pop(module, None)
        if handle is None:
            return
        handle.remove()
        words: list[str] = []
        room = [MAX_COPIED]
        try:
            described = tuple(_described(each, words, room) for each in arguments)
            named = {name: _described(each, words, room) for name, each in keywords.items()}
            _seen[module] = ModuleCall(described, named, "", ", ".join(words), *_modes())
        except UnknownInput as error:
            _seen[module] = _unknown(str(error))
    except Exception as error:
        try:
            _seen[module] = _unknown(repr(error))
        except Exception:  # The class may forbid even that; then the call counts as not seen.
            pass


def _unknown(why: str) -> ModuleCall:
    return ModuleCall((), {}, why, "", True, {})


def _modes() -> tuple[bool, dict[str, Any]]:
    import torch

    types = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return torch.is_grad_enabled(), {kind: torch.get_autocast_dtype(kind) for kind in types}


def _described(value: Any, words: list[str], room: list[int]) -> Any:
    import torch

    kind = type(value)
    if kind in _PLAIN or kind in (torch.dtype, torch.device):
        return value
    if kind in (tuple, list):
        return kind(_described(each, words, room) for each in value)
    if kind is dict:
        return {key: _described(each, words, room) for key, each in value.items()}
    if kind not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        raise UnknownInput(f"an argument is a {kind.__name__}")
    words.append(f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}")
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return _Floats(tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad)
    room[0] -= value.numel() * value.element_size()
    if room[0] < 0:
        raise UnknownInput(f"its integers have more than {MAX_COPIED >> 20} MiB")
    with torch.no_grad():
        return value.detach().clone()


def made(seen: ModuleCall) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
    """Arguments and keywords of a call like that one, and those of its tensors that gradients go to."""
    leaves: list[Any] = []
    arguments = tuple(_made(each, leaves) for each in seen.arguments)
    return arguments, {name: _made(each, leaves) for name, each in seen.keywords.items()}, leaves


def _made(value: Any, leaves: list[Any]) -> Any:
    import torch

    kind = type(value)
    if kind is _Floats:
        try:
            tensor = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device)
            with torch.no_grad():
                tensor.normal_()
        except (RuntimeError, NotImplementedError):  # Strides that overlap (expand), or a type without a generator.
            tensor = torch.randn(value.shape, device=value.device).to(value.dtype)
        if value.requires_grad:
            tensor.requires_grad_()
            leaves.append(tensor)
        return tensor
    if kind in (tuple, list):
        return kind(_made(each, leaves) for each in value)
    if kind is dict:
        return {key: _made(each, leaves) for key, each in value.items()}
    return value
