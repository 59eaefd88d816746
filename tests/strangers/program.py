"""What an entry of the library of strangers says (manifest.py), and the commands that they share."""

from __future__ import annotations

import dataclasses

NONE: tuple[str, ...] = ()
TORCHRUN = ("torchrun", "--nproc-per-node", "2")
TRAINED = ("backward", "forward", "step")
VALIDATED = (*TRAINED, "validation")


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    #: The package it is from, as pip calls it, what of that, and its licence.
    package: str
    origin: str
    licence: str
    command: tuple[str, ...]
    #: Steps of each process: exactly so many, and for `at_least` so many or more.
    steps: int
    #: A module that must have rows, by its qualified name.
    module: str | None
    kind: str = "optimizer"
    stages: tuple[str, ...] = TRAINED
    agents: int = 1
    at_least: bool = False
    #: Its exit status, with and without us.
    status: int = 0
    #: Runs with `make test`; needs nothing but requirements-dev.txt.
    always: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    #: Its script is in the package's source distribution, which is fetched too.
    sources: bool = False
    #: What in its output is a time of day or a duration, as a regular expression. It differs from run to run.
    times: str = ""
    #: What is not recorded of the program, or not as one would expect.
    lacks: str = ""

    @property
    def how(self) -> str:
        return " ".join(self.command)


def driver(file: str, *arguments: str) -> tuple[str, ...]:
    return ("python", f"tests/strangers/programs/{file}.py", *arguments)


def script(name: str) -> tuple[str, ...]:
    return ("python", "-m", f"accelerate.test_utils.scripts.{name}")


def as_written(path: str, *arguments: str) -> tuple[str, ...]:
    """A script of a source distribution, whose path begins with the package, or a module of an installed one."""
    return driver("as_written", path, *arguments)
