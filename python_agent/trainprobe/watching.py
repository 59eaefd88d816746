"""The same question again and again: `run.watch`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainprobe import arrow, display
from trainprobe.command import Command
from trainprobe.rows import Column, answers

if TYPE_CHECKING:
    import pandas


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
    """Answers as they come. It ends with :meth:`close`, when it is dropped, or at the end of a `with`; when the run ends it
    raises :class:`~trainprobe.Unreachable`."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._answers = answers(command)

    def __next__(self) -> Answer:
        try:
            columns, rows = next(self._answers)
        except BaseException:
            self.close()
            raise
        return Answer(columns, rows)

    def close(self) -> None:
        """Ends it."""
        self._command.end()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
