"""Records checkpoints: how long ``torch.save``, ``torch.distributed.checkpoint.save`` and safetensors' ``save_file`` take, and
what they write.

``torch.distributed.checkpoint`` and ``safetensors.torch`` are not imported for this; they are wrapped when the program imports
them.
"""

from __future__ import annotations

import functools
import io
import os
import sys
from typing import Any, Callable

from probe_agent import _native, signals
from probe_agent.imports import CallbackFinder
from probe_agent.torch.layers import skipped_by_dynamo

_PACKAGE = "torch.distributed.checkpoint"
_DISTRIBUTED = f"{_PACKAGE}.state_dict_saver"
_SAFETENSORS = "safetensors.torch"

#: Files whose methods are Python's own. No method of other files is called.
_FILES = (io.BytesIO, io.BufferedWriter, io.BufferedRandom, io.FileIO)

#: The namespace, the name in it, our function and the original.
_originals: list[tuple[Any, str, Any, Any]] = []
_finders: list[CallbackFinder] = []


def use_wrappers(explicit: bool) -> None:
    """Wrap the functions in the namespaces that programs import them from."""
    import torch
    from torch import serialization

    if _originals:
        return
    storages = (torch.UntypedStorage, torch.TypedStorage)
    _wrap((serialization, torch), "save", "torch.save", _position_in_file, _in_file, storages)
    for module, wrap in ((_DISTRIBUTED, _wrap_distributed), (_SAFETENSORS, _wrap_safetensors)):
        wrap_if_possible = functools.partial(_attempt, wrap)
        if module in sys.modules:
            wrap_if_possible()
        else:
            finder = CallbackFinder(module, wrap_if_possible)
            sys.meta_path.insert(0, finder)
            _finders.append(finder)


def remove() -> None:
    """Put the functions back, and wait for no import any more."""
    while _finders:
        finder = _finders.pop()
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    while _originals:
        namespace, name, ours, original = _originals.pop()
        # The package copies the name from that module when its import goes on.
        holders: tuple[Any, ...] = (namespace, sys.modules.get(_PACKAGE))
        for holder in holders:
            if getattr(holder, name, None) is ours:
                setattr(holder, name, original)


def _attempt(wrap: Callable[[], None]) -> None:
    """Wraps what the program imports. Its import succeeds whatever happens here."""
    try:
        wrap()
    except Exception as error:
        if signals.is_of_the_program(error):
            raise
        _native.set_problem(f"checkpoints: {error!r}")


def _wrap_distributed() -> None:
    namespaces = (sys.modules[_DISTRIBUTED], sys.modules.get(_PACKAGE))
    _wrap(namespaces, "save", f"{_PACKAGE}.save", _nothing, _in_directory)


def _wrap_safetensors() -> None:
    module = sys.modules[_SAFETENSORS]
    # If this module is what imports torch, and so starts the agent, it has no functions yet. Its files are not recorded then.
    if hasattr(module, "save_file"):
        _wrap((module,), "save_file", f"{_SAFETENSORS}.save_file", _nothing, _in_named_file)


def _wrap(
    namespaces: Any,
    name: str,
    kind: str,
    before: Callable[..., Any],
    after: Callable[..., Any],
    parts: tuple[type, ...] = (),
) -> None:
    """:param parts: classes whose objects `pickle` writes by this function, one by one. That is no checkpoint."""
    original = getattr(namespaces[0], name)
    run = _native.run_checkpoint

    # It has the name of torch's function, so that it pickles as that one, also for a process without the agent.
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) in parts:
            return original(*args, **kwargs)
        return run(original, args, kwargs, kind, before, after)

    skipped_by_dynamo(save)
    for namespace in namespaces:
        if getattr(namespace, name, None) is original:
            setattr(namespace, name, save)
            _originals.append((namespace, name, save, original))


def _file(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("f")


def _position_in_file(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The position in an open file; None where it has none."""
    file = _file(args, kwargs)
    try:
        return int(file.tell()) if type(file) in _FILES else None
    except (OSError, ValueError):  # A pipe, or closed.
        return None


def _in_file(args: tuple[Any, ...], kwargs: dict[str, Any], before: int | None) -> tuple[str | None, int | None]:
    """The file that ``torch.save`` wrote to, and the bytes written."""
    file = _file(args, kwargs)
    if isinstance(file, (str, os.PathLike)):
        return _at(file)
    after = _position_in_file(args, kwargs)
    name = getattr(file, "name", None) if type(file) in _FILES else None
    written = None if before is None or after is None or after < before else after - before
    return os.path.basename(name) if isinstance(name, str) else None, written


def _in_named_file(args: tuple[Any, ...], kwargs: dict[str, Any], before: None) -> tuple[str | None, int | None]:
    """The file that ``save_file(tensors, filename)`` wrote, and its bytes."""
    file = args[1] if len(args) > 1 else kwargs.get("filename")
    return _at(file) if isinstance(file, (str, os.PathLike)) else (None, None)


def _at(file: str | os.PathLike[str]) -> tuple[str, int | None]:
    path = os.fspath(file)
    return os.path.basename(path), os.stat(path).st_size if os.path.isfile(path) else None


def _nothing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    return None


def _in_directory(args: tuple[Any, ...], kwargs: dict[str, Any], before: None) -> tuple[str | None, int | None]:
    """The directory of a distributed checkpoint, and the bytes that this rank wrote there."""
    from torch import distributed

    target = kwargs.get("checkpoint_id") or getattr(kwargs.get("storage_writer"), "path", None)
    if not isinstance(target, (str, os.PathLike)):
        return None, None
    path = os.path.normpath(os.fspath(target))
    if not os.path.isdir(path):
        return os.path.basename(path), None
    together = distributed.is_available() and distributed.is_initialized() and not kwargs.get("no_dist")
    rank = distributed.get_rank(kwargs.get("process_group")) if together else 0
    # The lowest rank writes what says where each tensor is.
    own = (f"__{rank}_", ".metadata") if rank == 0 else (f"__{rank}_",)
    with os.scandir(path) as entries:
        sizes = [entry.stat().st_size for entry in entries if entry.name.startswith(own)]
    return os.path.basename(path), sum(sizes)
