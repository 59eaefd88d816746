"""A run for the tests of `trainprobe`: one for all of them, which has trained and waits."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import signal
import warnings
from collections.abc import Iterator

import pytest
import trainprobe as probe
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from conftest import PROBE, SCRIPTS, Home, wait_for


@contextlib.contextmanager
def environment_of(home: Home) -> Iterator[None]:
    """Lets this process ask in that home, as a command there would."""
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.startswith("PROBE")]:
            patched.delenv(name)
        for name, value in home.environment().items():
            if name.startswith("PROBE"):
                patched.setenv(name, value)
        patched.setenv("PROBE_BIN", PROBE)
        yield


@contextlib.contextmanager
def with_interrupts() -> Iterator[None]:
    """Lets Ctrl-C interrupt this process, also where it was started in the background by a shell that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def trained(directory: pathlib.Path) -> Iterator[tuple[Home, probe.Run]]:
    home = Home(directory)
    try:
        run = home.train("python", str(SCRIPTS / "train_and_wait.py"), name="tiny")
        wait_for("the end of training", lambda: "waiting" in run.output)
        run.wait_for_step(7)
        with environment_of(home):
            yield home, probe.connect("tiny")
    finally:
        home.close()


def new_shell(directory: pathlib.Path) -> InteractiveShell:
    """IPython in this process, with the magics."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("IPYTHONDIR", str(directory))
        config = Config()
        config.HistoryManager.enabled = False
        # It reads source code for seconds, and completes no cell of ours.
        config.Completer.use_jedi = False
        shell = InteractiveShell(config=config)
    shell.run_line_magic("load_ext", "trainprobe")
    return shell


def offered(shell: InteractiveShell, cell: str) -> list[str]:
    """The completions that Tab offers at the end of a cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [completion.text for completion in shell.Completer.completions(cell, len(cell))]


def there(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def commands(pid: int | None = None) -> list[int]:
    """Commands that are children of a process, or of this one."""
    found = []
    # The kernel lists children for each thread of the process.
    children = [
        file.read_text().split() for file in pathlib.Path(f"/proc/{pid or os.getpid()}/task").glob("*/children")
    ]
    for child in map(int, itertools.chain(*children)):
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"query" in words or b"eval" in words:
                found.append(child)
    return found
