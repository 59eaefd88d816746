"""Records data loading: how long training waits for its DataLoader, and what the DataLoader was doing."""

from __future__ import annotations

import collections
import functools
from typing import Any, Callable

from probe_agent import _native
from probe_agent.torch.layers import skipped_by_dynamo

_original: Callable[[Any], Any] | None = None
_ours: Callable[[Any], Any] | None = None


def use_next_patch(explicit: bool) -> None:
    """Wrap the ``__next__`` of all DataLoader iterators."""
    global _original, _ours
    from torch.utils.data import dataloader

    if _original is not None:
        return
    original = dataloader._BaseDataLoaderIter.__next__
    next_batch = _native.next_batch
    _native.set_user_dict(collections.UserDict)

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        return next_batch(original, self)

    _original, _ours = original, skipped_by_dynamo(__next__)
    dataloader._BaseDataLoaderIter.__next__ = __next__


def remove() -> None:
    """Put the original back."""
    global _original, _ours
    if _original is not None:
        from torch.utils.data import dataloader

        if dataloader._BaseDataLoaderIter.__next__ is _ours:
            dataloader._BaseDataLoaderIter.__next__ = _original
        _original = _ours = None
