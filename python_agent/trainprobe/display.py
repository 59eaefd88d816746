"""Rows for people: aligned text for a terminal, a table for a notebook."""

from __future__ import annotations

import html as escaping
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from trainprobe.rows import Column

#: Characters of the longest value.
_WIDEST = 60
_STYLE = "font-variant-numeric:tabular-nums"
#: Not every notebook has room between columns.
_CELL = "padding:2px 8px;white-space:nowrap"


def value(found: object) -> str:
    """One value on one line: floats to six digits, times to the microsecond, NULL for None."""
    if found is None:
        return "NULL"
    if isinstance(found, float):
        return f"{found:.6g}"
    if isinstance(found, datetime):
        return found.replace(tzinfo=None).isoformat(" ", "microseconds") + ("Z" if found.tzinfo else "")
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(found))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def text(columns: Sequence[Column], rows: Sequence[Sequence[Any]], more: bool = False) -> str:
    """Aligned columns, numbers to the right; the last line says that there are more rows."""
    cells = [[column.name for column in columns], *([value(found) for found in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    right = [column.kind in ("int", "float", "decimal") for column in columns]

    def line(row: Sequence[str]) -> str:
        pairs = zip(row, widths, right)
        return "  ".join(cell.rjust(width) if at else cell.ljust(width) for cell, width, at in pairs).rstrip()

    lines = [line(cells[0]), "  ".join("─" * width for width in widths), *(line(row) for row in cells[1:])]
    return "\n".join([*lines, row_count(len(rows), more)])


def row_count(rows: int, more: bool) -> str:
    """The number of rows, in words."""
    if more:
        return f"the first {rows} rows; there are more"
    return "1 row" if rows == 1 else f"{rows} rows"


def html(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], more: bool = False, units: Sequence[str] | None = None
) -> str:
    """A table for a notebook, with the unit below a column's name where `units` has one."""
    heads = []
    for index, column in enumerate(columns):
        unit = units[index] if units else ""
        below = f"<br><small>{escaping.escape(unit)}</small>" if unit else ""
        heads.append(
            f'<th style="{_CELL}" title="{escaping.escape(column.kind)}">{escaping.escape(column.name)}{below}</th>'
        )
    right = [column.kind in ("int", "float", "decimal") for column in columns]
    body = []
    for row in rows:
        cells = (
            f'<td style="{_CELL};text-align:{"right" if at else "left"}">{escaping.escape(value(found))}</td>'
            for found, at in zip(row, right)
        )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div style="overflow-x:auto"><table style="{_STYLE}"><thead><tr>{"".join(heads)}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        f"<small>{row_count(len(rows), more)}</small>"
    )


def page(content: str) -> str:
    """A page of text for a notebook."""
    # Tables in the text are wider than some notebooks, and have to keep their columns.
    return f'<pre style="line-height:1.3;white-space:pre;overflow-x:auto">{escaping.escape(content)}</pre>'
