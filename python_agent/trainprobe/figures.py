"""Makes the charts and the table of a live view from an answer. Numbers go to the browser in binary and not as text."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from trainprobe.display import row_count, value
from trainprobe.errors import UsageError
from trainprobe.plot import axes, finite, position
from trainprobe.rows import Column

#: Rows that are drawn at most.
MAX_ROWS = 10_000
#: Lines, or bars beside each other, that are drawn at most.
MAX_SERIES = 16
#: Charts of columns beside each other.
MAX_CHARTS = 6
#: Rows of the table.
MAX_LISTED = 20

_NUMBERS = ("int", "float", "decimal")


class Figure:
    """Charts, a table and notes, as `live.js` takes them.

    :ivar content: the part that becomes JSON. Where a chart has numbers it has the index of a buffer.
    :ivar buffers: numbers of 64 bits in the order of this machine, NaN where there is none.
    """

    def __init__(self) -> None:
        self.content: dict[str, Any] = {"charts": [], "table": None, "notes": []}
        self.buffers: list[bytes] = []

    def chart(self, kind: str, title: str, **more: Any) -> dict[str, Any]:
        """Adds a chart: lines, bars, or bars whose series are stacked."""
        made: dict[str, Any] = {"kind": kind, "title": title, "unit": "", "series": [], **more}
        self.content["charts"].append(made)
        return made

    def numbers(self, values: Iterable[float | None]) -> int:
        """Adds a buffer and returns its index."""
        self.buffers.append(array("d", [float("nan") if each is None else each for each in values]).tobytes())
        return len(self.buffers) - 1

    def table(self, names: Sequence[str], units: Sequence[str], right: Sequence[bool], rows: list[list[str]]) -> None:
        """Sets the table, whose cells are text. `right` are the columns of numbers."""
        columns = [{"name": n, "unit": u, "right": r} for n, u, r in zip(names, units, right)]
        self.content["table"] = {"columns": columns, "rows": rows}

    def note(self, text: str) -> None:
        """Adds a line below the charts."""
        self.content["notes"].append(text)


def of_answer(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    kind: str | None = None,
    x: str | None = None,
    y: str | list[str] | None = None,
    by: str | None = None,
) -> Figure:
    """Draws any answer by the rules of :meth:`trainprobe.Result.plot`, with a line for each value of a column `by`, which is
    `rank` where the answer has it and it is not along. Where `y` does not say what is drawn together, each column has a chart
    of its own, because their units differ."""
    figure = Figure()
    listed = [[value(found) for found in row] for row in rows[:MAX_LISTED]]
    names = [column.name for column in columns]
    figure.table(names, [""] * len(names), [column.kind in _NUMBERS for column in columns], listed)
    figure.note(row_count(len(listed), len(rows) > MAX_LISTED))
    if len(rows) > MAX_ROWS:
        figure.note(f"the first {MAX_ROWS} rows are drawn; there are more")
        rows = rows[:MAX_ROWS]
    grouped = _grouping(names, rows, x, by)
    if x is None and grouped == 0:
        # The ranks are in the first column, so the next one is the x axis.
        x = next((column.name for column in columns[1:] if column.kind in ("int", "float", "timestamp")), None)
        grouped = grouped if x else None
    try:
        along, up, found_kind = axes(columns, kind, x, y, grouped)
    except UsageError:
        if kind or x or y or by:
            raise
        # Text alone is shown as a table.
        return figure
    if kind is None and grouped is None and names[along] == "rank":
        found_kind = "bar"
    together = [up] if y is not None else [[at] for at in up]
    if len(together) > MAX_CHARTS:
        figure.note(f"{MAX_CHARTS} of {len(together)} columns are drawn; y=… chooses others")
    for indexes in together[:MAX_CHARTS]:
        title = names[indexes[0]] if len(indexes) == 1 else ""
        if found_kind == "bar":
            label = names[along]
            labels = [f"{label} {value(row[along])}" if label == "rank" else value(row[along]) for row in rows]
            chart = figure.chart("bar", title, labels=labels)
            for at in indexes[:MAX_SERIES]:
                chart["series"].append({"name": names[at], "y": figure.numbers(finite(row[at]) for row in rows)})
            continue
        chart = figure.chart("line", title, x=names[along], time=columns[along].kind == "timestamp")
        _lines(figure, chart, names, rows, along, indexes, grouped)
    return figure


def _lines(
    figure: Figure,
    chart: dict[str, Any],
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    along: int,
    indexes: Sequence[int],
    grouped: int | None,
) -> None:
    """A line for each group and column."""
    groups: dict[Any, list[Sequence[Any]]] = {}
    for row in rows:
        groups.setdefault(None if grouped is None else value(row[grouped]), []).append(row)
    lines = [(key, at) for key in groups for at in indexes]
    for key, at in lines[:MAX_SERIES]:
        of_group = f"{names[grouped]} {key}" if grouped is not None else names[at]
        name = f"{of_group}, {names[at]}" if grouped is not None and len(indexes) > 1 else of_group
        _line(figure, chart, name, [(position(row[along]), finite(row[at])) for row in groups[key]])
    if len(lines) > MAX_SERIES:
        figure.note(f"{MAX_SERIES} of {len(lines)} lines are drawn")


def _grouping(names: Sequence[str], rows: Sequence[Sequence[Any]], x: str | None, by: str | None) -> int | None:
    """The index of the column for each of whose values there is a line."""
    if by is not None:
        if by not in names:
            raise UsageError(f"the answer has no column '{by}'", f"it has {', '.join(names)}")
        return names.index(by)
    if "rank" not in names or x == "rank":
        return None
    at = names.index("rank")
    repeats = len({row[at] for row in rows}) < len(rows)
    # One row a rank: the ranks are the x axis.
    return at if repeats or (at != 0 and x is not None) else None


def _line(figure: Figure, chart: dict[str, Any], name: str, points: list[tuple[float | None, float | None]]) -> None:
    # Points are in the order of x, whatever the order of the rows.
    known = sorted(((at, up) for at, up in points if at is not None), key=lambda point: point[0])
    xs, ys = figure.numbers(at for at, _ in known), figure.numbers(up for _, up in known)
    chart["series"].append({"name": name, "x": xs, "y": ys})


#: The columns of python.steps for the parts of a step, and their names in a legend.
_PARTS = {
    f"{part}_time": part
    for part in ("data", "forward", "backward", "optimizer", "comm", "validation", "checkpoint", "other")
}
#: Steps over which the mean of the parts is taken.
_MEAN_OF = 50

#: The newest steps; a part of a text, before which stands what else the rows have to be.
STEPS = f"""
SELECT step, rank, pid, world_size, duration,
       samples / NULLIF(duration - COALESCE(validation_time, 0) - COALESCE(checkpoint_time, 0), 0) AS rate,
       {", ".join(_PARTS)}
FROM python.steps
WHERE step > (SELECT MAX(step) FROM python.steps) - $last AND {{ranks}}
ORDER BY step
"""


def of_steps(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> Figure:
    """Draws an answer to STEPS: step time and throughput as a line a rank, the parts of a step as a bar a rank."""
    figure = Figure()
    index_of = {column.name: at for at, column in enumerate(columns)}
    ranks: dict[str, list[Sequence[Any]]] = {}
    for row in sorted(
        rows, key=lambda row: (row[index_of["rank"]] is None, row[index_of["rank"]], row[index_of["pid"]])
    ):
        rank = row[index_of["rank"]]
        ranks.setdefault(f"pid {row[index_of['pid']]}" if rank is None else f"rank {rank}", []).append(row)
    if len(ranks) > MAX_SERIES:
        figure.note(f"{MAX_SERIES} of {len(ranks)} processes are drawn")
        ranks = dict(list(ranks.items())[:MAX_SERIES])
    largest = max((row[index_of["world_size"]] or 0 for row in rows), default=0)
    if largest > len(ranks):
        figure.note(f"{len(ranks)} of {largest} ranks: run.live(ranks=[…]) chooses others")
    for name, title, unit in (("duration", "Step time", "s"), ("rate", "Throughput", "samples/s")):
        if name == "rate" and all(row[index_of[name]] is None for row in rows):
            figure.note("throughput is not measured: the number of samples in a step is not known")
            continue
        chart = figure.chart("line", title, unit=unit, x="step", time=False)
        for rank, of_rank in ranks.items():
            _line(figure, chart, rank, [(row[index_of["step"]], finite(row[index_of[name]])) for row in of_rank])
    _parts(figure, index_of, ranks)
    newest = [(rank, of_rank[-1]) for rank, of_rank in ranks.items()]
    shown = [
        [rank, str(row[index_of["step"]]), *(_short(row[index_of[name]]) for name in ("duration", "rate", *_PARTS))]
        for rank, row in newest
    ]
    names = ["", "step", "duration", "throughput", *_PARTS.values()]
    figure.table(names, ["", "", "s", "samples/s", *["s"] * len(_PARTS)], [False, *[True] * (len(names) - 1)], shown)
    return figure


def _parts(figure: Figure, index_of: dict[str, int], ranks: dict[str, list[Sequence[Any]]]) -> None:
    steps = min(_MEAN_OF, max((len(of_rank) for of_rank in ranks.values()), default=0))
    title = f"Parts of a step, mean of {steps}" if steps > 1 else "Parts of a step"
    chart = figure.chart("stack", title, unit="s", labels=list(ranks))
    for name, part in _PARTS.items():
        means = [_mean([row[index_of[name]] for row in of_rank[-_MEAN_OF:]]) for of_rank in ranks.values()]
        if any(mean is not None for mean in means):
            chart["series"].append({"name": part, "y": figure.numbers(means)})


def _mean(values: list[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None


def _short(found: Any) -> str:
    return value(found) if found is None else f"{found:.4g}"
