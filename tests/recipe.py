"""Tests that CONTRIBUTING.md names every file that a table of agents touches: `tests/recipe.py` fails where it does not.

The example is `python.pauses`. Its files are those named after it, and those whose code mentions its kind of record, its
layer or its table. Code that queries the table (views, diagnoses, exports and their tests) does not count.
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
#: The directories and files in which a table is made.
MADE = [
    "proto/src",
    "crates/trace/src",
    "python_agent/src",
    "python_agent/probe_agent",
    "tests/it/sql",
    "tests/e2e/conftest.py",
]
NAMED = "pauses"
MENTION = re.compile(
    r"Kind::Pause\b|Layer::Pauses\b|\bPauses? =|\bmod pauses\b|\bpauses::\w|\"pauses\"|python\.pauses(,| =>)"
)
COMMENT = re.compile(r"^\s*(//|#).*$", re.MULTILINE)


def made() -> set[str]:
    """The files that the example touches."""
    files = [file for path in MADE for file in [ROOT / path, *(ROOT / path).rglob("*")]]
    code = [file for file in files if file.suffix in (".rs", ".py", ".slt")]
    found = [file for file in code if file.stem == NAMED or MENTION.search(COMMENT.sub("", file.read_text()))]
    return {str(file.relative_to(ROOT)) for file in found}


def named() -> set[str]:
    """The files that CONTRIBUTING.md names."""
    table = PAGE.read_text().partition("<!-- recipe -->")[2].partition("<!-- /recipe -->")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def main() -> int:
    touched, recipe = made(), named()
    for name in sorted(touched - recipe):
        print(
            f"CONTRIBUTING.md: a table of agents touches {name} too; hint: take it out of there, or add it to the recipe"
        )
    for name in sorted(recipe - touched):
        print(f"CONTRIBUTING.md: a table of agents does not touch {name}; hint: take it out of the recipe")
    return int(touched != recipe)


if __name__ == "__main__":
    sys.exit(main())
