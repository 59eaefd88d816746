"""The error for a request that is not timed."""

from __future__ import annotations


class RefusedError(Exception):
    """The request can't be timed here, and nothing was run. `hint` says what to do."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint
