"""Plots an answer: lines or bars as an SVG, which needs no package."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from trainprobe.display import value
from trainprobe.errors import UsageError
from trainprobe.picture import Picture
from trainprobe.rows import Column

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 280, 70, 46, 24
_COLOURS = ("#3366cc", "#dc6900", "#109618", "#990099", "#0099a8", "#dd4477")
_NUMBERS = ("int", "float")


class Plot(Picture):
    """A picture. A notebook shows it; `str(plot)` is the SVG, and :meth:`save` writes it to a file."""

    #: The most rows that are drawn.
    MOST = 100_000

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        rows: Sequence[Sequence[Any]],
        kind: str | None = None,
        x: str | None = None,
        y: str | list[str] | None = None,
    ) -> Plot:
        """The picture of these rows, as :meth:`trainprobe.Result.plot` describes it.

        Raises UsageError for a column that is not there, and where no column has numbers.
        """
        along, up, kind = axes(columns, kind, x, y)
        names = [column.name for column in columns]
        more = len(rows) > cls.MOST
        rows = rows[: cls.MOST]
        series = [[finite(row[at]) for row in rows] for at in up]
        labels = [row[along] for row in rows]
        titles = [names[at] for at in up]
        draw = _lines if kind == "line" else _bars
        caption = names[along] + (f" (the first {cls.MOST} rows; there are more)" if more else "")
        return cls(_frame(draw(labels, series), titles, caption))


def axes(
    columns: Sequence[Column],
    kind: str | None = None,
    x: str | None = None,
    y: str | list[str] | None = None,
    by: int | None = None,
) -> tuple[int, list[int], str]:
    """The index of the column along the x axis, those of the columns along the y axis, and whether to draw lines or bars.

    :param by: the index of a column that is neither.

    Raises UsageError for a column that is not there, and where no column has numbers.
    """
    names = [column.name for column in columns]
    along = _index(names, x) if x else 0
    wanted = [y] if isinstance(y, str) else y
    up = [_index(names, name) for name in wanted] if wanted else []
    up = up or [at for at, column in enumerate(columns) if at not in (along, by) and column.kind in _NUMBERS]
    if not up and columns[along].kind in _NUMBERS:
        up = [along]
    for at in up:
        if columns[at].kind not in _NUMBERS:
            raise UsageError(f"column '{names[at]}' has no numbers to draw", "choose another with y=…")
    if not up:
        raise UsageError("the answer has no column of numbers to draw")
    kind = kind or ("line" if columns[along].kind in (*_NUMBERS, "timestamp") else "bar")
    if kind not in ("line", "bar"):
        raise UsageError(f"there is no plot '{kind}'", "kind is 'line' or 'bar'")
    return along, up, kind


def _index(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise UsageError(f"the answer has no column '{name}'", f"it has {', '.join(names)}")
    return names.index(name)


def finite(found: Any) -> float | None:
    """A value as a number; None for NULL, NaN and infinities, which can't be drawn."""
    return float(found) if found is not None and math.isfinite(found) else None


def position(found: Any) -> float | None:
    """The position of a value on the x axis: a number, or the seconds of a time."""
    return found.timestamp() if isinstance(found, datetime) else finite(found)


def _range(values: Sequence[float | None], with_zero: bool) -> tuple[float, float]:
    known = [found for found in values if found is not None] or [0.0]
    low, high = min(known), max(known)
    if with_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _up(number: float, low: float, high: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - number) / (high - low)


def _across(number: float, low: float, high: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 10) * (number - low) / (high - low)


def _lines(labels: Sequence[Any], series: Sequence[Sequence[float | None]]) -> str:
    xs = [position(label) for label in labels]
    left, right = _range(xs, False)
    low, high = _range([y for ys in series for y in ys], True)
    parts = [_axis(low, high)]
    for number, ys in enumerate(series):
        # A gap where there is no value.
        path, pen_down = [], False
        for x, y in zip(xs, ys):
            if x is None or y is None:
                pen_down = False
                continue
            path.append(f"{'L' if pen_down else 'M'}{_across(x, left, right):.1f} {_up(y, low, high):.1f}")
            pen_down = True
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    ends = [label for label, x in zip(labels, xs) if x is not None] or [0]
    first, last = min(ends, key=lambda end: position(end) or 0.0), max(ends, key=lambda end: position(end) or 0.0)
    parts.append(_text(_LEFT, _HEIGHT - _BOTTOM + 16, value(first)))
    parts.append(_text(_WIDTH - 10, _HEIGHT - _BOTTOM + 16, value(last), "end"))
    return "".join(parts)


def _bars(labels: Sequence[Any], series: Sequence[Sequence[float | None]]) -> str:
    low, high = _range([y for ys in series for y in ys], True)
    parts = [_axis(low, high)]
    room = (_WIDTH - _LEFT - 10) / max(1, len(labels))
    width = room * 0.8 / len(series)
    for index, label in enumerate(labels):
        start = _LEFT + room * (index + 0.1)
        for number, ys in enumerate(series):
            found = ys[index]
            if found is None:
                continue
            top, bottom = sorted((_up(found, low, high), _up(0.0, low, high)))
            parts.append(
                f'<rect x="{start + width * number:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{bottom - top:.1f}" fill="{_COLOURS[number % len(_COLOURS)]}">'
                f"<title>{html.escape(f'{value(label)}: {found:.6g}')}</title></rect>"
            )
        if len(labels) <= 24:
            short = value(label)
            short = short if len(short) * 7 < room else f"…{short[-max(1, int(room / 7) - 1) :]}"
            parts.append(_text(start + room * 0.4, _HEIGHT - _BOTTOM + 16, short, "middle"))
    return "".join(parts)


def _axis(low: float, high: float) -> str:
    """Four lines across with their numbers."""
    parts = []
    for step in range(5):
        number = low + (high - low) * step / 4
        y = _up(number, low, high)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - 10}" y2="{y:.1f}" stroke="#8884"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{number:.4g}", "end"))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _frame(inner: str, titles: Sequence[str], along: str) -> str:
    legend, x = [], float(_LEFT)
    for number, title in enumerate(titles):
        legend.append(f'<rect x="{x}" y="6" width="10" height="10" fill="{_COLOURS[number % len(_COLOURS)]}"/>')
        legend.append(_text(x + 14, 15, title))
        x += 14 + 8 * len(title) + 16
    caption = _text((_LEFT + _WIDTH) / 2, _HEIGHT - 8, along, "middle")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor">{"".join(legend)}{inner}{caption}</svg>'
    )
