"""What the uplink is started with. The native half reads these by name (src/uplink/link.rs, src/uplink/revive.rs)."""

from __future__ import annotations

from typing import NamedTuple


class Identity(NamedTuple):
    """Rank, local rank and world size of this process; None for what is not known."""

    rank: int | None
    local_rank: int | None
    world_size: int | None


class CollectorRestart(NamedTuple):
    """The command that starts a collector again if it dies."""

    program: str
    #: Arguments after `serve --resume RUN`.
    arguments: list[str]
    environment: list[tuple[str, str]]
    #: File for its output.
    log: str


class Settings(NamedTuple):
    """Settings of one uplink, fixed when it starts."""

    #: `unix:PATH` or `HOST:PORT`.
    collector: str
    token_file: str | None
    tls_pin: str | None
    #: Whether snippets that come over TCP are run.
    eval_over_tcp: bool
    #: Why this process can run no snippet; None where it can.
    no_snippets: str | None
    #: Seconds before a warning says that the collector does not answer.
    patience_s: float
    #: What that warning tells the person to do.
    hint: str
    revival: CollectorRestart | None
    #: Random, made once in the life of the agent.
    instance: str
    #: Empty: the collector's own run.
    run: str
    host: str
    command: str
    python_version: str
    torch_version: str
    identity: Identity
