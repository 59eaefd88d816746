"""Records checkpoints: how long ``torch.save`` and ``torch.distributed.checkpoint.save`` take, and what they write.

``torch.distributed.checkpoint`` is not imported for this; it is wrapped when the program imports it.
"""

from __future__ import annotations

import functools
import io
import os
import sys
from typing import Any, Callable

from probe_agent import _native
from probe_agent.imports import CallbackFinder
from probe_agent.torch.layers import skipped_by_dynamo

_PACKAGE = "torch.distributed.checkpoint"
_DISTRIBUTED = f"{_PACKAGE}.state_dict_saver"

#: Files whose methods are Python's own. No method of other files is called.
_FILES = (io.BytesIO, io.BufferedWriter, io.BufferedRandom, io.FileIO)

_originals: list[tuple[Any, Any, Any]] = []
_finder: CallbackFinder | None = None


def use_wrappers(explicit: bool) -> None:
    """Wrap the functions in the namespaces that programs import them from."""
    global _finder
    import torch
    from torch import serialization

    if _originals:
        return
    _wrap((serialization, torch), "torch.save", _position_in_file, _in_file, (torch.UntypedStorage, torch.TypedStorage))
    if _DISTRIBUTED in sys.modules:
        _wrap_distributed()
    else:
        _finder = CallbackFinder(_DISTRIBUTED, _wrap_distributed)
        sys.meta_path.insert(0, _finder)


def remove() -> None:
    """Put the functions back, and wait for no import any more."""
    global _finder
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    _finder = None
    while _originals:
        namespace, ours, original = _originals.pop()
        # The package copies the name from that module when its import goes on.
        holders: tuple[Any, ...] = (namespace, sys.modules.get(_PACKAGE))
        for holder in holders:
            if getattr(holder, "save", None) is ours:
                holder.save = original


def _wrap_distributed() -> None:
    try:
        _wrap((sys.modules[_DISTRIBUTED], sys.modules.get(_PACKAGE)), f"{_PACKAGE}.save", _nothing, _in_directory)
    except Exception as error:
        _native.set_problem(f"checkpoints: {error!r}")


def _wrap(
    namespaces: Any, kind: str, before: Callable[..., Any], after: Callable[..., Any], parts: tuple[type, ...] = ()
) -> None:
    """:param parts: classes whose objects `pickle` writes by this function, one by one. That is no checkpoint."""
    original = namespaces[0].save
    run = _native.run_checkpoint

    # It has the name of torch's function, so that it pickles as that one, also for a process without the agent.
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) in parts:
            return original(*args, **kwargs)
        return run(original, args, kwargs, kind, before, after)

    skipped_by_dynamo(save)
    for namespace in namespaces:
        if getattr(namespace, "save", None) is original:
            namespace.save = save
            _originals.append((namespace, save, original))


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
        path = os.fspath(file)
        return os.path.basename(path), os.stat(path).st_size if os.path.isfile(path) else None
    after = _position_in_file(args, kwargs)
    name = getattr(file, "name", None) if type(file) in _FILES else None
    written = None if before is None or after is None or after < before else after - before
    return os.path.basename(name) if isinstance(name, str) else None, written


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
