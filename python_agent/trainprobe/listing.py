"""The recorded runs of this user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainprobe import arrow, display
from trainprobe.command import Command
from trainprobe.rows import Column, Rows

if TYPE_CHECKING:
    import pandas


class Runs(list[dict[str, Any]]):
    """Runs, each a dictionary; a terminal and a notebook show them as a table.

    >>> probe.runs().df()["run"].to_list()
    ['tiny@1']
    """

    def __init__(self, columns: list[Column], rows: list[tuple[Any, ...]]) -> None:
        self._columns, self._rows = columns, rows
        names = [column.name for column in columns]
        super().__init__(dict(zip(names, row)) for row in rows)

    def df(self) -> pandas.DataFrame:
        """The runs as a DataFrame of pandas, a row each.

        :raises Missing: pandas is not installed.
        """
        frame = arrow.needed("pandas", "df()").DataFrame
        return frame(list(self), columns=[column.name for column in self._columns])

    def __repr__(self) -> str:
        return display.text(self._columns, self._rows)

    def _repr_html_(self) -> str:
        return display.html(self._columns, self._rows)


def runs() -> Runs:
    """The recorded runs of this user, newest last, the live ones among them, as `probe runs` lists them: run, state (live,
    ended or lost), started, seconds, last_step, ranks, exit_status, bytes and command.

    >>> [(run["run"], run["state"]) for run in probe.runs()]
    [('tiny@1', 'live')]
    """
    rows = Rows(Command(["runs", "--format", "json-rows"]))
    return Runs(rows.columns, list(rows))
