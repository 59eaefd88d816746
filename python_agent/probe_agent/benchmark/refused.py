"""Why something is not timed."""

from __future__ import annotations


class RefusedError(Exception):
    """What was asked for can't be timed here, and nothing was run; `hint` says what to do."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint
