"""Records data loading: how long training waits for its DataLoader, and what the DataLoader was doing."""

from __future__ import annotations

import collections
import types
from typing import Any, Callable

from probe_agent import _native

_original: Callable[[Any], Any] | None = None
_ours: Callable[[Any], Any] | None = None


def use_next_patch(explicit: bool) -> None:
    """Wrap the ``__next__`` of all DataLoader iterators."""
    global _original, _ours
    from torch.utils.data import dataloader

    if _original is not None:
        return
    _native.set_user_dict(collections.UserDict)
    _original = dataloader._BaseDataLoaderIter.__next__
    _ours = dataloader._BaseDataLoaderIter.__next__ = _native.NextBatch(_original, types.MethodType)


def remove() -> None:
    """Put the original back."""
    global _original, _ours
    if _original is not None:
        from torch.utils.data import dataloader

        if dataloader._BaseDataLoaderIter.__next__ is _ours:
            dataloader._BaseDataLoaderIter.__next__ = _original
        _original = _ours = None
