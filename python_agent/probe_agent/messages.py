"""Messages for the person who runs the program."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Prints a message on stderr. A program without one (a daemon) gets none: `print` would take stdout, which may be data."""
    if sys.stderr is not None:
        print(f"probe: {message}", file=sys.stderr, flush=True)
