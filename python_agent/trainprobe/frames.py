"""Fetches an answer into the best kind of DataFrame that is installed."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

from trainprobe.arrow import to_pandas, to_plain
from trainprobe.command import ended_with_errors
from trainprobe.plot import Plot
from trainprobe.result import Result
from trainprobe.rows import Column


def installed(*packages: str) -> bool:
    """Whether all of these can be imported."""
    return all(importlib.util.find_spec(package) for package in packages)


class Fetched:
    """Rows that were fetched.

    :ivar frame: a DataFrame of pandas, else of Polars, else a list of dictionaries.
    :ivar rows: their number.
    :ivar more: whether the answer has more.
    """

    def __init__(
        self, frame: Any, rows: int, more: bool, plain: Callable[[], tuple[list[Column], list[tuple[Any, ...]]]]
    ) -> None:
        self.frame, self.rows, self.more, self._plain = frame, rows, more, plain

    def plot(self, kind: str | None) -> Plot:
        """A plot of the rows."""
        return Plot.of(*self._plain(), kind)


@ended_with_errors
def fetch(result: Result, limit: int | None) -> Fetched:
    """The rows of an answer.

    :param limit: rows to fetch at most, or None for all. The query ends when there are so many.
    """
    if installed("pyarrow", "pandas") or installed("pyarrow", "polars"):
        return _by_arrow(result, limit)
    rows = result.iter_rows()
    names = [column.name for column in rows.columns]
    found = list(itertools.islice(rows, None if limit is None else limit + 1))
    rows.close()
    more = limit is not None and len(found) > limit
    found = found[:limit]
    return Fetched([dict(zip(names, row)) for row in found], len(found), more, lambda: (rows.columns, found))


def _by_arrow(result: Result, limit: int | None) -> Fetched:
    import pyarrow

    reader = result.to_arrow_reader()
    batches: list[pyarrow.RecordBatch] = []
    rows = 0
    for batch in reader:
        batches.append(batch)
        rows += batch.num_rows
        if limit is not None and rows > limit:
            break
    table = pyarrow.Table.from_batches(batches, reader.schema)
    more = limit is not None and rows > limit
    table = table.slice(0, limit)
    # The query ends with its reader.
    reader.close()
    del reader
    if installed("pandas"):
        frame: Any = to_pandas(table)
    else:
        import polars

        frame = polars.from_arrow(table)
    return Fetched(frame, table.num_rows, more, lambda: to_plain(table))
