"""Columns of an answer as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainprobe.arrow import needed
from trainprobe.errors import UsageError

if TYPE_CHECKING:
    import pyarrow
    import torch


def of_table(table: pyarrow.Table, null: float | None) -> dict[str, torch.Tensor]:
    """A tensor for each column, as :meth:`trainprobe.Result.torch` describes it."""
    library: Any = needed("torch", "torch()")
    types = needed("pyarrow", "torch()").types
    made = {}
    for field, column in zip(table.schema, table.columns):
        if types.is_timestamp(field.type) or types.is_duration(field.type):
            nanoseconds = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}[field.type.unit]
            column = column.cast("int64")
        elif types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type):
            nanoseconds = 1
        else:
            raise UsageError(
                f"column '{field.name}' is {field.type}, which no tensor has",
                "select columns of numbers, booleans or times",
            )
        if column.null_count and null is None:
            raise UsageError(
                f"column '{field.name}' is NULL in {column.null_count} of {len(column)} rows, which no tensor has",
                "torch(null=math.nan), or COALESCE(…) or WHERE … IS NOT NULL in the query",
            )
        if column.null_count:
            column = column.cast("float64").fill_null(null)
        # A copy, because Arrow's memory can't be written to.
        made[field.name] = library.from_numpy(column.to_numpy().copy())
        if nanoseconds > 1:
            made[field.name] *= nanoseconds
    return made
