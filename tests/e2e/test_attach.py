"""`probe attach` and `probe detach`: a training that was started without us, and never learns of it."""

from __future__ import annotations

import faulthandler
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from conftest import BIN, PATIENCE, QUICK_START, ROOT, SCRIPTS, Home, wait_for

UNAWARE = str(SCRIPTS / "unaware.py")
#: Attached to and detached from so often; `make test-attach` does it 200 times.
ROUNDS = int(os.environ.get("PROBE_TEST_ATTACH_ROUNDS", "20"))


class Training:
    """A training process of its own, without anything of ours in its environment."""

    def __init__(self, directory: pathlib.Path, *command: str, wait: bool = True) -> None:
        self.path, self.errors_path = directory / "training.out", directory / "training.err"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PROBE")}
        self.process = subprocess.Popen(
            command, env={**kept, "PYTHONPATH": QUICK_START, "OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True,
            stdout=open(self.path, "w"), stderr=open(self.errors_path, "w"), text=True,
        )  # fmt: skip
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_for("training to begin", lambda: self.is_running() and "ready" in self.output)

    @property
    def pid(self) -> str:
        return str(self.process.pid)

    @property
    def output(self) -> str:
        return self.path.read_text()

    def is_running(self) -> bool:
        assert self.process.poll() is None, f"training ended:\n{self.output}\n{self.errors_path.read_text()}"
        return True

    def finish(self) -> str:
        """Has it end well, and returns what it printed; it has said nothing of us."""
        assert self.process.stdin is not None
        self.process.stdin.write("over")
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0, f"{self.output}\n{self.errors_path.read_text()}"
        assert "probe" not in self.errors_path.read_text()
        return self.output


@pytest.fixture
def training(tmp_path: pathlib.Path) -> Iterator[Training]:
    made = Training(tmp_path, sys.executable, UNAWARE)
    yield made
    made.process.kill()
    made.process.wait()


def said(done: subprocess.CompletedProcess[str], status: int = 0) -> str:
    """The standard error of a command, which must have ended with this status."""
    assert done.returncode == status, done.stderr
    return done.stderr


def test_a_training_is_attached_to_asked_and_detached_from(home: Home, training: Training) -> None:
    words = said(home.probe("attach", training.pid, "--name", "joined"))
    assert f"process {training.pid} (Python 3." in words and "is being attached to by" in words
    assert "is recorded in run joined@1 from its next step on" in words

    def steps() -> int:
        return home.query("joined", "SELECT COUNT(*) AS n FROM python.steps")[0]["n"]

    wait_for("steps", lambda: steps() > 20)
    # The step that it came in is no step; every other one is whole, with the names of modules that were there before.
    rows = home.query(
        "joined", "SELECT step, forward_time, backward_time, optimizer_time, data_time FROM python.steps ORDER BY step"
    )
    assert [row["step"] for row in rows[:20]] == list(range(1, 21))
    assert all(min(row[part] for part in row if part != "step") > 0 for row in rows[:-1])
    names = home.query("joined", "SELECT DISTINCT module FROM python.torch_trace WHERE stage = 'forward'")
    assert {row["module"] for row in names} == {"Sequential", "0", "0.up", "0.drop", "0.down", "1", "1.up", "1.drop", "1.down", "2"}  # fmt: skip
    of_a_step = "SELECT COUNT(*) AS n FROM python.torch_trace WHERE stage = 'forward' GROUP BY step HAVING step < 20"
    assert {row["n"] for row in home.query("joined", of_a_step)} == {10}
    layers = home.query("joined", "SELECT layers FROM probe.agents")[0]["layers"]
    assert "forward=tp_call" in layers and "backward=record_function" in layers and "data=next-patch" in layers
    # It is a run like any other.
    assert home.probe("joined", "eval", "print(type(model).__name__, step > 0)").stdout == "Sequential True\n"
    assert home.probe(training.pid, "eval", "--at", "step", "print(trained is model)").stdout == "True\n"
    assert "unaware.py" in home.probe(training.pid, "stack").stdout
    again = said(home.probe("attach", training.pid))
    assert f"process {training.pid} has an agent already, in run joined@1" in again

    assert f"process {training.pid} goes on without an agent" in said(home.probe("detach", "joined"))
    assert home.query("joined", "SELECT state FROM probe.agents") == [{"state": "ended"}]
    assert "no process" in said(home.probe("detach", "joined"), 3)
    before = steps()
    # The run that it was in goes on where it is attached to again, and a pause is no step.
    assert "in run joined@1" in said(home.probe("attach", training.pid))
    wait_for("more steps", lambda: steps() > before + 20)
    longest = home.query("joined", "SELECT MAX(duration) AS longest FROM python.steps WHERE step > 20")
    assert longest[0]["longest"] < 30
    assert "goes on without" in said(home.probe("detach", training.pid))
    output = training.finish()
    assert output.splitlines()[-1] == "left"


def test_often_and_training_is_not_changed_by_a_bit(
    home: Home, training: Training, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stood, waited = [], []
    for _ in range(ROUNDS):
        words = said(home.probe("attach", training.pid, "--name", "often"))
        times = re.search(r"stood still for ([\d.]+) ms, the main thread for ([\d.]+) ms", words)
        assert times, words
        stood.append(float(times[1]))
        waited.append(float(times[2]))
        assert "goes on without an agent" in said(home.probe(str(training.pid), "detach"))
        training.is_running()
    output = training.finish()
    lines = output.splitlines()
    assert lines[-1] == "left", "nothing of ours stays"
    steps = lines[-2].split()[1]
    plain = subprocess.run(
        [sys.executable, UNAWARE, steps], capture_output=True, text=True, timeout=PATIENCE + ROUNDS * 5, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert plain.stdout.splitlines() == lines
    with capsys.disabled():
        middle = len(stood) // 2
        print(
            f"\n{ROUNDS} rounds, {steps} steps: a thread stood still for {sorted(stood)[middle]:.2f} ms in the median and "
            f"{max(stood):.2f} at most, the main thread for {sorted(waited)[middle]:.1f} and {max(waited):.1f}"
        )


def test_a_launcher_is_attached_to_by_its_workers(home: Home, tmp_path: pathlib.Path) -> None:
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", UNAWARE]
    # torchrun's workers have no standard input of their own.
    training = Training(tmp_path, *torchrun, "100000")
    try:
        words = said(home.probe("attach", training.pid, "--name", "both"))
        assert words.count("is recorded in run both@1 from its next step on") == 2, words

        def ranks() -> list[dict]:
            return home.query("both", "SELECT rank, COUNT(*) AS n FROM python.steps GROUP BY rank ORDER BY rank")

        wait_for("steps of both ranks", lambda: [row["rank"] for row in ranks()] == [0, 1])
        operations = "SELECT COUNT(*) AS n FROM python.nccl_trace WHERE operation_type = 'all_reduce'"
        wait_for("collectives of the group that was there", lambda: home.query("both", operations)[0]["n"] > 10)
        assert said(home.probe("detach", "both")).count("goes on without an agent") == 2
        training.is_running()
    finally:
        training.process.terminate()
        training.process.wait(PATIENCE)


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.extended)])
def test_replicas_stay_equal_when_ranks_are_attached_to_one_after_the_other(
    home: Home, tmp_path: pathlib.Path, rounds: int, pytestconfig: pytest.Config
) -> None:
    """Each rank counts steps from when it was attached to; a snippet still runs between the same two on both."""
    chance = random.Random(rounds)
    ranks = []
    for rank in range(2):
        directory = tmp_path / str(rank)
        directory.mkdir()
        command = [
            "env",
            f"RANK={rank}",
            "WORLD_SIZE=2",
            sys.executable,
            str(SCRIPTS / "replicas.py"),
            str(tmp_path / "meet"),
        ]
        ranks.append(Training(directory, *command, wait=False))
    apart: set[int] = set()
    try:
        for rank in ranks:
            rank.wait_until_ready()
        for round_of in range(rounds):
            # A round that hangs ends the process (pytest.ini), and not many rounds together.
            faulthandler.dump_traceback_later(
                float(pytestconfig.getini("faulthandler_timeout")), file=sys.__stderr__, exit=True
            )
            for rank in chance.sample(ranks, 2):
                said(home.probe("attach", rank.pid, "--name", "replicas"))
                time.sleep(chance.uniform(0.0, 0.4))
            wait_for(
                "both ranks",
                lambda: len(home.query("replicas", "SELECT pid FROM probe.agents WHERE state = 'live'")) == 2,
            )
            change = f"optimizer.param_groups[0]['lr'] = {0.01 * (1 + round_of % 7)}"
            said(home.probe("replicas", "eval", change))
            summed = "one = torch.ones(1); torch.distributed.all_reduce(one); print(one.item())"
            assert home.probe("replicas", "eval", "--at", "step", summed).stdout == "2.0\n"
            what = "print(rank, __import__('probe_agent').status()['step'], real, digest(model))"
            shown = home.probe("replicas", "eval", "--at", "step", "--rank", "all", what).stdout
            digests = sorted(re.findall(r"([01]) (\d+) (\d+ [0-9a-f]{64})", shown))
            assert len(digests) == 2 and digests[0][2] == digests[1][2], f"round {round_of}: {shown}"
            apart.add(int(digests[0][1]) - int(digests[1][1]))
            check_counts_of_steps(home, apart)
            assert said(home.probe("detach", "replicas")).count("goes on without an agent") == 2
        last = ranks[0].finish().splitlines()[-1]
        assert ranks[1].process.wait(PATIENCE) == 0
        assert ranks[1].output.splitlines()[-1] == last
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()


def check_counts_of_steps(home: Home, apart: set[int]) -> None:
    """The ranks' own numbers of one real step were `apart` by these, in each attachment by another: then that is said."""
    known = [{"rank": 0, "step_offset": 0}, {"rank": 1, "step_offset": apart.copy().pop() if len(apart) == 1 else None}]
    query = "SELECT rank, step_offset FROM python.step_offsets ORDER BY rank"
    wait_for(f"offsets of {apart}", lambda: home.query("replicas", query) == known)
    compared = home.query("replicas", "SELECT SUM(steps) AS steps FROM python.rank_balance")[0]["steps"]
    assert (compared > 0) == (len(apart) == 1)
    done = home.probe("compare", "replicas", "--steps", "..200", "--against", "1..200")
    assert done.returncode == 0 and ("left out: rank 1: it is not known" in done.stderr) == (len(apart) > 1), (
        done.stderr
    )


def test_what_would_be_done_is_said_and_not_done(home: Home, training: Training) -> None:
    words = said(home.probe("attach", training.pid, "--dry-run"))
    assert "would be attached to" in words and "and may be" in words
    assert home.probe("list", "--format", "json").stdout.count(f'"pid":{training.pid},') <= 1
    listed = json.loads(home.probe("list", "--format", "json").stdout)
    mine = [row for row in listed if row["pid"] == training.process.pid]
    assert [row["state"] for row in mine] == ["no agent"]
    assert training.finish().splitlines()[-1] == "left"


def test_what_is_no_training_process_is_not_attached_to(home: Home) -> None:
    assert "there is no process 4194304" in said(home.probe("attach", "4194304"), 3)
    sleeper = home.spawn("sleep", "600")
    assert "is not a Python process" in said(home.probe("attach", str(sleeper.pid)), 1)
    python = home.spawn(sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)")
    wait_for("Python", lambda: "python" in pathlib.Path(f"/proc/{python.pid}/maps").read_text())
    wait_for("torch to be waited for", lambda: "has no torch yet" in home.probe("attach", str(python.pid)).stderr)
    off = home.spawn(sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)", PROBE="0")
    wait_for("Python", lambda: "PROBE=0" in home.probe("attach", str(off.pid), "--name", "off").stderr)
    stuck = home.spawn(sys.executable, "-c", "import time; time.sleep(600)")
    wait_for("Python", lambda: "python" in pathlib.Path(f"/proc/{stuck.pid}/maps").read_text())
    asleep = pathlib.Path(f"/proc/{stuck.pid}/syscall")
    wait_for("its sleep", lambda: asleep.read_text().startswith(("230 ", "35 ")))
    words = said(home.probe("attach", str(stuck.pid), "--name", "stuck", "--timeout", "500ms"), 5)
    assert "ran no Python code within 0.5 s, so nothing was done" in words and f"probe {stuck.pid} stack" in words
