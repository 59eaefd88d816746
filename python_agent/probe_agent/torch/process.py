"""The process as the operating system sees it, measured once a second by the background thread."""

from __future__ import annotations

from probe_agent import _native


def use_proc(explicit: bool) -> None:
    """Have it measured."""
    _native.use_sampling("process", True)


def remove() -> None:
    """Have it measured no more."""
    _native.use_sampling("process", False)
