"""Ask a PyTorch training run, live or recorded, from Python: SQL to DataFrames, Python in the training process, pages.

    import trainprobe as probe

    run = probe.connect()
    run.sql("SELECT step, rank, duration FROM python.steps WHERE step > $first", first=100).df()
    run.diagnose()

Needs no package; pandas, Polars, pyarrow and DuckDB are used where they are asked for by name. In a notebook,
`%load_ext trainprobe` adds `%probe`, `%%probe` and `%%probe_eval`.
"""

from __future__ import annotations

from typing import Any

from trainprobe.connecting import connect
from trainprobe.errors import (
    Broken,
    CommandError,
    Denied,
    Limit,
    Missing,
    NoTableError,
    ProbeError,
    SnippetError,
    SqlError,
    Unreachable,
    UsageError,
)
from trainprobe.listing import runs
from trainprobe.pages import Benchmark, Capture, Diagnosis, FlameGraph, Page
from trainprobe.plot import Plot
from trainprobe.result import Result
from trainprobe.run import Run, compare
from trainprobe.snippets import Evaluation, Session
from trainprobe.tables import Table, Tables
from trainprobe.timestamps import Timestamp
from trainprobe.watching import Answer, Watch

__all__ = [
    "Answer",
    "Benchmark",
    "Broken",
    "Capture",
    "CommandError",
    "Denied",
    "Diagnosis",
    "Evaluation",
    "FlameGraph",
    "Limit",
    "Missing",
    "NoTableError",
    "Page",
    "Plot",
    "ProbeError",
    "Result",
    "Run",
    "Session",
    "SnippetError",
    "SqlError",
    "Table",
    "Tables",
    "Timestamp",
    "Unreachable",
    "UsageError",
    "Watch",
    "aconnect",
    "compare",
    "connect",
    "runs",
]


def __getattr__(name: str) -> Any:
    # Programs that do not await need no asyncio.
    if name == "aconnect":
        from trainprobe.asynchronous import aconnect

        return aconnect
    raise AttributeError(f"module 'trainprobe' has no attribute '{name}'")


def load_ipython_extension(shell: Any) -> None:
    """Registers the magics; `%load_ext trainprobe` calls this."""
    from trainprobe import magics

    magics.load(shell)
