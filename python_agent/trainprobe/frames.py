"""The best frame for an answer that is installed, with at most so many rows."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

from trainprobe.arrow import to_pandas
from trainprobe.command import ended_with_errors
from trainprobe.result import Result


def installed(*packages: str) -> bool:
    """Whether all of these can be imported."""
    return all(importlib.util.find_spec(package) for package in packages)


@ended_with_errors
def fetch(result: Result, limit: int | None) -> tuple[Any, int, bool]:
    """A DataFrame of pandas, else of Polars, else a list of dictionaries; its number of rows; and whether there are more.

    :param limit: rows to fetch at most, or None for all. The query ends when there are so many.
    """
    if installed("pyarrow", "pandas") or installed("pyarrow", "polars"):
        return _by_arrow(result, limit)
    rows = result.iter_rows()
    names = [column.name for column in rows.columns]
    end = None if limit is None else limit + 1
    found = [dict(zip(names, row)) for row in itertools.islice(rows, end)]
    rows.close()
    more = limit is not None and len(found) > limit
    found = found[:limit]
    return found, len(found), more


def _by_arrow(result: Result, limit: int | None) -> tuple[Any, int, bool]:
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
        return to_pandas(table), table.num_rows, more
    import polars

    return polars.from_arrow(table), table.num_rows, more
