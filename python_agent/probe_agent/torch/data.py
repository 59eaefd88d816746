"""Records data loading: how long training waits for its DataLoader, and what the DataLoader was doing."""

from __future__ import annotations

import collections
import multiprocessing
import types
from multiprocessing import util
from typing import Any, Callable

from probe_agent import _native

_original: Callable[[Any], Any] | None = None
_ours: Callable[[Any], Any] | None = None
#: What multiprocessing knows our function for forked processes by; it holds it weakly.
_forks: _Forks | None = None


class _Forks:
    """Lives as long as workers that are forked are to note how long they take."""


def use_next_patch(explicit: bool) -> None:
    """Wrap the ``__next__`` of all DataLoader iterators."""
    global _original, _ours
    import torch
    from torch.utils.data import dataloader

    if _original is not None:
        return
    _native.set_user_dict(collections.UserDict)
    _native.set_sequence_types(torch.int64, torch.int32, torch.float32)
    _native.set_loader_iterator(dataloader._MultiProcessingDataLoaderIter)
    _original = dataloader._BaseDataLoaderIter.__next__
    _ours = dataloader._BaseDataLoaderIter.__next__ = _native.LoaderMethod(_original, types.MethodType, "__next__")
    _watch_forks()


def remove() -> None:
    """Put the original back."""
    global _original, _ours, _forks
    _forks = None
    if _original is not None:
        from torch.utils.data import dataloader

        if dataloader._BaseDataLoaderIter.__next__ is _ours:
            dataloader._BaseDataLoaderIter.__next__ = _original
        _original = _ours = None


def _watch_forks() -> None:
    global _forks
    _native.share_fetch_times()
    _forks = _Forks()
    util.register_after_fork(_forks, _begin_in_worker)


def _begin_in_worker(_: object) -> None:
    """Multiprocessing calls this in each process that it has forked, before the process begins its work. A worker of a DataLoader
    notes from then on how long it takes for a batch."""
    try:
        from torch.utils.data._utils import worker

        process: Any = multiprocessing.current_process()
        if process._target is worker._worker_loop:
            _, _, tasks, batches = process._args[:4]
            _native.note_fetch_times(tasks, batches)
    except Exception:  # Private parts of another Python or torch: then its times are not known.
        pass
