"""The tables of a run, with columns, units and sentences, as the tables' own declarations have them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainprobe import display
from trainprobe.command import Command
from trainprobe.errors import NoTableError, UsageError
from trainprobe.result import SHOWN, Result
from trainprobe.rows import Column, Rows
from trainprobe.target import Target


@dataclass(frozen=True)
class Declared:
    """A column as a table declares it.

    :ivar name: its name.
    :ivar type: its type in SQL's words.
    :ivar nullable: whether it can be NULL, which means not measured.
    :ivar unit: its unit, such as s or MB; empty without one.
    :ivar what: a sentence.
    """

    name: str
    type: str
    nullable: bool
    unit: str
    what: str


class Table(Result):
    """All rows of one table or view. `run["python.steps"].df()` has them; the columns have units and sentences.

    :ivar name: its full name.
    :ivar what: a sentence.
    """

    def __init__(self, target: Target, name: str, what: str) -> None:
        super().__init__(target, f"SELECT * FROM {name}")
        self.name, self.what = name, what
        self._declared: list[Declared] | None = None

    @property
    def declared(self) -> list[Declared]:
        """Its columns with types, units and sentences."""
        if self._declared is None:
            rows = _rows(self._target, self.name)
            self._declared = [
                Declared(name, kind, nullable, unit or "", what) for name, kind, nullable, unit, what in rows
            ]
        return self._declared

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.declared]

    @property
    def units(self) -> dict[str, str]:
        """The units of those columns that have one."""
        return {column.name: column.unit for column in self.declared if column.unit}

    def __repr__(self) -> str:
        columns = [Column({"name": name, "type": "text"}) for name in ("column", "type", "unit", "what")]
        rows = [(column.name, column.type, column.unit, column.what) for column in self.declared]
        lines = display.text(columns, rows).rpartition("\n")[0]
        return f"{self.name}: {self.what}\n\n{lines}"

    def _repr_html_(self) -> str:
        columns, rows, more = self._first(SHOWN)
        units = [self.units.get(column.name, "") for column in columns]
        return f"<p><b>{self.name}</b>: {self.what}</p>" + display.html(columns, rows, more, units)


class Tables(Mapping[str, Table]):
    """The tables and views of a run by their full names, those that its program declared among them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[str, Table] | None = None
        self._counts: dict[str, int | None] = {}

    def _load(self) -> dict[str, Table]:
        found: dict[str, Table] = {}
        for name, rows, what in _rows(self._target):
            found[name], self._counts[name] = Table(self._target, name, what), rows
        self._known = found
        return found

    def __getitem__(self, name: str) -> Table:
        known = self._known or self._load()
        if name not in known:
            # A program declares tables while it runs.
            known = self._load()
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, 1) or [full for full in known if full.endswith(f".{name}")][:1]
        raise NoTableError(
            f"there is no table '{name}'", f"did you mean {near[0]}?" if near else "run.tables lists them"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._known or self._load())

    def __len__(self) -> int:
        return len(self._known or self._load())

    def _shown(self) -> tuple[list[Column], list[tuple[Any, ...]]]:
        tables = self._load()
        columns = [Column({"name": n, "type": k}) for n, k in (("table", "text"), ("rows", "int"), ("what", "text"))]
        return columns, [(name, self._counts[name], table.what) for name, table in tables.items()]

    def __repr__(self) -> str:
        return display.text(*self._shown())

    def _repr_html_(self) -> str:
        return display.html(*self._shown())


def _rows(target: Target, *name: str) -> list[tuple[Any, ...]]:
    words = target.words("tables", "--format", "json-rows", *name)
    return list(Rows(Command(words, None, target.environment, UsageError)))
