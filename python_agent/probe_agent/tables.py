"""Tables that a program declares, and the rows that it appends to them. Imports neither torch nor pyarrow."""

from __future__ import annotations

import datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Columns = Mapping[str, type]

# The types that a column can have, as the native half calls them.
_TYPES: dict[type, str] = {float: "float", int: "int", str: "str", bool: "bool", datetime.datetime: "datetime"}
# The pyarrow types that a column of each type takes, by how the type's name begins.
_ARROW: dict[str, tuple[str, ...]] = {
    "float": ("float", "double", "halffloat", "int", "uint"),
    "int": ("int", "uint"),
    "str": ("string", "large_string", "string_view", "dictionary<values=string"),
    "bool": ("bool",),
    "datetime": ("timestamp",),
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
# Rows of a batch that are read at a time. This many rows are in memory twice.
_ROWS = 4096


class Table:
    """A table that the program declared; see :func:`probe_agent.table`."""

    __slots__ = ("_columns", "_index", "name")

    def __init__(self, name: str, columns: Columns) -> None:
        from probe_agent import _native

        if not isinstance(name, str):
            raise TypeError(f"a table's name is text, not {type(name).__name__}")
        self.name = name
        self._columns: dict[str, str] = {}
        for column, kind in columns.items():
            if not isinstance(column, str) or kind not in _TYPES:
                allowed = ", ".join(known.__name__ for known in _TYPES)
                raise TypeError(f"column {column} of {name} can't be {kind!r}; hint: one of {allowed}")
            self._columns[column] = _TYPES[kind]
        self._index = _native.declare_table(name, list(self._columns.items()))

    def append(self, batch: Any = None, /, **values: Any) -> None:
        """Appends a row, ``append(loss=0.5, tokens=512)``, or the rows of a pyarrow RecordBatch or Table.

        A column that is not given, or is None, is NULL; so is a tensor on a device, because training would wait for it
        (``loss.item()`` is a number, and waits). What the collector can't keep, or the bounds don't allow, is counted in
        `probe.drops`. Where the agent is off nothing is kept.

        Raises TypeError for a column that the table has not and for a value of another type. It raises nothing else.
        """
        from probe_agent import _native

        if batch is not None:
            if values:
                raise TypeError(f"a row of {self.name} or a batch of rows, not both")
            self._append_batch(batch)
            return
        for column, value in values.items():
            if value is not None and self._columns.get(column) == "datetime":
                values[column] = self._nanoseconds(column, value)
        _native.append_row(self._index, values)

    def _append_batch(self, batch: Any) -> None:
        from probe_agent import _native

        names = getattr(getattr(batch, "schema", None), "names", None)
        if names is None or not hasattr(batch, "slice"):
            raise TypeError(
                f"{self.name}.append takes columns by name, or a pyarrow RecordBatch or Table, not "
                f"{type(batch).__name__}"
            )
        for name, kind in zip(names, batch.schema.types):
            if name not in self._columns:
                raise TypeError(f"{self.name} has no column {name}; it has {', '.join(self._columns)}")
            if not str(kind).startswith(_ARROW[self._columns[name]]) and str(kind) != "null":
                raise TypeError(f"column {name} of {self.name} is {self._columns[name]}, not {kind}")
        for start in range(0, batch.num_rows, _ROWS):
            part = batch.slice(start, _ROWS)
            rows = part.num_rows
            columns = []
            for name, kind in self._columns.items():
                if name not in names:
                    columns.append([None] * rows)
                    continue
                values = part.column(names.index(name))
                if kind == "datetime" and str(values.type) != "null":
                    values = values.cast(_nanosecond_type(values.type), safe=False).cast("int64")
                columns.append(values.to_pylist())
            _native.append_columns(self._index, columns, rows)

    def _nanoseconds(self, column: str, value: Any) -> int:
        if not isinstance(value, datetime.datetime) or value.tzinfo is None:
            what = "a datetime without a time zone" if isinstance(value, datetime.datetime) else type(value).__name__
            raise TypeError(f"column {column} of {self.name} is datetime with a time zone, not {what}")
        return ((value - _EPOCH) // _MICROSECOND) * 1000

    def __repr__(self) -> str:
        """The declaration."""
        columns = "".join(f", {name}={kind}" for name, kind in self._columns.items())
        return f'probe_agent.table("{self.name}"{columns})'


def _nanosecond_type(kind: Any) -> Any:
    """A timestamp type like `kind`, in nanoseconds."""
    import pyarrow

    return pyarrow.timestamp("ns", tz=kind.tz)
