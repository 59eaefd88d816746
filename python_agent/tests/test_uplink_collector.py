"""Finding the collector of a run, or starting one: all ranks of a run use one, and two runs never the same."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import stat
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from probe_agent import collector, messages

# A stand-in for `probe serve`: listens at the given address, notes its arguments, ends when `live` is removed.
STAND_IN = """#!{python}
import os, pathlib, socket, sys
arguments = sys.argv[1:]
path = arguments[arguments.index("--listen") + 1][len("unix:"):]
home = pathlib.Path({home!r})
with open(home / "calls", "a") as calls:
    calls.write(" ".join(arguments) + " " + str("PROBE" in os.environ) + "\\n")
listener = socket.socket(socket.AF_UNIX)
if os.path.exists(path):
    os.remove(path)
listener.bind(path)
listener.listen()
listener.settimeout(0.05)
while (home / "live").exists():
    try:
        listener.accept()[0].close()
    except socket.timeout:
        pass
"""

FIND = """
import sys, time
from probe_agent import collector
address = collector.find_or_start()
deadline = time.monotonic() + 120
while not collector.is_live(address[5:]):
    assert time.monotonic() < deadline
    time.sleep(0.005)
print(address, flush=True)
sys.stdin.read()
"""


class Machine:
    """The sockets and the stand-in binary of one test."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.script = directory / "train.py"
        self.script.write_text(FIND)
        binary = directory / "probe"
        binary.write_text(STAND_IN.format(python=sys.executable, home=str(directory)))
        binary.chmod(0o755)
        (directory / "live").touch()
        self.ranks: list[subprocess.Popen[str]] = []

    def rank(self, **environment: str) -> subprocess.Popen[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PROBE", "TORCHELASTIC", "MASTER_"))}
        process = subprocess.Popen(
            [sys.executable, str(self.script)],
            env={
                **kept,
                "PROBE": "1",
                "PROBE_BIN": str(self.directory / "probe"),
                "PROBE_RUNTIME_DIR": str(self.directory / "run"),
                "PYTHONPATH": str(pathlib.Path(collector.__file__).parents[1]),
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ranks.append(process)
        return process

    @property
    def calls(self) -> list[str]:
        return (self.directory / "calls").read_text().splitlines()

    def close(self) -> None:
        (self.directory / "live").unlink()
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, process.communicate()[1]
    return os.path.basename(line)


def opened_by(process: subprocess.Popen[str]) -> list[str]:
    """The files that a process has open."""
    files = []
    for descriptor in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            files.append(os.readlink(descriptor))
    return files


def test_ranks_of_a_run_meet_and_other_runs_stay_apart(machine: Machine) -> None:
    first = {"TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    ranks = [machine.rank(RANK=str(rank), **first) for rank in range(4)]
    assert [address(rank) for rank in ranks] == ["train.sock"] * 4
    other = {**first, "MASTER_PORT": "2"}
    assert [address(machine.rank(RANK=str(rank), **other)) for rank in range(2)] == ["train-2.sock"] * 2
    # Two runs of the same script by hand are two runs as well.
    assert {address(machine.rank()), address(machine.rank())} == {"train-3.sock", "train-4.sock"}
    assert len(machine.calls) == 4
    name = "train-2"
    expected = f"serve --name {name} --listen unix:{machine.directory}/run/{name}.sock --exit-when-idle 30s False"
    assert machine.calls[1] == expected
    # A rank that torchrun starts again finds its run, also while all others have ended.
    for rank in ranks:
        rank.kill()
        rank.wait()
    assert address(machine.rank(RANK="0", **first)) == "train.sock"
    assert len(machine.calls) == 4


def test_a_rank_waits_for_one_that_decides_about_the_name(machine: Machine) -> None:
    """The claim has the key of an earlier run until the rank that has locked it has written its own."""
    run = {"TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    first = machine.rank(RANK="0", **run)
    assert address(first) == "train.sock"
    first.kill()
    first.wait()
    claim, lock = machine.directory / "run/train.claim", machine.directory / "run/train.claim.lock"
    key = claim.read_text()
    with claim.open("r+") as claimed, lock.open("r+") as deciding:
        fcntl.flock(deciding, fcntl.LOCK_EX)
        fcntl.flock(claimed, fcntl.LOCK_EX)
        claim.write_text("of an earlier run")
        second = machine.rank(RANK="1", **run)
        deadline = time.monotonic() + 120
        while str(lock) not in opened_by(second):
            assert time.monotonic() < deadline and second.poll() is None
            time.sleep(0.005)
        claim.write_text(key)
        fcntl.flock(deciding, fcntl.LOCK_UN)
        assert address(second) == "train.sock"


def test_a_collector_is_no_child_of_the_program(machine: Machine) -> None:
    machine.script.write_text(
        "import os, signal\n"
        "signals = []\n"
        "signal.signal(signal.SIGCHLD, lambda *_: signals.append(1))\n"
        f"{FIND[: FIND.index('sys.stdin')]}"
        "try:\n    print(os.wait())\n"
        "except ChildProcessError:\n    print('no child', signals, flush=True)\n"
    )
    rank = machine.rank()
    assert address(rank) == "train.sock"
    assert rank.stdout is not None and rank.stdout.readline() == "no child []\n"


def test_a_collector_that_cannot_be_started_is_an_error(machine: Machine) -> None:
    rank = machine.rank(PROBE_BIN="/nowhere/probe")
    out, errors = rank.communicate()
    assert out == ""
    assert "cannot start /nowhere/probe: No such file or directory" in errors.splitlines()[-1]


def test_a_name_is_free_again_when_its_collector_is_gone(machine: Machine) -> None:
    first = machine.rank()
    assert address(first) == "train.sock"
    first.kill()
    first.wait()
    # The collector is still there, and keeps the run that is over.
    assert address(machine.rank()) == "train-2.sock"
    (machine.directory / "live").unlink()
    deadline = time.monotonic() + 120
    while collector.is_live(str(machine.directory / "run/train.sock")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    (machine.directory / "live").touch()
    assert address(machine.rank()) == "train.sock"


def test_a_name_that_probe_run_keeps_is_left_alone(machine: Machine) -> None:
    (machine.directory / "run").mkdir(mode=0o700)
    with open(machine.directory / "run/train.lock", "w") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        assert address(machine.rank()) == "train-2.sock"


@pytest.mark.parametrize(("environment", "arguments", "name"), [
    ({}, ["train gpt.v2.py"], "train-gpt.v2"),
    ({"PROBE_RUN": "mine"}, ["x.py"], "mine"),
    ({"PROBE_RUN": "mine@3"}, ["x.py"], "mine"),
    ({}, [".hidden.py"], "hidden"),
    ({}, [""], "python"),
])  # fmt: skip
def test_a_run_is_called_like_its_script(
    environment: dict[str, str], arguments: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import types

    monkeypatch.delenv("PROBE_RUN", raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.setattr(sys, "argv", arguments)
    assert collector.run_name() == name


def test_names_that_are_commands_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    # As a script export.py is called.
    for command in ("eval", "export", "bench", "capture", "diagnose", "profile"):
        assert collector.run_name(command) == f"{command}-run"
    assert collector.run_name("1234") == "run-1234"


def test_sockets_are_only_put_where_nobody_else_gets_in(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "sockets"
    monkeypatch.setenv("PROBE_RUNTIME_DIR", str(directory))
    assert collector.runtime_directory() == str(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o755)
    with pytest.raises(collector.NoCollectorError, match="hint: chmod 0700"):
        collector.runtime_directory()
    link = tmp_path / "link"
    directory.chmod(0o700)
    link.symlink_to(directory)
    monkeypatch.setenv("PROBE_RUNTIME_DIR", str(link))
    with pytest.raises(collector.NoCollectorError):
        collector.runtime_directory()


def test_runtime_directory_follows_the_environment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROBE_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert collector.runtime_directory() == str(tmp_path / "probe")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert collector.runtime_directory() == str(tmp_path / f"probe-{os.geteuid()}")


def test_a_binary_that_is_not_there_is_said(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("PROBE_BIN", str(tmp_path / "no-such-probe"))
    for _ in range(2):
        with pytest.raises(collector.NoCollectorError, match="hint: name the probe command"):
            collector.find_or_start("gpt")


def test_without_a_stderr_messages_are_not_in_the_program_s_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages.say("for a person")
    assert capsys.readouterr() == ("", "probe: for a person\n")
    monkeypatch.setattr(sys, "stderr", None)
    messages.say("for nobody")
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "")
