"""The variables that snippets of one session share.

The variables live in this process until the session is ended, another one needs its slot, or the process ends. Names of the
training code are lent to a session only while a snippet runs: kept, they would keep batches and graphs in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Sessions that are kept; one more drops the session that was used the longest ago.
MAX_SESSIONS = 16
# Names of dropped sessions that are remembered, so that a later snippet of one is told.
MAX_REMEMBERED = 256


class Sessions:
    """The sessions of a process, by name. Only one snippet runs at a time, so nothing here is locked."""

    def __init__(self) -> None:
        # The same dictionary for all snippets of a session: a function that one defines sees what a later one assigns.
        self._variables: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._dropped: OrderedDict[str, None] = OrderedDict()

    def names(self) -> list[str]:
        """The sessions, the one used longest ago first."""
        return list(self._variables)

    def variables(self, name: str) -> dict[str, Any]:
        """A copy of a session's variables; empty where it does not exist."""
        return dict(self._variables.get(name, {}))

    def end(self, name: str) -> None:
        """Forgets a session and all of its variables."""
        self._variables.pop(name, None)
        self._dropped.pop(name, None)

    def clear(self) -> None:
        """Forgets all sessions."""
        self._variables.clear()
        self._dropped.clear()

    def open(self, name: str) -> list[str]:
        """Makes sure that a session exists. Returns the messages about that, a line each."""
        messages: list[str] = []
        if name in self._variables:
            self._variables.move_to_end(name)
            return messages
        if name in self._dropped:
            del self._dropped[name]
            messages.append(f"session '{name}' starts empty: its variables were dropped for another session's")
        self._variables[name] = {}
        while len(self._variables) > MAX_SESSIONS:
            gone, _ = self._variables.popitem(last=False)
            self._dropped[gone] = None
            messages.append(f"session '{gone}' was dropped with its variables: {MAX_SESSIONS} are kept at most")
        while len(self._dropped) > MAX_REMEMBERED:
            self._dropped.popitem(last=False)
        return messages

    @contextmanager
    def lent(self, name: str, names: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """An open session's own dictionary with `names` in it, where it has none of that name; they go afterwards."""
        variables = self._variables[name]
        lent = {key: value for key, value in names.items() if key not in variables}
        variables.update(lent)
        try:
            yield variables
        finally:
            for key, value in lent.items():
                if key in variables and variables[key] is value:
                    del variables[key]


# The sessions of this process.
SESSIONS = Sessions()
