"""Completion in cells: tables, columns and words of SQL in `%%probe`, names of the training process in `%%probe_eval`."""

from __future__ import annotations

import re
from typing import Any, Protocol

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from trainprobe.errors import ProbeError
from trainprobe.run import Run

_WORDS = (
    "SELECT FROM WHERE GROUP BY ORDER LIMIT JOIN LEFT USING ON AS AND OR NOT IN IS NULL BETWEEN LIKE CASE WHEN THEN ELSE "
    "END COUNT SUM AVG MIN MAX WITH UNION ALL DISTINCT HAVING DESC ASC OVER PARTITION"
).split()
_LAST_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*$")
_LAST_CHAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]]*$")
#: The snippet for completion. It runs no training code: attributes are looked up as they are stored in objects.
_NAMES = (
    "print(*__import__('probe_agent.eval.complete', fromlist=['names'])"
    ".names({chain!r}, {{**globals(), **locals()}}), sep='\\n')"
)


class Chooser(Protocol):
    """The object that knows the chosen run."""

    def chosen(self, endpoint: str | None = None) -> Run:
        """The run."""


class Completer:
    """Offers names for one shell, and remembers the columns of tables that it has read."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._known: dict[str, list[str]] = {}

    def sql(self, text: str, cell: str) -> tuple[str, list[str]]:
        """The last word of `text`, and its completions in a query: tables, columns and words of SQL."""
        match = _LAST_NAME.search(text)
        word = match[0] if match else ""
        tables = self._chooser.chosen().tables
        columns: list[str] = []
        for name in tables:
            if name in cell or name.split(".")[1] in cell:
                if name not in self._known:
                    self._known[name] = tables[name].columns
                columns += self._known[name]
        offered = dict.fromkeys([*columns, *tables, *_WORDS])
        lower = word.lower()
        return word, [name for name in offered if name.lower().startswith(lower)]

    def python(self, text: str) -> tuple[str, list[str]]:
        """The last part of the last name of `text`, and its completions in the training process."""
        match = _LAST_CHAIN.search(text)
        chain = match[0] if match else ""
        done = self._chooser.chosen().eval(_NAMES.format(chain=chain), at="now", timeout=2.0)
        return chain.rpartition(".")[2], done.text.split()

    def offer(self, cell: str, before: str) -> tuple[str, list[str]] | None:
        """The word before a cell's cursor, and its completions; None in a cell that is not ours. There are no completions if
        the run does not answer, because completion must not raise."""
        try:
            if cell.startswith("%%probe_eval") and "\n" in before:
                return self.python(before)
            if cell.startswith("%%probe") and not cell.startswith("%%probe_") and "\n" in before:
                return self.sql(before, cell)
        except ProbeError:
            return "", []
        return None


def register(shell: Any, chooser: Chooser) -> None:
    """Adds the completion to a shell."""
    completer = Completer(chooser)

    @context_matcher(identifier="trainprobe")
    def matcher(context: CompletionContext) -> SimpleMatcherResult:
        lines = context.full_text.split("\n")
        before = "\n".join([*lines[: context.cursor_line], lines[context.cursor_line][: context.cursor_position]])
        offered = completer.offer(context.full_text, before)
        if offered is None:
            return {"completions": []}
        word, names = offered
        completions = [SimpleCompletion(text=name, type="probe") for name in names]
        return {"completions": completions, "matched_fragment": word, "suppress": True}

    shell.Completer.custom_matchers.append(matcher)
