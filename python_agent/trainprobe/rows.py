"""Rows as plain Python values, from `--format json-rows`: a line of columns, an array a row, a line with their number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

from trainprobe.command import Command
from trainprobe.errors import Broken
from trainprobe.timestamps import Timestamp

_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
_Convert = Callable[[Any], Any]


class Column:
    """A column of an answer.

    :ivar name: its name. A second column of one name has `_2` behind it.
    :ivar kind: its type: int, float, bool, text, timestamp, duration, date, time, decimal, binary, list, struct, map
        or null.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        self.name: str = description["name"]
        self.kind: str = description["type"]
        self.convert = _conversion(description)

    def __repr__(self) -> str:
        return f"{self.name}: {self.kind}"


class Rows:
    """An answer that is being read. Iterate over it for rows as tuples; memory stays the same however many there are.

    :param command: a command that writes this format.
    :ivar columns: the columns, known before the first row.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self._lines = command.lines()
        self.columns: list[Column] = []
        self.more = False
        # A line without its end is from a command that died; reading on raises its error.
        first = next((line for line in self._lines if line.endswith(b"\n")), None)
        if first is None:
            raise Broken("the probe command wrote no answer")
        self.columns = [Column(each) for each in json.loads(first)["columns"]]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        conversions = [(index, column.convert) for index, column in enumerate(self.columns) if column.convert]
        whole = False
        for line in self._lines:
            if not line.endswith(b"\n"):
                continue
            if line[:1] != b"[":
                whole = True
                continue
            row = json.loads(line)
            for index, convert in conversions:
                if row[index] is not None:
                    row[index] = convert(row[index])
            yield tuple(row)
        if not whole:
            raise Broken("the answer broke off before its last row")

    def close(self) -> None:
        """Stops reading; the query ends."""
        self._lines.close()  # type: ignore[attr-defined]
        self._command.end()


def answers(command: Command) -> Iterator[tuple[list[Column], list[tuple[Any, ...]]]]:
    """One answer after another, from a command that repeats its query."""
    columns: list[Column] = []
    rows: list[tuple[Any, ...]] = []
    for line in command.lines():
        if not line.endswith(b"\n"):
            continue
        content = json.loads(line)
        if isinstance(content, list):
            pairs = zip(content, columns)
            rows.append(tuple(c.convert(v) if c.convert and v is not None else v for v, c in pairs))
        elif "columns" in content:
            columns, rows = [Column(each) for each in content["columns"]], []
        else:
            yield columns, rows


def _conversion(description: dict[str, Any]) -> _Convert | None:
    """The conversion from a JSON value to a Python value; None where these are the same."""
    kind = description["type"]
    if kind == "timestamp":
        factor = _NANOSECONDS[description["unit"]]
        # A time without a zone is in UTC, as in the command's other formats.
        return lambda value: _in_time(value * factor)
    if kind == "duration":
        factor = _NANOSECONDS[description["unit"]]
        # Python has durations to the microsecond.
        return lambda value: timedelta(microseconds=value * factor // 1000)
    if kind == "list":
        return _list_of(_conversion(description["item"]))
    if kind == "struct":
        return _struct_of([(field["name"], _conversion(field)) for field in description["fields"]])
    simple: dict[str, _Convert] = {
        "date": date.fromisoformat,
        # Python has times to the microsecond.
        "time": lambda text: time.fromisoformat(text[:15]),
        "decimal": Decimal,
        "binary": bytes.fromhex,
    }
    return simple.get(kind)


def _in_time(nanoseconds: int) -> Timestamp | int:
    try:
        return Timestamp.of(nanoseconds)
    except OverflowError:
        return nanoseconds


def _list_of(item: _Convert | None) -> _Convert | None:
    if item is None:
        return None
    return lambda values: [None if value is None else item(value) for value in values]


def _struct_of(fields: list[tuple[str, _Convert | None]]) -> _Convert:
    def convert(values: list[Any]) -> dict[str, Any]:
        pairs = zip(fields, values)
        return {name: each(value) if each and value is not None else value for (name, each), value in pairs}

    return convert
