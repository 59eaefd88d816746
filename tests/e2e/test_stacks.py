"""Stacks of processes that answer, of those that can't, and of those that have no agent."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import PATIENCE, PROBE, SCRIPTS, Home, Run, wait_for

STEPS = 30
SLEEPER = """
import threading, time
def inner():
    time.sleep(3600)
threading.Thread(target=inner, name="second", daemon=True).start()
print("ready", flush=True)
inner()
"""


def is_asleep(task: pathlib.Path) -> bool:
    """Whether a thread is in `time.sleep`: in clock_nanosleep or nanosleep, or in pselect6 or select before Python 3.11."""
    return (task / "syscall").read_text().startswith(("230 ", "35 ", "270 ", "23 "))


def stuck(home: Home, how: str, ranks: int = 2) -> Run:
    """A run whose last rank is stuck in this way after some steps."""
    run = home.train("torchrun", "--nproc-per-node", str(ranks), str(SCRIPTS / "hangs.py"), how, str(STEPS))
    run.wait_for_step(STEPS - 1, ranks)
    return run


def stacks(run: Run, *arguments: str) -> list[dict]:
    done = run.home.probe(run.name, "stack", "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def innermost_of_user(rows: list[dict], rank: int) -> dict | None:
    mine = [row for row in rows if row["rank"] == rank and row["main"] and row["user_code"]]
    return min(mine, key=lambda row: row["depth"], default=None)


def test_a_process_in_c_code_with_the_gil_is_read_and_the_others_are_folded(home: Home) -> None:
    run = stuck(home, "gil", ranks=3)

    def all_stand_still() -> bool:
        rows = stacks(run)
        at = [innermost_of_user(rows, rank) for rank in range(3)]
        return bool(at[2] and at[2]["function"] == "stand_still" and all(
            one and one["waits_for"] == "collective all_reduce" for one in at[:2]
        ))  # fmt: skip

    wait_for("three ranks to be stuck", all_stand_still)
    rows = stacks(run)
    odd = innermost_of_user(rows, 2)
    assert odd and odd["gil"] and not odd["moving"] and odd["method"] == "memory"
    line = (SCRIPTS / "hangs.py").read_text().splitlines()[odd["line"] - 1]
    assert "sleep(3600)" in line

    page = run.home.probe("gpt", "stack").stdout
    heads = [line for line in page.splitlines() if "main thread" in line]
    assert heads[0].startswith("ranks 0, 1 ") and "waiting: collective all_reduce" in heads[0]
    assert heads[1].startswith("rank 2 ") and "holds the GIL" in heads[1]
    assert re.search(r"> stand_still .*hangs.py:\d+ +ctypes.PyDLL", page)

    # Every capture is a table; the newest is the page's.
    sql = (
        "WITH newest AS (SELECT * FROM python.stacks WHERE capture = (SELECT MAX(capture) FROM python.stacks)) "
        "SELECT rank, function FROM newest WHERE main AND user_code AND rank = 2 "
        "AND depth = (SELECT MIN(depth) FROM newest WHERE main AND user_code AND rank = 2)"
    )
    assert run.query(sql) == [{"rank": 2, "function": "stand_still"}]
    # The agent of a process whose GIL is taken can't answer, and that is said; the others' can.
    asked = run.home.probe("gpt", "stack", "--ask-agent")
    assert asked.returncode == 0 and "asked of the agent" in asked.stdout
    assert re.search(r"rank 2: .*no answer", asked.stdout)


def test_captures_survive_the_collector(home: Home) -> None:
    run = stuck(home, "missing")
    first = stacks(run)
    # On disk within a second, as rows of agents are.
    run.query("SELECT 1")
    collector = json.loads((home.directory / "state" / "runs" / "gpt@1" / "run.json").read_text())["pid"]
    # Killed processes end no others, so this test ends torchrun and its workers.
    workers = [row["pid"] for row in run.query("SELECT pid FROM probe.agents")]
    launcher = int(pathlib.Path(f"/proc/{workers[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    journal = home.directory / "state" / "runs" / "gpt@1" / "journal"
    wait_for("the capture to be written", lambda: any(b"stand_still" in f.read_bytes() for f in journal.iterdir()))
    # No process is left that could restart the collector.
    run.process.kill()
    run.process.wait()
    for pid in (launcher, *workers, collector):
        os.kill(pid, signal.SIGKILL)
    # Until the kernel has ended the collector, it is asked and breaks off.
    sql = "SELECT rank, function, depth, thread FROM python.stacks WHERE main AND capture = 1"
    kept = wait_for("an answer from the run's directory", lambda: home.ask("gpt@1", sql))
    shown = [(r["rank"], r["function"], r["depth"]) for r in first if r["main"]]
    assert sorted((r["rank"], r["function"], r["depth"]) for r in kept) == sorted(shown)
    assert [r["state"] for r in home.query("gpt@1", "SELECT state FROM probe.agents")] == ["lost", "lost"]


def test_sampling_counts_and_is_bounded(two_ranks: Run) -> None:
    rows = stacks(two_ranks, "--duration", "2s", "--rate", "100")
    by_thread = {(r["rank"], r["thread"], r["samples"], r["main"]) for r in rows}
    taken = [sum(samples for at, _, samples, main in by_thread if main and at == rank) for rank in (0, 1)]
    # Samples for which a busy machine is too late are left out.
    assert all(0 < samples <= 200 for samples in taken), taken
    kept = two_ranks.query(
        "SELECT rank, SUM(samples) AS n FROM python.stacks WHERE depth = 0 AND main "
        "AND capture = (SELECT MAX(capture) FROM python.stacks) GROUP BY rank ORDER BY rank"
    )
    assert kept == [{"rank": rank, "n": samples} for rank, samples in enumerate(taken)]
    page = two_ranks.home.probe("gpt", "stack", "--duration", "1s").stdout
    assert re.search(r"\d+ samples", page) and "train_gpt.py" in page


def test_flame_graphs_are_drawn_by_rank_and_merged(two_ranks: Run, tmp_path: pathlib.Path) -> None:
    def flamegraph(*arguments: str) -> str:
        done = two_ranks.home.probe("gpt", "flamegraph", "--duration", "2s", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    flamegraph("-o", str(tmp_path / "f.svg"))
    assert "train_gpt.py" in (tmp_path / "f.svg").read_text()
    merged = flamegraph("--format", "folded").splitlines()
    assert merged and all(re.fullmatch(r".* \d+", line) for line in merged)
    assert not any(line.startswith("rank ") for line in merged)
    by_rank = flamegraph("--format", "folded", "--by-rank").splitlines()
    assert {line.split(";")[0] for line in by_rank} == {"rank 0", "rank 1"}
    scope = json.loads(flamegraph("--format", "speedscope", "--by-rank"))
    frames = len(scope["shared"]["frames"])
    for profile in scope["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= index < frames for sample in profile["samples"] for index in sample)


def pythons() -> list[str]:
    """Interpreters of this machine that can be read."""
    found = [sys.executable, *sorted(str(p) for p in pathlib.Path("/").glob("root/.pyenv/versions/3.*/bin/python3"))]
    by_version = {}
    for python in found:
        said = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
        minor = tuple(int(part) for part in said.stdout.split() or [0, 0])
        if (3, 9) <= minor <= (3, 14):
            by_version.setdefault(minor, python)
    return list(by_version.values())


@pytest.mark.parametrize(
    "python",
    [pytest.param(python, marks=[pytest.mark.extended] * (python != sys.executable)) for python in pythons()],
)
@pytest.mark.parametrize("arguments", [[], ["--pause"]], ids=["running", "paused"])
def test_a_process_without_an_agent_is_read_too(home: Home, python: str, arguments: list[str]) -> None:
    child = home.spawn(python, "-c", SLEEPER, PROBE="0")
    wait_for("it to begin", lambda: "ready" in child.out_path.read_text())  # type: ignore[attr-defined]
    tasks = pathlib.Path(f"/proc/{child.pid}/task")
    wait_for("both threads to sleep", lambda: all(is_asleep(task) for task in tasks.iterdir()))
    done = home.probe(str(child.pid), "stack", *arguments)
    assert done.returncode == 0, done.stderr
    assert "main thread" in done.stdout and "thread second" in done.stdout
    assert done.stdout.count("<string>:4") == 2
    assert child.poll() is None
    # No trace of having been traced.
    status = pathlib.Path(f"/proc/{child.pid}/status")
    untraced = r"State:\s+S(.|\n)*TracerPid:\s+0\b"
    wait_for("it to sleep on", lambda: re.search(untraced, status.read_text()))


def test_who_is_no_python_or_not_there_is_said(home: Home) -> None:
    child = home.spawn("sleep", "3600")
    done = home.probe(str(child.pid), "stack")
    assert done.returncode == 1 and "no Python that can be read" in done.stdout
    assert home.probe("999999999", "stack").returncode == 3


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="takes root, to become somebody else")
def test_where_it_is_not_permitted_the_way_out_is_said(home: Home) -> None:
    child = home.spawn(sys.executable, "-c", SLEEPER, PROBE="0")
    wait_for("it to begin", lambda: "ready" in child.out_path.read_text())  # type: ignore[attr-defined]
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    theirs = home.environment(PROBE_HOME="/nonexistent", PROBE_RUNTIME_DIR="/nonexistent")
    command = [*nobody, PROBE, str(child.pid), "stack"]
    done = subprocess.run(command, env=theirs, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 4, (done.stdout, done.stderr)
    assert "may not be read" in done.stdout and "hint: it belongs to root" in done.stdout


def test_training_without_an_agent_is_listed(home: Home) -> None:
    # Started by one that has torch itself, as by a sweep, and with workers of its own.
    code = """
import multiprocessing, os, time, torch
parent = os.getppid()
from torch.utils.data import DataLoader
def load():
    loaders = [iter(DataLoader(range(9), num_workers=1, multiprocessing_context=c)) for c in ("fork", "spawn")]
    print(*map(next, loaders), *[p.pid for p in multiprocessing.active_children()], flush=True)
    while os.getppid() == parent:
        time.sleep(0.1)
if __name__ == "__main__":
    load()
"""
    script = home.directory / "train.py"
    script.write_text(code)
    starts = "import subprocess, sys, torch; subprocess.run([sys.executable, sys.argv[1]])"
    child = home.spawn(sys.executable, "-c", starts, str(script), PROBE="0")
    output = child.out_path  # type: ignore[attr-defined]
    wait_for("it to begin", lambda: "tensor" in output.read_text())
    workers = [int(word) for word in output.read_text().split() if word.isdigit()]
    assert len(workers) == 2

    def listed(*arguments: str) -> list[dict]:
        rows = json.loads(home.probe("list", "--format", "json", *arguments).stdout)
        assert not [row for row in rows if row["pid"] in workers]
        return [row for row in rows if str(script) in row["command"] and "subprocess" not in row["command"]]

    assert [(row["run"], row["state"]) for row in listed()] == [(None, "no agent")]
    assert listed("--with-agent") == []
    assert "probe " in home.probe("list").stderr and " stack shows where" in home.probe("list").stderr


def test_the_doctor_says_what_works_here(home: Home) -> None:
    done = home.probe("doctor", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = {row["check"]: row for row in json.loads(done.stdout)}
    assert list(found) == [
        "run directories", "sockets", "stacks", "native frames", "/dev/shm", "NVIDIA driver", "perf events",
        "Python", "torch", "agent",
    ]  # fmt: skip
    assert {row["state"] for row in found.values()} <= {"ok", "limited", "missing", "none"}
    assert [found[check]["state"] for check in ("sockets", "Python", "torch", "agent")] == ["ok"] * 4
    assert str(home.sockets) in found["sockets"]["finding"]
    page = home.probe("doctor").stdout
    assert all(check in page for check in found)
    # A directory that other users can write to is refused for sockets, and then nothing can run.
    home.sockets.chmod(0o777)
    broken = home.probe("doctor")
    home.sockets.chmod(0o700)
    assert broken.returncode == 1 and re.search(r"missing +sockets .*\n +hint:", broken.stdout), broken.stdout
