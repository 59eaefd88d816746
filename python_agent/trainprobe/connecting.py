"""Finds a run."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainprobe.rows import Rows
from trainprobe.run import Run, path_of
from trainprobe.target import Limits, Target, endpoint_of


def connect(
    endpoint: str | int | os.PathLike[str] | None = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
    tls_pin: str | None = None,
    others: Mapping[str, str] | None = None,
    timeout: float | None = None,
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> Run:
    """Finds a run, and checks that it answers.

    :param endpoint: a run's name (`gpt`, `gpt@1`), a pid, a run's directory, `unix:PATH` or `HOST:PORT`; default
        PROBE_ENDPOINT, or the only live run.
    :param token_file: the file with the token for `HOST:PORT`, as `probe token make` writes it; default PROBE_TOKEN_FILE.
    :param tls_pin: the hash of that collector's certificate, where the token file does not have it; default PROBE_TLS_PIN.
    :param others: more runs that queries can name: with `{"before": "gpt@1"}` there is `before.python.steps`.
    :param timeout: seconds that one answer may take; by default what the collector allows.
    :param max_rows: rows that one answer may have.
    :param max_bytes: bytes that one answer may have.

    A name is resolved once, to the run that it means now. When that run has ended, its directory answers, and a later run of
    the same name changes nothing.

    Raises Unreachable where nothing answers, UsageError where several runs are live, Denied without a valid token.

    >>> probe.connect("tiny").name
    'tiny@1'
    """
    named = {name: endpoint_of(other) or "" for name, other in (others or {}).items()}
    written = endpoint_of(endpoint) or endpoint_of(os.environ.get("PROBE_ENDPOINT") or None)
    # This asks only for the name, of this run without the others.
    alone = Target(written, path_of(token_file), tls_pin)
    names = [row[0] for row in Rows(alone.query("SELECT run FROM probe.store LIMIT 1", "json-rows", []))]
    if names and _is_name(written):
        written = names[0]
    return Run(Target(written, alone.token_file, tls_pin, named), Limits(timeout, max_rows, max_bytes))


def _is_name(written: str | None) -> bool:
    """Whether this is a name of a run on this machine, which another run can have later, or stands for one."""
    if written is None:
        return True
    return not (written.isdigit() or os.sep in written or ":" in written)
