"""The target and the limits of queries: the words before and after the name of a command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainprobe import command
from trainprobe.command import Command
from trainprobe.errors import CommandError, ProbeError, SqlError


@dataclass(frozen=True)
class Limits:
    """The limits of one answer; None leaves a limit to the collector.

    :ivar timeout: seconds.
    :ivar max_rows: rows; one more raises :class:`~trainprobe.Limit`.
    :ivar max_bytes: bytes; one more raises :class:`~trainprobe.Limit`.
    """

    timeout: float | None = None
    max_rows: int | None = None
    max_bytes: int | None = None

    def options(self) -> list[str]:
        """The options of `probe query`."""
        given = {"--timeout": self.timeout, "--max-rows": self.max_rows, "--max-bytes": self.max_bytes}
        return [word for option, value in given.items() if value is not None for word in (option, str(value))]


@dataclass(frozen=True)
class Target:
    """A run or a process to ask.

    :ivar endpoint: as the command takes it; None leaves it to PROBE_ENDPOINT, or is the only live run.
    :ivar token_file: the file with the token for a TCP endpoint.
    :ivar tls_pin: the hash of a TCP collector's certificate, where the token file does not have it.
    :ivar others: other runs that queries can name, by their names there.
    """

    endpoint: str | None = None
    token_file: str | None = None
    tls_pin: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its commands."""
        given = {"PROBE_TOKEN_FILE": self.token_file, "PROBE_TLS_PIN": self.tls_pin}
        return {name: value for name, value in given.items() if value is not None}

    def words(self, name: str, *arguments: str) -> list[str]:
        """The words of a command about it."""
        return [*([self.endpoint] if self.endpoint else []), name, *arguments]

    def query(self, sql: str, output: str, arguments: Sequence[str], apart: bool = False) -> Command:
        """Begins a query, whose answer comes in the format `output`; `apart` as :class:`Command` has it."""
        others = [word for name, endpoint in self.others.items() for word in ("--with", f"{name}={endpoint}")]
        words = self.words("query", "--format", output, *others, *arguments)
        return Command(words, sql, self.environment, SqlError, apart)

    def run(self, name: str, *arguments: str, stdin: str | None = None, failed: type[ProbeError] = CommandError) -> str:
        """What a command about it writes, as text."""
        return command.run(self.words(name, *arguments), stdin, self.environment, failed)


def endpoint_of(endpoint: str | int | os.PathLike[str] | None) -> str | None:
    """An ENDPOINT as the command takes it. The path of a directory becomes absolute, so that a change of the working
    directory does not matter."""
    if endpoint is None:
        return None
    text = os.fspath(endpoint) if isinstance(endpoint, os.PathLike) else str(endpoint)
    is_path = isinstance(endpoint, os.PathLike) or os.sep in text or text in (".", "..")
    return os.path.abspath(text) if is_path and not text.startswith("unix:") else text
