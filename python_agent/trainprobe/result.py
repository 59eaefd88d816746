"""A question to a run, and the ways to have its answer."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainprobe import arrow, display, parameters, tensors
from trainprobe.command import Command, ended_with_errors
from trainprobe.errors import SqlError
from trainprobe.plot import Plot
from trainprobe.rows import Column, Rows
from trainprobe.target import Limits, Target

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from torch import Tensor

#: Rows of an answer that are shown in a terminal and in a notebook.
SHOWN = 20


class Result:
    """A query, which runs when its answer is asked for, and runs again each time: of a live run the answer grows.

    >>> result = run.sql("SELECT step, duration FROM python.steps WHERE step < $last ORDER BY step", last=2)
    >>> result.columns
    ['step', 'duration']
    >>> [row["step"] for row in result.to_dicts()]
    [0, 1]

    All ways to its answer raise :class:`~trainprobe.SqlError` for a wrong query, :class:`~trainprobe.Unreachable` where
    the run does not answer or ends while it does, :class:`~trainprobe.Denied` and :class:`~trainprobe.Limit`.
    """

    def __init__(
        self, target: Target, sql: str, values: Mapping[str, object] | None = None, limits: Limits | None = None
    ) -> None:
        self._target, self._limits = target, limits or Limits()
        self._parameters = parameters.options(values or {})
        self.sql = sql
        self._columns: list[Column] | None = None

    def within(self, timeout: float | None = None, max_rows: int | None = None, max_bytes: int | None = None) -> Result:
        """The same query with other limits where one is given.

        :param timeout: seconds.
        :param max_rows: rows that the answer may have; with more it raises Limit.
        :param max_bytes: bytes that the answer may have.
        """
        given = {"timeout": timeout, "max_rows": max_rows, "max_bytes": max_bytes}
        changed = {name: value for name, value in given.items() if value is not None}
        other = Result(self._target, self.sql, None, dataclasses.replace(self._limits, **changed))  # type: ignore[arg-type]
        other._parameters = self._parameters
        return other

    @ended_with_errors
    def df(self) -> pandas.DataFrame:
        """The answer as a DataFrame of pandas. Times are in UTC; integers with NULL are `Int64`. Needs pandas and
        pyarrow."""
        arrow.needed("pandas", "df()", "pyarrow")
        return arrow.to_pandas(arrow.reader(self._ask("arrow"), "df()").read_all())

    @ended_with_errors
    def pl(self) -> polars.DataFrame:
        """The answer as a DataFrame of Polars. Needs polars alone."""
        return arrow.to_polars(self._ask("arrow"))

    @ended_with_errors
    def torch(self, null: float | None = None) -> dict[str, Tensor]:
        """A tensor of one dimension for each column, on the host: integers and floats as the column has them, booleans, and times
        and durations as nanoseconds in int64. Needs torch and pyarrow.

        :param null: the value for NULL; a column that has it is float64 then. None refuses NULL, which no tensor has.

        Raises UsageError for text and other columns that no tensor has.

        >>> run.sql("SELECT step FROM python.steps WHERE step < 2 ORDER BY step").torch()
        {'step': tensor([0, 1])}
        """
        return tensors.of_table(self.to_arrow_table(), null)

    @ended_with_errors
    def to_arrow_table(self) -> pyarrow.Table:
        """The answer as a table of pyarrow."""
        return self.to_arrow_reader().read_all()

    @ended_with_errors
    def to_arrow_reader(self) -> pyarrow.RecordBatchReader:
        """The answer as a stream of batches: memory stays the same however many rows it has. An answer that breaks off
        raises at that point."""
        return arrow.reader(self._ask("arrow"), "Arrow data")

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """What DuckDB, Polars, pandas and pyarrow take rows from: `duckdb.sql("SELECT * FROM result")`."""
        stream: Any = self.to_arrow_reader()
        capsule: object = stream.__arrow_c_stream__(requested_schema)
        return capsule

    @ended_with_errors
    def iter_rows(self) -> Rows:
        """The rows as tuples of plain Python values, as they come: memory stays the same. Needs no package. NULL is None,
        times are :class:`~trainprobe.Timestamp`."""
        return Rows(self._ask("json-rows"))

    @ended_with_errors
    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples of plain Python values, as of :meth:`iter_rows`."""
        return list(self.iter_rows())

    def fetchone(self) -> tuple[Any, ...] | None:
        """The first row, or None."""
        return next(iter(self._first(1)[1]), None)

    @ended_with_errors
    def to_dicts(self) -> list[dict[str, Any]]:
        """All rows as dictionaries by column, with plain Python values."""
        rows = self.iter_rows()
        names = [column.name for column in rows.columns]
        return [dict(zip(names, row)) for row in rows]

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self._described()]

    @property
    def types(self) -> dict[str, str]:
        """The types of its columns: int, float, bool, text, timestamp and others."""
        return {column.name: column.kind for column in self._described()}

    @ended_with_errors
    def __len__(self) -> int:
        """The number of rows. The collector counts them; they are not fetched."""
        counted = f"SELECT COUNT(*) FROM (\n{self.sql.strip().rstrip(';')}\n)"
        try:
            rows = Rows(self._target.query(counted, "json-rows", self._options()))
            return int(next(iter(rows))[0])
        except SqlError:
            # EXPLAIN and SHOW can't be in a FROM. Any other error is raised again here.
            return sum(1 for _ in self.iter_rows())

    def __bool__(self) -> bool:
        """True, also for an answer without rows."""
        return True

    @ended_with_errors
    def explain(self) -> str:
        """How the query is run: DataFusion's plans."""
        rows = Rows(self._target.query(f"EXPLAIN {self.sql}", "json-rows", self._options()))
        return "\n\n".join(f"{kind}\n{str(plan).rstrip()}" for kind, plan in rows)

    @ended_with_errors
    def plot(self, kind: str | None = None, x: str | None = None, y: str | list[str] | None = None) -> Plot:
        """A picture of the answer, an SVG: a notebook shows it, and `str()` is its text. Of more than 100,000 rows it has the
        first ones and says so.

        :param kind: "line" or "bar"; the first where the column x is a number or a time.
        :param x: the column along; the first one.
        :param y: one or more columns of numbers; all others that are.
        """
        rows = self.iter_rows()
        found = list(itertools.islice(rows, Plot.MOST + 1))
        rows.close()
        return Plot.of(rows.columns, found, kind, x, y)

    @property
    def endpoint(self) -> str | None:
        """The endpoint, as the command takes it."""
        return self._target.endpoint

    def repeated(self, every: float, limit: int | None = None, apart: bool = False) -> Command:
        """Begins to repeat the query every `every` seconds, for :class:`~trainprobe.Watch`.

        :param limit: rows after which each answer is cut.
        :param apart: as :class:`~trainprobe.command.Command` has it.
        """
        cut = ["--limit-rows", str(limit)] if limit is not None else []
        return self._target.query(self.sql, "json-rows", ["--watch", f"{every}s", *cut, *self._options()], apart)

    def __repr__(self) -> str:
        columns, rows, more = self._first(SHOWN)
        return display.text(columns, rows, more)

    def _repr_html_(self) -> str:
        columns, rows, more = self._first(SHOWN)
        return display.html(columns, rows, more)

    @ended_with_errors
    def _first(self, number: int) -> tuple[list[Column], list[tuple[Any, ...]], bool]:
        """The first rows, and whether there are more."""
        rows = self.iter_rows()
        first = list(itertools.islice(rows, number + 1))
        rows.close()
        return rows.columns, first[:number], len(first) > number

    def _described(self) -> list[Column]:
        if self._columns is None:
            rows = self.iter_rows()
            rows.close()
            self._columns = rows.columns
        return self._columns

    def _options(self) -> list[str]:
        return [*self._parameters, *self._limits.options()]

    def _ask(self, output: str) -> Command:
        return self._target.query(self.sql, output, self._options())
