"""Exceptions: one for each way in which the `probe` command ends."""

from __future__ import annotations

import re


class ProbeError(Exception):
    """A query, snippet or command that failed.

    :ivar message: what is wrong.
    :ivar hint: what to do about it, or None.
    :ivar status: the exit status of the command, or None where no command ran.
    """

    def __init__(self, message: str, hint: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message, self.hint, self.status = message, hint, status

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class CommandError(ProbeError):
    """The command failed (exit status 1)."""


class SqlError(CommandError):
    """The query is wrong or failed while it ran (exit status 1)."""


class NoTableError(SqlError, KeyError):
    """There is no table of that name."""


class SnippetError(CommandError):
    """The snippet raised an exception in the training process (exit status 1). `message` is its traceback.

    :ivar evaluation: what it printed before that.
    """

    evaluation: object = None


class UsageError(ProbeError, ValueError):
    """The request is not valid (exit status 2)."""


class Unreachable(ProbeError, ConnectionError):
    """The run does not answer, or it ended or was killed while it answered (exit status 3)."""


class Denied(ProbeError, PermissionError):
    """Not allowed (exit status 4)."""


class Limit(ProbeError):
    """A limit or a deadline was reached (exit status 5)."""


class Broken(ProbeError, ConnectionError):
    """The command ended before the answer was whole, for instance because it was killed."""


class Missing(ProbeError, ImportError):
    """A package that this needs is not installed; `hint` says how to install it."""


_BY_STATUS: dict[int, type[ProbeError]] = {1: CommandError, 2: UsageError, 3: Unreachable, 4: Denied, 5: Limit}


def of_command(status: int, text: str, failed: type[ProbeError] = CommandError) -> ProbeError:
    """The exception for a command that ended with `status` and wrote `text` to standard error.

    :param failed: the exception for exit status 1.
    """
    message, hint = parse(text)
    if status < 0:
        return Broken(f"the probe command was ended by signal {-status} before the answer was whole", hint, status)
    kind = failed if status == 1 else _BY_STATUS.get(status, CommandError)
    return kind(message or f"the probe command ended with status {status}", hint, status)


def parse(text: str) -> tuple[str, str | None]:
    """The message and the hint of an error as the command writes them."""
    text = text.split("\nFor more information, try")[0]
    start = [match.end() for match in re.finditer(r"^error: ", text, re.MULTILINE)]
    message, _, hint = text[start[-1] if start else 0 :].strip().partition("\nhint: ")
    return message.strip(), _in_python(hint.strip()) or None


def _in_python(hint: str) -> str:
    """A hint of the command with arguments of functions where it names the command's options."""
    hint = re.sub(r"(?:probe query )?--param (?=\w+=)", "", hint)
    limits = r"(?:probe query )?(?<![\w-])--(timeout|max-rows|max-bytes)\b"
    hint = re.sub(limits, lambda found: f"{found[1].replace('-', '_')}=", hint)
    hint = re.sub(r"(?<![\w-])--rank (\w+)", r"rank=\1", hint)
    return hint.replace("--at now", 'at="now"').replace("--force", "force=True")
