"""Connections and cursors as PEP 249 has them, for tools that take one. Queries only read, so a commit does nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainprobe import parameters
from trainprobe.errors import (
    Broken,
    CommandError,
    Denied,
    Limit,
    ProbeError,
    SqlError,
    Unreachable,
    UsageError,
)
from trainprobe.rows import Rows
from trainprobe.target import Limits, Target

apilevel, threadsafety, paramstyle = "2.0", 2, "qmark"

# The names of exceptions in PEP 249.
Warning = UserWarning
Error = DatabaseError = ProbeError
InterfaceError = UsageError
ProgrammingError = DataError = SqlError
OperationalError, InternalError, IntegrityError, NotSupportedError = Unreachable, Broken, CommandError, Denied


class Cursor:
    """Runs one query at a time.

    :ivar description: a tuple a column: its name, its type (int, float, text, …) and five times None; None before a query.
    :ivar arraysize: rows of a :meth:`fetchmany`.
    """

    rowcount = -1

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: list[tuple[Any, ...]] | None = None
        self._rows: Rows | None = None
        self._next: Iterator[tuple[Any, ...]] = iter(())

    def execute(self, operation: str, values: Sequence[object] | Mapping[str, object] = ()) -> Cursor:
        """Begins a query. `values` are a sequence for `?`, or a dictionary for `$name`."""
        self._stop()
        if not isinstance(values, Mapping):
            values = {str(number): value for number, value in enumerate(values, 1)}
        options = [*parameters.options(values), *self.connection._limits.options()]
        self._rows = Rows(self.connection._target.query(operation, "json-rows", options))
        self._next = iter(self._rows)
        self.description = [(column.name, column.kind, *[None] * 5) for column in self._rows.columns]
        return self

    def executemany(self, operation: str, values: Sequence[Sequence[object]]) -> None:
        """Raises Denied: queries only read."""
        raise Denied("executemany() is for changes, and queries only read")

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or None."""
        self._check()
        return next(self._next, None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows."""
        self._check()
        return list(itertools.islice(self._next, self.arraysize if size is None else size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All remaining rows."""
        self._check()
        return list(self._next)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._check()
        return self._next

    def setinputsizes(self, sizes: object) -> None:
        """Does nothing."""

    def setoutputsize(self, size: object, column: object = None) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Ends a query that still runs."""
        self._stop()

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._rows is None:
            raise UsageError("no query was executed")

    def _stop(self) -> None:
        if self._rows is not None:
            self._rows.close()
        self._rows, self._next, self.description = None, iter(()), None


class Connection:
    """A connection in the sense of PEP 249: it makes cursors."""

    def __init__(self, target: Target, limits: Limits) -> None:
        self._target, self._limits = target, limits

    def cursor(self) -> Cursor:
        """A new cursor."""
        return Cursor(self)

    def commit(self) -> None:
        """Does nothing."""

    def rollback(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing: every query has a command of its own."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


__all__ = [
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "Limit",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
    "apilevel",
    "paramstyle",
    "threadsafety",
]
