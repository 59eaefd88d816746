"""Measures the process as the operating system sees it: the background thread does that once a second."""

from __future__ import annotations

from probe_agent import _native


def use_proc(explicit: bool) -> None:
    """Begin to measure the process."""
    _native.use_sampling("process", True)


def remove() -> None:
    """Stop measuring the process."""
    _native.use_sampling("process", False)
