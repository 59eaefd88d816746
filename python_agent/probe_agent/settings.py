"""What the uplink is started with. The native half reads these by name (src/uplink/link.rs, src/uplink/revive.rs)."""

from __future__ import annotations

from typing import NamedTuple


class Identity(NamedTuple):
    """Who this process is in its run; None where that is not known."""

    rank: int | None
    local_rank: int | None
    world_size: int | None


class Revival(NamedTuple):
    """How a collector is started again should it die."""

    program: str
    #: After `serve --resume RUN`.
    arguments: list[str]
    environment: list[tuple[str, str]]
    #: File for what it has to say.
    log: str


class Settings(NamedTuple):
    """Of one uplink, fixed when it starts."""

    #: `unix:PATH` or `HOST:PORT`.
    collector: str
    token_file: str | None
    tls_pin: str | None
    #: Snippets that come over TCP are run.
    eval_over_tcp: bool
    #: How long nothing is said about a collector that is not there.
    patience_s: float
    #: What to do where it is not there.
    hint: str
    revival: Revival | None
    #: Random, made once in the life of the agent.
    instance: str
    #: Empty: the collector's own run.
    run: str
    host: str
    command: str
    python_version: str
    torch_version: str
    identity: Identity
