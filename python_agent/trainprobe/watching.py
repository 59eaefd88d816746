"""Repeats a query: `run.watch`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainprobe import arrow, display
from trainprobe.command import Command
from trainprobe.figures import MAX_ROWS, Figure, of_answer
from trainprobe.frames import installed
from trainprobe.listing import runs
from trainprobe.result import Result
from trainprobe.rows import Column, answers

if TYPE_CHECKING:
    import pandas

    from trainprobe.live import Live


class Answer:
    """One answer of a watch.

    :ivar columns: the names of its columns.
    :ivar rows: its rows, as tuples of plain Python values.
    """

    def __init__(self, columns: Sequence[Column], rows: list[tuple[Any, ...]]) -> None:
        self._columns, self.rows = columns, rows
        self.columns = [column.name for column in columns]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Its rows as dictionaries by column."""
        return [dict(zip(self.columns, row)) for row in self.rows]

    def df(self) -> pandas.DataFrame:
        """Its rows as a DataFrame of pandas."""
        frame: pandas.DataFrame = arrow.needed("pandas", "df()").DataFrame(self.rows, columns=self.columns)
        return frame

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return display.text(self._columns, self.rows)

    def _repr_html_(self) -> str:
        return display.html(self._columns, self.rows)


class Watch(Iterator[Answer]):
    """Answers as they come, from when the first one is asked for. It ends with :meth:`close`, when it is dropped, or at the end
    of a `with`; when the run ends it raises :class:`~trainprobe.Unreachable`. In a notebook it shows itself as a live view.

    :param result: the query.
    :param every: seconds from one to the next; an answer that takes longer than that delays the next.
    :param viewed: whether it is for a live view: the interrupt button does not reach it, and it has only the rows that are drawn.
    """

    def __init__(self, result: Result, every: float, viewed: bool = False) -> None:
        self._result, self.every, self._viewed = result, every, viewed
        self.sql = result.sql
        self._command: Command | None = None
        self._answers: Iterator[tuple[list[Column], list[tuple[Any, ...]]]] = iter(())
        self._killed = False

    def __next__(self) -> Answer:
        try:
            if self._command is None:
                limit = MAX_ROWS + 1 if self._viewed else None
                self._command = self._result.repeated(self.every, limit, apart=self._viewed)
                self._answers = answers(self._command)
                if self._killed:
                    self._command.kill()
            columns, rows = next(self._answers)
        except BaseException:
            self.close()
            raise
        return Answer(columns, rows)

    def close(self) -> None:
        """Ends the watch."""
        if self._command is not None:
            self._command.end()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def live(
        self,
        kind: str | None = None,
        x: str | None = None,
        y: str | list[str] | None = None,
        by: str | None = None,
    ) -> Live:
        """A live view of the answers, which a notebook shows: a chart and a table that follow the run. Needs anywidget.

        :param kind: "line" or "bar"; the first where the column x is a number or a time.
        :param x: the column along; the first one.
        :param y: one or more columns of numbers; all others that are.
        :param by: a line for each value of this column; `rank` where the answer has it.
        """

        def draw(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> Figure:
            return of_answer(columns, rows, kind, x, y, by)

        return view(self, draw, " ".join(self.sql.split()))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Any:
        if installed("anywidget"):
            return self.live()._repr_mimebundle_(include=include, exclude=exclude)
        return {"text/plain": f"{self!r}\nIterate over it, or see it live: pip install anywidget"}

    def __repr__(self) -> str:
        return f"<watch of {self.name}, every {self.every:g} s>"

    # The methods below are for a live view, which follows in a thread of its own.

    @property
    def name(self) -> str:
        """The run's name."""
        return self._result.endpoint or "the run"

    def again(self) -> Watch:
        """A new watch of the same query, which the interrupt button does not reach."""
        return Watch(self._result, self.every, viewed=True)

    def kill(self) -> None:
        """Ends the watch from another thread, whatever it waits for."""
        self._killed = True
        if self._command is not None:
            self._command.kill()

    def once(self) -> Answer:
        """A single answer, from the run's directory if the run has ended."""
        rows = self._result.iter_rows()
        try:
            return Answer(rows.columns, list(itertools.islice(rows, MAX_ROWS + 1)))
        finally:
            rows.close()

    def state(self) -> str | None:
        """Whether the run is live, ended or lost; None where that can't be known from here."""
        endpoint = self._result.endpoint or ""
        if os.path.isdir(endpoint):
            return "ended"
        return next((run["state"] for run in runs() if run["run"] == endpoint), None)


def view(watch: Watch, draw: Any, title: str) -> Live:
    """A live view of a watch. Raises Missing without anywidget."""
    arrow.needed("anywidget", "a live view")
    from trainprobe.live import Live

    return Live(watch, draw, title)
