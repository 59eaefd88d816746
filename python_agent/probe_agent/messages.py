"""Messages for the person who runs the program."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Prints a message on stderr, if the program has one. In a daemon without it `print` would write to stdout, which may be data."""
    if sys.stderr is not None:
        print(f"probe: {message}", file=sys.stderr, flush=True)
