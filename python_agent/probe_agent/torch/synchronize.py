"""Records explicit waits for a device: ``torch.cuda.synchronize()`` and similar functions.

The patched functions are those beneath the public ones, because torch.compile knows the public ones by identity and takes
them into its graphs.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

from probe_agent import _native
from probe_agent.torch.layers import skipped_by_dynamo

_originals: list[tuple[Any, str, Any, Any]] = []


def patch() -> None:
    """Patch the functions that this torch has. A second call does nothing."""
    import torch

    if _originals:
        return
    streams = sys.modules.get("torch.cuda.streams")
    # Otherwise the accelerator is another one, for which the table has no name.
    cuda = torch.version.cuda or torch.version.hip
    for namespace, name, operation, device in (
        (torch._C, "_cuda_synchronize", "synchronize", _current_device),
        (torch._C if cuda else None, "_accelerator_synchronizeDevice", "synchronize", _first_argument),
        (getattr(streams, "Stream", None), "synchronize", "Stream.synchronize", _own_device),
        (getattr(streams, "Event", None), "synchronize", "Event.synchronize", _own_device),
    ):
        original = getattr(namespace, name, None)
        if original is not None:
            ours = _timed(original, operation, device)
            setattr(namespace, name, ours)
            _originals.append((namespace, name, ours, original))


def remove() -> None:
    """Put the functions back."""
    while _originals:
        namespace, name, ours, original = _originals.pop()
        if getattr(namespace, name, None) is ours:
            setattr(namespace, name, original)


def _timed(
    original: Callable[..., Any], operation: str, device: Callable[[tuple[Any, ...]], int]
) -> Callable[..., Any]:
    begin, end = _native.sync_begin, _native.sync_end

    @functools.wraps(original)
    def synchronize(*args: Any, **kwargs: Any) -> Any:
        began = begin()
        if not began:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            end(began, operation, lambda: device(args))

    return skipped_by_dynamo(synchronize)


def _current_device(_args: tuple[Any, ...]) -> int:
    import torch

    return int(torch._C._cuda_getDevice())


def _first_argument(args: tuple[Any, ...]) -> int:
    return int(args[0])


def _own_device(args: tuple[Any, ...]) -> int:
    """The device of a stream, or of an event; an event has none before it is recorded."""
    return int(args[0].device.index)
