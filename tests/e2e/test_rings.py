"""All records of a process that died, to the last one: they are read from the memory that it shares with its collector."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import signal

import pytest

from conftest import PATIENCE, SCRIPTS, Home, Run, wait_for

SCRIPT = str(SCRIPTS / "rings.py")
STEPS = 20
BLOCKS = [f"{number}{part}" for number in range(4) for part in ("", ".linear")]
ALONE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}

#: All of a whole step, by stage.
WHOLE = {
    "forward": sorted(["Sequential", *BLOCKS]),
    "backward": sorted(["Sequential", *BLOCKS, "(outside)"]),
    "step": ["SGD"],
}
#: Modules that were entered and left in the step under way, by where the process ended, and the number of open intervals.
LEFT = {
    "forward": (sorted(["0", "0.linear", "1", "1.linear", "2.linear"]), 2),
    "backward": (WHOLE["forward"], None),
}


def rows_by_step(home: Home, endpoint: str) -> dict[int, dict[str, list[str]]]:
    sql = "SELECT step, stage, COALESCE(module, '(outside)') AS module FROM python.torch_trace"
    found: dict[int, dict[str, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in home.query(endpoint, sql):
        found[row["step"]][row["stage"]].append(row["module"])
    return {step: {stage: sorted(names) for stage, names in stages.items()} for step, stages in found.items()}


def wait_for_agents(run: Run, count: int) -> None:
    """Waits until the collector knows the agents: it cannot read the memory of a process that dies before."""
    live = "SELECT COUNT(*) AS live FROM probe.agents WHERE state = 'live'"

    def there() -> bool:
        return run.home.ask(run.name, live) == [{"live": count}]

    wait_for(f"{count} agents", there)


def details_of(home: Home, endpoint: str) -> dict:
    (event,) = home.query(endpoint, "SELECT details FROM probe.events WHERE kind = 'process end'")
    return json.loads(event["details"])


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("forward", "kill"),
        ("backward", "segfault"),
        pytest.param("forward", "segfault", marks=pytest.mark.extended),
        pytest.param("backward", "kill", marks=pytest.mark.extended),
    ],
)
def test_everything_recorded_outlives_the_process(home: Home, where: str, how: str) -> None:
    run = home.train("python", SCRIPT, where, str(STEPS), str(home.directory), how, **ALONE)
    if how == "kill":
        # Some of it has been sent by now and acknowledged. The rest has a tenth of a second to be drained, or it has not.
        run.wait_for_step(STEPS - 1)
    else:
        wait_for_agents(run, 1)
    (home.directory / "go").touch()
    there = home.directory / "there"
    pid = int(wait_for("the middle of a step", lambda: there.exists() and there.read_text()))
    if how == "kill":
        os.kill(pid, signal.SIGKILL)
    run.process.wait(PATIENCE)

    rows = rows_by_step(home, "gpt@1")
    assert sorted(rows) == list(range(STEPS + 1)), run.errors
    for step in range(STEPS):
        assert rows[step] == WHOLE, step
    left, incomplete = LEFT[where]
    assert rows[STEPS] == {"forward": left}
    steps = home.query("gpt@1", "SELECT step FROM python.steps ORDER BY step")
    assert [row["step"] for row in steps] == list(range(STEPS))
    drops = home.query("gpt@1", "SELECT table_name, reason, rows FROM probe.drops")
    assert {(row["table_name"], row["reason"]) for row in drops} == {("python.torch_trace", "incomplete")}
    if incomplete is not None:
        assert drops[0]["rows"] == incomplete

    (inside,) = details_of(home, "gpt@1")["inside"]
    assert (inside["module"], inside["stage"], inside["step"], inside["main"]) == ("2", where, STEPS, True)
    page = home.probe("gpt@1", "crash").stdout
    assert f"last module  2 ({where}), in step {STEPS}: entered and not left\n" in page, page
    (agent,) = home.query("gpt@1", "SELECT state, signal, problem, step FROM probe.agents")
    signals = {"kill": "SIGKILL", "segfault": "SIGSEGV"}
    assert agent == {"state": "lost", "signal": signals[how], "problem": None, "step": STEPS}


def test_a_collective_that_was_under_way_is_pending(home: Home) -> None:
    command = ["torchrun", "--nproc-per-node", "2", SCRIPT, "collective", str(STEPS), str(home.directory), "kill"]
    run = home.train(*command)
    wait_for_agents(run, 2)
    (home.directory / "go").touch()
    there = home.directory / "there"
    pid = int(wait_for("a rank in a collective", lambda: there.exists() and there.read_text()))
    os.kill(pid, signal.SIGKILL)
    run.process.wait(PATIENCE)
    sql = "SELECT operation_type, status, step, seq FROM python.nccl_trace WHERE status = 'pending' AND rank = 0"
    (row,) = home.query("gpt@1", sql)
    assert (row["operation_type"], row["step"]) == ("all_reduce", STEPS)
    account = json.loads(home.probe("gpt@1", "crash", "--format", "json").stdout)
    killed = next(row for row in account if row["signal"] == "SIGKILL")
    assert (killed["rank"], killed["operation_type"], killed["status"]) == (0, "all_reduce", "pending")


def test_a_run_whose_collector_died_too_leaves_nothing_behind(home: Home) -> None:
    before = set(pathlib.Path("/dev/shm").iterdir())
    collector, address = home.serve("gpt")
    arguments = ("forward", str(STEPS), str(home.directory), "kill")
    child = home.spawn("python", SCRIPT, *arguments, PROBE="1", PROBE_COLLECTOR=address, **ALONE)
    wait_for("rows", lambda: home.query(address, "SELECT step FROM python.steps"))
    (home.directory / "go").touch()
    wait_for("the middle of a step", lambda: (home.directory / "there").exists())
    collector.kill()
    collector.wait()
    child.kill()
    child.wait()
    # Only our own files: other programs may use the directory meanwhile.
    marks = ("probe", str(child.pid), str(collector.pid))
    left = set(pathlib.Path("/dev/shm").iterdir()) - before
    assert not [path for path in left if any(mark in path.name for mark in marks)]
    assert home.query("gpt@1", "SELECT COUNT(*) AS steps FROM python.steps") != []


def test_a_collector_that_came_back_reads_what_a_process_left(home: Home) -> None:
    collector, address = home.serve("gpt")
    arguments = ("forward", str(STEPS), str(home.directory), "kill")
    home.spawn("python", SCRIPT, *arguments, PROBE="1", PROBE_COLLECTOR=address, **ALONE)
    wait_for("rows", lambda: home.query(address, "SELECT step FROM python.steps"))
    collector.kill()
    collector.wait()
    again = home.spawn("probe", "serve", "--resume", "gpt@1", "--listen", address)
    live = "SELECT state FROM probe.agents WHERE state = 'live'"
    wait_for(
        "the process to come back",
        lambda: home.answers(address) and home.query(address, live),
    )
    (home.directory / "go").touch()
    there = home.directory / "there"
    pid = int(wait_for("the middle of a step", lambda: there.exists() and there.read_text()))
    os.kill(pid, signal.SIGKILL)
    wait_for("its end", lambda: home.query(address, "SELECT pid FROM probe.agents WHERE ended IS NOT NULL"))
    rows = rows_by_step(home, address)
    assert [rows[step] for step in range(STEPS)] == [WHOLE] * STEPS
    assert rows[STEPS] == {"forward": LEFT["forward"][0]}
    again.terminate()


def test_without_room_for_shared_memory_rings_are_ordinary_and_that_is_said(home: Home) -> None:
    # No file of the process may be longer than a megabyte, so none of the rings can be had: they lie behind that.
    limited = f"ulimit -f 1024; exec python {SCRIPT} forward {STEPS} {home.directory} kill"
    run = home.train("sh", "-c", limited, **ALONE)
    run.wait_for_step(STEPS - 1)
    (agent,) = run.query("SELECT problem FROM probe.agents")
    assert "rings are not in shared memory (" in agent["problem"]
    (home.directory / "go").touch()
    there = home.directory / "there"
    pid = int(wait_for("the middle of a step", lambda: there.exists() and there.read_text()))
    os.kill(pid, signal.SIGKILL)
    run.process.wait(PATIENCE)
    steps = home.query("gpt@1", "SELECT step FROM python.steps ORDER BY step")
    assert [row["step"] for row in steps] == list(range(STEPS))
    (agent,) = home.query("gpt@1", "SELECT state, signal FROM probe.agents")
    assert agent == {"state": "lost", "signal": "SIGKILL"}
