"""Pages of commands, which also have rows: hang, crash, stack, compare, diagnose, bench; and flame graphs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainprobe import arrow, display
from trainprobe.command import Command, ended_with_errors
from trainprobe.errors import CommandError, ProbeError, UsageError
from trainprobe.picture import Picture
from trainprobe.rows import Rows
from trainprobe.target import Target

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class Text:
    """A text for people, which a terminal and a notebook show as it is.

    :ivar text: the text.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text.rstrip("\n")

    def _repr_html_(self) -> str:
        return display.page(self.text)


class Page(Text):
    """The output of a command of `probe`: `str()` and a notebook show the page for people, and its rows are available like
    those of a query. The rows are fetched when a method asks for them, so they can be newer than the page.
    """

    def __init__(self, words: list[str], environment: dict[str, str], failed: type[ProbeError] = CommandError) -> None:
        self._words, self._environment, self._failed = words, environment, failed
        super().__init__(self._ask("table").read().decode())

    @classmethod
    def about(cls, target: Target, name: str, *arguments: str) -> Page:
        """The page of one command about a run."""
        return cls(target.words(name, *arguments), target.environment)

    def _ask(self, output: str) -> Command:
        return Command([*self._words, "--format", output], None, self._environment, self._failed)

    @ended_with_errors
    def df(self) -> pandas.DataFrame:
        """Its rows as a DataFrame of pandas."""
        arrow.needed("pandas", "df()", "pyarrow")
        return arrow.to_pandas(self.to_arrow_table())

    @ended_with_errors
    def pl(self) -> polars.DataFrame:
        """Its rows as a DataFrame of Polars."""
        return arrow.to_polars(self._ask("arrow"))

    @ended_with_errors
    def to_arrow_table(self) -> pyarrow.Table:
        """Its rows as a table of pyarrow."""
        return arrow.reader(self._ask("arrow"), "Arrow data").read_all()

    @ended_with_errors
    def to_dicts(self) -> list[dict[str, Any]]:
        """Its rows as dictionaries of plain Python values."""
        rows = Rows(self._ask("json-rows"))
        names = [column.name for column in rows.columns]
        return [dict(zip(names, row)) for row in rows]


class Diagnosis(Text):
    """Why steps take as long as they do: `probe diagnose`.

    :ivar text: the page.
    :ivar findings: the findings, the most expensive first, as dictionaries.
    """

    def __init__(self, target: Target, steps: str | None) -> None:
        window = ["--steps", steps] if steps else []
        super().__init__(target.run("diagnose", *window))
        self.whole: dict[str, Any] = json.loads(target.run("diagnose", "--json", *window))
        self.findings: list[dict[str, Any]] = self.whole["findings"]


class Capture(Text):
    """What some steps did, operator by operator: `probe capture`.

    :ivar text: the page.
    :ivar name: its name in the tables: rows of rank 0 have the capture `f"{name}/rank0"`.
    """

    def __init__(self, target: Target, steps: int, ranks: Sequence[int] | None, record: Sequence[str]) -> None:
        options = ["--steps", str(steps), "--with", ",".join(record) or "none"]
        options += ["--rank", ",".join(map(str, ranks))] if ranks is not None else []
        super().__init__(target.run("capture", *options))
        self.name = self.text.partition(":")[0]


class Benchmark(Text):
    """How long expressions take in the training process: `probe bench`.

    :ivar text: the page.
    :ivar timings: the timings, as dictionaries: `median`, `low` and `high` (its 95 % interval), `p5`, `p95` and `p99` in
        seconds a call, and `samples`. A value that has too few samples is None.
    :ivar compared: the second expression against the first: `ratio` of the medians, its interval and a `verdict`: faster,
        slower, same, or unknown.
    :ivar waited: seconds that training stood still for it.
    """

    def __init__(self, target: Target, expressions: Sequence[str], rank: int | None, seconds: float) -> None:
        first, *others = expressions
        options = ["--json", "--seconds", str(seconds)]
        options += [word for other in others for word in ("--against", other)]
        options += ["--rank", str(rank)] if rank is not None else []
        self.whole: dict[str, Any] = json.loads(target.run("bench", *options, "--", first))
        super().__init__(self.whole["text"])
        self.timings: list[dict[str, Any]] = self.whole["timings"]
        self.compared: list[dict[str, Any]] = self.whole["compared"]
        self.waited: float = self.whole["training_waited"]


class FlameGraph(Picture):
    """Where time was spent, by stack. A notebook shows it; `str()` is the SVG."""

    @classmethod
    def of(cls, target: Target, seconds: float, rank: int | None, by_rank: bool, idle: bool) -> FlameGraph:
        """Samples the processes for `seconds` and draws their stacks."""
        if seconds <= 0:
            raise UsageError("a flame graph takes more than no time", "flamegraph(seconds=10)")
        options = ["--duration", f"{seconds}s", "--format", "svg"]
        options += ["--rank", str(rank)] if rank is not None else []
        options += ["--by-rank"] if by_rank else []
        options += ["--idle"] if idle else []
        return cls(target.run("flamegraph", *options))


def window(steps: tuple[int | None, int | None] | None) -> str | None:
    """A window of steps as commands take it: (100, 200) is 100..200, both included; None is open."""
    if steps is None:
        return None
    first, last = steps
    return f"{'' if first is None else first}..{'' if last is None else last}"
