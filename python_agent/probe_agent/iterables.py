"""Batches that come from no DataLoader.

Only what is given to :func:`watch` is watched. Iterators of other libraries are not recognised by themselves: the same
data sets are read inside DataLoaders, where each of their items would count as a batch.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, TypeVar

    _Item = TypeVar("_Item")


def watch(iterable: Iterable[_Item]) -> Iterable[_Item]:
    """Makes an iterable count as data loading, as :func:`probe_agent.watch` describes it."""
    loaders: Any = sys.modules.get("torch.utils.data")
    if isinstance(iterable, WatchedIterable) or (loaders is not None and isinstance(iterable, loaders.DataLoader)):
        return iterable
    return WatchedIterable(iterable)


class WatchedIterable:
    """An iterable whose items are batches. Its length and attributes are those of the iterable inside."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable
        self._pass: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass over the iterable."""
        iterator = iter(self._iterable)
        native: Any = sys.modules.get("probe_agent._native")
        # A forked child is recorded from its first step on, before which its loop begins.
        records = native is not None and (native.is_enabled() or native.status()["phase"] == "forked")
        if not records or native.layers().get("data", "off") == "off":
            return iterator
        return _Batches(iterator, self._iterable, native)

    def __next__(self) -> Any:
        """The next batch of an iterator that is watched."""
        if self._pass is None:
            if not hasattr(self._iterable, "__next__"):
                raise TypeError(f"'{type(self._iterable).__name__}' object is not an iterator")
            self._pass = iter(self)
        return next(self._pass)

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self._iterable)  # type: ignore[arg-type]  # TypeError where it has none, as it should be

    def __getattr__(self, name: str) -> Any:
        """An attribute of the iterable inside."""
        if name == "_iterable":  # A copy under construction has no attribute yet.
            raise AttributeError(name)
        return getattr(self._iterable, name)


class _Batches:
    """One pass over a watched iterable."""

    __slots__ = ("_count", "_iterator", "_next_batch", "_source")

    def __init__(self, iterator: Iterator[Any], source: Iterable[Any], native: Any) -> None:
        self._iterator, self._source, self._count = iterator, source, 0
        self._next_batch = native.next_batch

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        batch = self._next_batch(next, self._iterator, self._source, self._count)
        self._count += 1
        return batch
