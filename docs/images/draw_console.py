"""Draws docs/images/console.svg: the console on a live run, as a terminal shows it.

    docs/images/draw_console.py ENDPOINT docs/images/console.svg

Opens `probe ENDPOINT` on a pseudo-terminal, types the lines below, and draws what the terminal shows at the end: the text
is what `probe` printed, bold and faint where it said so. `probe` and a run of `examples/train_gpt.py` under ENDPOINT have to
be there. Needs nothing beyond Python.
"""

from __future__ import annotations

import html
import os
import pathlib
import re
import sys
import unicodedata

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "e2e"))
from terminal import CTRL_D, Terminal

LINES = [
    "SELECT module, stage, calls, own FROM python.module_profile ORDER BY own DESC LIMIT 4;",
    "SELECT rank, steps, busy, waited, lead FROM python.rank_balance ORDER BY rank;",
    ">>> print(model.layers[0].attn, loss.item())",
    ">>> loss",
]
WIDTH, HEIGHT = 96, 60
CELL, LINE, MARGIN, TITLE = 8.43, 19, 16, 34
STYLES = {"1": "bold", "2": "faint", "0": ""}
_TOKENS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>]|([\r\n\b])|([^\x1b\r\n\b])")

Cell = tuple[str, str]


def screen(text: str) -> list[list[Cell]]:
    """What a terminal shows after `text`: lines of (character, style)."""
    lines: list[list[Cell]] = [[]]
    row, column, style = 0, 0, ""
    for found in _TOKENS.finditer(text):
        argument, action, control, character = found.groups()
        count = int(argument) if argument and argument.isdigit() else 1
        if character:
            line = lines[row]
            line.extend([(" ", "")] * (column + 1 - len(line)))
            line[column] = (character, style)
            column += 1
        elif control == "\r":
            column = 0
        elif control == "\b":
            column = max(column - 1, 0)
        elif control == "\n":
            row += 1
            if row == len(lines):
                lines.append([])
        elif action == "m":
            style = STYLES.get((argument or "0").split(";")[-1], "")
        elif action == "K":
            del lines[row][column:]
        elif action == "J":
            del lines[row][column:], lines[row + 1 :]
        elif action == "A":
            row = max(row - count, 0)
        elif action == "C":
            column += count
        elif action == "D":
            column = max(column - count, 0)
        elif action == "G":
            column = count - 1
    return lines


def session(endpoint: str) -> str:
    """Everything that the console wrote while the lines were typed."""
    console = Terminal(["probe", endpoint], {**os.environ, "PAGER": "cat"}, WIDTH, HEIGHT)
    ready = re.compile(r"@\d+> $")
    console.until(lambda seen: ready.search(seen))
    for line in LINES:
        console.type(line + "\r")
        console.until(lambda seen: "\n" in seen and ready.search(seen))
    shown = console.everything
    console.type(CTRL_D)
    console.end()
    return shown


def spans(line: list[Cell]) -> str:
    """One line of text as SVG: a `tspan` for each stretch of one style, at the column where it begins."""
    out, start = [], 0
    while start < len(line):
        end = start
        while end < len(line) and line[end][1] == line[start][1]:
            end += 1
        style = f' class="{line[start][1]}"' if line[start][1] else ""
        # Wide gaps are left out: programs that draw SVG treat spaces differently.
        for found in re.finditer(r"\S+( \S+)*", "".join(character for character, _ in line[start:end])):
            assert all(unicodedata.east_asian_width(character) not in "WF" for character in found.group())
            x = MARGIN + CELL * (start + found.start())
            out.append(f'<tspan x="{x:.1f}"{style}>{html.escape(found.group())}</tspan>')
        start = end
    return "".join(out)


def draw(lines: list[list[Cell]], title: str) -> str:
    """The picture: a window with a title and the lines."""
    width, height = 2 * MARGIN + CELL * WIDTH, TITLE + 2 * MARGIN + LINE * len(lines)
    rows = []
    for number, line in enumerate(lines):
        if any(character != " " for character, _ in line):
            y = TITLE + MARGIN + LINE * (number + 0.75)
            rows.append(f'<text y="{y:.1f}">{spans(line)}</text>')
    dots = "".join(f'<circle cx="{20 + 18 * n}" cy="{TITLE / 2}" r="5.5" fill="#565f73"/>' for n in range(3))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img">
<title>{html.escape(title)}</title>
<style>
text {{ font: 14px "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #d8dee9; }}
.bold {{ font-weight: bold; fill: #ffffff; }}
.faint {{ fill: #7b869c; }}
</style>
<rect width="100%" height="100%" rx="9" fill="#1f2430"/>
<path d="M0 {TITLE}h{width:.0f}" stroke="#2d3444"/>
{dots}
<text x="50%" y="{TITLE / 2 + 5}" text-anchor="middle" class="faint">{html.escape(title)}</text>
{chr(10).join(rows)}
</svg>
"""


def main() -> None:
    """Draws the picture that the command line asks for."""
    endpoint, path = sys.argv[1:]
    lines = screen(session(endpoint))
    while lines and not "".join(character for character, _ in lines[-1]).strip():
        lines.pop()
    pathlib.Path(path).write_text(draw(lines, f"probe {endpoint}"))


if __name__ == "__main__":
    main()
