"""Finds the collector of this run, or starts one.

All processes of one run on this machine must use one socket, and another run of the same script another. The first process
locks `NAME.claim` beside the socket, writes the key of its run there and starts the collector. A later process reads the
key, and joins or tries the next name. The kernel releases the lock when the process ends, however it ends. A lock on
`NAME.claim.lock` lets one process at a time decide: another one that came between the first one's lock and its key would read
the key of an earlier run.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import stat
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from probe_agent import messages

if TYPE_CHECKING:
    from probe_agent._native import CollectorRestart

# A collector that has been unused for this long ends by itself.
IDLE = "30s"
# Seconds to wait for another process that is deciding about a name: one that is stopped must not stop this one.
_DECISION_SECONDS = 5.0
# Locks of this process, kept open as long as it lives: path -> descriptor.
_LOCKS: dict[str, int] = {}
_KEY = f"pid {os.getpid()} {time.time_ns()}"


class NoCollectorError(Exception):
    """No collector can be found or started. The message is for people and has a hint."""


def runtime_directory() -> str:
    """Where sockets are (as crates/common/src/paths.rs has it), made 0700; refused where others could get into it."""
    directory = os.environ.get("PROBE_RUNTIME_DIR")
    session = os.environ.get("XDG_RUNTIME_DIR")
    if not directory and session and os.path.isdir(session):
        directory = os.path.join(session, "probe")
    if not directory:
        directory = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"probe-{os.geteuid()}")
    directory = os.path.abspath(directory)
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    # Not followed: a link in a directory that others can write to could point anywhere.
    facts = os.lstat(directory)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise NoCollectorError(
            f"{directory} is not a directory of yours alone, so sockets there would not be safe; "
            "hint: chmod 0700 it, or name another in PROBE_RUNTIME_DIR"
        )
    return directory


def run_name(asked: str | None = None) -> str:
    """The name of the run: `asked`, else `PROBE_RUN`, else the script's name."""
    from probe_agent import _native

    name = asked or os.environ.get("PROBE_RUN")
    if not name:
        main = sys.modules.get("__main__")
        spec = getattr(main, "__spec__", None)
        if spec is not None and spec.name:
            # python -m package.train, and package/__main__.py is called like its package.
            parts = [part for part in spec.name.split(".") if part != "__main__"]
            name = parts[-1] if parts else ""
        else:
            file = getattr(main, "__file__", None) or (sys.argv[0] if sys.argv else "")
            name = os.path.splitext(os.path.basename(file))[0]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", name.split("@")[0]).lstrip(".-")[:56] or "python"
    # Where a name can stand, a command or a process can stand too.
    return f"{name}-run" if name in _native.RESERVED_NAMES else f"run-{name}" if name.isdigit() else name


def run_key() -> str:
    """A text that is the same in all processes of one run on this machine, and differs in every other run."""
    elastic = os.environ.get("TORCHELASTIC_RUN_ID")
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if elastic or (address and port and "RANK" in os.environ):
        return f"{elastic} {address}:{port}"
    return _KEY


def find_or_start(asked: str | None = None) -> str:
    """The address of this run's collector, which is started where there is none. It may need a moment to answer."""
    directory = runtime_directory()
    base, key = run_name(asked), run_key()
    for number in range(1, 100):
        name = base if number == 1 else f"{base}-{number}"
        path = os.path.join(directory, f"{name}.sock")
        if _claim(os.path.join(directory, f"{name}.claim"), path, key, name):
            return f"unix:{path}"
    raise NoCollectorError(f"99 runs called {base} are live; hint: give this one a name in PROBE_RUN")


def _claim(lock: str, path: str, key: str, name: str) -> bool:
    """Whether the collector at `path` belongs to this run; it is started if there is none."""
    if lock in _LOCKS:
        # Stopped and started again.
        if not is_live(path):
            _spawn(path, name)
        return True
    with _decisions_in_turn(f"{lock}.lock"):
        return _decide(lock, path, key, name)


@contextmanager
def _decisions_in_turn(path: str) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + _DECISION_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.002)
        yield
    finally:
        os.close(descriptor)


def _decide(lock: str, path: str, key: str, name: str) -> bool:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            return _written_key(descriptor) == key
        finally:
            os.close(descriptor)
    written = _written_key(descriptor)
    if is_live(path):
        # The lock is free: its run is over, or this is the same run after an elastic restart.
        os.close(descriptor)
        return written == key
    if _is_taken(os.path.join(os.path.dirname(path), f"{name}.lock")):
        os.close(descriptor)
        return False
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, key.encode(), 0)
    try:
        _spawn(path, name)
    except BaseException:
        os.ftruncate(descriptor, 0)
        os.close(descriptor)
        raise
    from probe_agent import _native

    _LOCKS[lock] = _native.raise_descriptor(descriptor)
    return True


def _is_taken(lock: str) -> bool:
    """Whether another collector (of `probe run`) keeps a run of this name: it holds a lock as long as it lives."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _written_key(descriptor: int) -> str:
    return os.pread(descriptor, 4096, 0).decode(errors="replace")


def is_live(path: str) -> bool:
    """Whether a process listens at a socket's path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its queue is full: a process listens
        except OSError:
            return False
        return True


def binary() -> str:
    """The `probe` to start: `PROBE_BIN`, else the one installed beside this Python, else the one on PATH."""
    named = os.environ.get("PROBE_BIN")
    if named:
        return named
    installed = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    for directory in installed:
        candidate = os.path.join(directory or "", "probe")
        if os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which("probe")
    if found is None:
        raise NoCollectorError("there is no collector and no probe command to start one; hint: name it in PROBE_BIN")
    return found


def log_of(address: str) -> str:
    """The file for the stderr of a collector that was started here."""
    return os.path.splitext(address[len("unix:") :])[0] + ".log"


def revival(address: str) -> CollectorRestart | None:
    """How the collector at `address` is started again if it dies.

    None for a collector of another machine or user, and for one at an address that a person chose.
    """
    from probe_agent import _native

    try:
        if not address.startswith("unix:") or os.path.dirname(address[len("unix:") :]) != runtime_directory():
            return None
        program = os.path.abspath(binary())
    except (NoCollectorError, OSError):
        return None
    return _native.CollectorRestart(
        program=program,
        arguments=["--listen", address, "--exit-when-idle", IDLE],
        environment=list(_environment().items()),
        log=log_of(address),
    )


def _environment() -> dict[str, str]:
    """The environment of a collector: without the variables that would start an agent in it."""
    return {key: value for key, value in os.environ.items() if key not in ("PROBE", "PROBE_COLLECTOR", "PROBE_RUN")}


def _spawn(path: str, name: str) -> None:
    """Starts a collector that outlives this process as long as it is used, and is none of its children. Its stderr goes to
    NAME.log."""
    from probe_agent import _native

    program = shutil.which(binary()) or binary()
    arguments = ["serve", "--name", name, "--listen", f"unix:{path}", "--exit-when-idle", IDLE]
    try:
        _native.start_detached(program, arguments, list(_environment().items()), log_of(f"unix:{path}"))
    except OSError as error:
        raise NoCollectorError(f"cannot start {program}: {error}; hint: name the probe command in PROBE_BIN") from None
    messages.say(f"this run is {name}; ask with: probe {name} query 'SELECT …', probe {name} eval CODE")
