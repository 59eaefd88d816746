"""Training in processes that the main process forks: agents of their own, where it was none itself."""

from __future__ import annotations

import json

import pytest

from conftest import PATIENCE, SCRIPTS, Home

SCRIPT = str(SCRIPTS / "forked.py")
BY_PROCESS = (
    "SELECT a.rank, a.state, a.exit_status, a.step, COUNT(*) AS rows, MIN(s.step) AS first, MAX(s.step) AS last, "
    "COUNT(s.forward_time) AS forward, COUNT(s.backward_time) AS backward FROM probe.agents a "
    "JOIN python.steps s ON s.pid = a.pid GROUP BY a.pid, a.rank, a.state, a.exit_status, a.step ORDER BY a.rank"
)


def test_forked_ranks_are_agents_of_their_own(home: Home) -> None:
    plain = home.spawn("python", SCRIPT, "ranks")
    run = home.train("python", SCRIPT, "ranks", name="forked")
    assert plain.wait(PATIENCE) == 0, plain.err_path.read_text()  # type: ignore[attr-defined]
    said = sorted(run.finish().splitlines())
    assert said == sorted(plain.out_path.read_text().splitlines()), "losses to the last digit"  # type: ignore[attr-defined]
    whole = {"state": "ended", "exit_status": 0, "step": 20, "rows": 20, "first": 0, "last": 19}
    assert run.query(BY_PROCESS) == [{"rank": r, **whole, "forward": 20, "backward": 20} for r in (0, 1)]
    modules = run.query("SELECT DISTINCT module FROM python.torch_trace WHERE stage = 'forward' ORDER BY 1")
    assert {"DistributedDataParallel", "0"} <= {row["module"] for row in modules}
    assert run.query("SELECT COUNT(*) > 0 AS there FROM python.nccl_trace WHERE step = 10") == [{"there": True}]
    assert run.query("SELECT COUNT(*) AS n FROM probe.drops") == [{"n": 0}]


@pytest.mark.parametrize(
    "how, first",
    [("shared", 1), ("spawned", 0), ("forkserver", 0), pytest.param("pool", 0, marks=pytest.mark.extended)],
)
def test_processes_without_a_group_are_agents_from_their_first_step_on(home: Home, how: str, first: int) -> None:
    run = home.train("python", SCRIPT, how, name="forked")
    run.finish()
    # Without a word from the script, the step at which each was seen to train was under way: it is counted, and has no row.
    rows = 20 - first
    whole = {"rank": None, "state": "ended", "exit_status": 0, "step": 20, "rows": rows, "first": first, "last": 19}
    assert run.query(BY_PROCESS) == [{**whole, "forward": rows, "backward": rows}] * 2


def test_who_imported_torch_and_trained_nothing_is_named(home: Home) -> None:
    run = home.train("python", "-c", "import torch; torch.ones(1)", name="quiet")
    run.finish()
    assert "(python -c import torch; torch.ones(1)) imported torch after " in run.errors
    assert "has called no module" in run.errors and "hint: a process is recorded from its first call" in run.errors
    assert not [*home.sockets.glob("*.seen")]


@pytest.mark.parametrize("how", ["worker", "spawned_worker"])
def test_workers_are_no_agents(home: Home, how: str) -> None:
    run = home.train("python", SCRIPT, how, name="forked")
    run.finish()
    assert run.query("SELECT COUNT(*) AS n FROM probe.agents") == [{"n": 0}]
    assert run.query("SELECT COUNT(*) AS n FROM python.steps") == [{"n": 0}]
    assert "without being recorded" not in run.errors


@pytest.mark.parametrize("how", ["after", "ranks_after"])
def test_children_of_an_agent_are_agents_of_their_own(home: Home, how: str) -> None:
    plain = home.spawn("python", SCRIPT, how)
    run = home.train("python", SCRIPT, how, name="forked")
    assert plain.wait(PATIENCE) == 0, plain.err_path.read_text()  # type: ignore[attr-defined]
    assert sorted(run.finish().splitlines()) == sorted(plain.out_path.read_text().splitlines())  # type: ignore[attr-defined]
    # Ranks make a process group before their first step. Without one, it is not known when the first step began.
    ranks, first = ([0, 1], 0) if how == "ranks_after" else ([None, None], 1)
    whole = {"state": "ended", "exit_status": 0, "step": 20, "last": 19}
    rows = 20 - first
    of_children = [{"rank": r, **whole, "rows": rows, "first": first, "forward": rows, "backward": rows} for r in ranks]
    of_parent = {"rank": None, **whole, "rows": 20, "first": 0, "forward": 20, "backward": 20}
    found = run.query(BY_PROCESS)
    assert sorted(found, key=str) == sorted([*of_children, of_parent], key=str)
    assert run.query("SELECT DISTINCT problem FROM probe.agents") == [{"problem": None}]
    assert run.query("SELECT COUNT(*) AS n FROM probe.drops") == [{"n": 0}]
    # The model of the parent, which was named there.
    modules = run.query(
        "SELECT COUNT(DISTINCT step) AS steps FROM python.torch_trace WHERE module = '2' AND stage = 'forward' GROUP BY pid"
    )
    assert sorted(row["steps"] for row in modules) == [rows, rows, 20]
    # Each process has what it trains with, and the children nothing of their parent's.
    optimizers = run.query(
        "SELECT LAST_VALUE(optimizer ORDER BY ts) AS optimizer, COUNT(DISTINCT optimizer) AS n FROM python.environment GROUP BY pid"
    )
    of_child = "RMSprop" if how == "after" else "SGD"
    assert sorted(row["optimizer"] for row in optimizers) == sorted([of_child, of_child, "SGD"])
    assert {row["n"] for row in optimizers} == {1}


@pytest.mark.parametrize("how, seen", [("terminated", "SIGTERM"), ("exited", "exit status 1")])
def test_processes_that_a_program_ends_itself_are_no_warning(home: Home, how: str, seen: str) -> None:
    run = home.train("python", SCRIPT, how, name="forked")
    run.finish()
    answer = json.loads(home.probe("forked@1", "diagnose", "--format", "json").stdout)
    (finding,) = (finding for finding in answer["findings"] if finding["rule"] == "ended-badly")
    assert answer["verdict"] is None and finding["severity"] == "note"
    assert f"{seen}; the command went on and ended with status 0" in finding["says"]
    assert "; the command went on and ended with status 0\n" in home.probe("forked@1", "crash").stdout
    ends = run.query("SELECT severity, message FROM probe.events WHERE kind = 'command end'")
    assert ends == [{"severity": "info", "message": "the command ended with status 0"}]


def test_a_child_that_ends_with_a_thread_s_function_ends(home: Home) -> None:
    run = home.train("python", SCRIPT, "returns", name="forked")
    run.finish()
    assert run.query("SELECT state, step FROM probe.agents") == [{"state": "ended", "step": 20}]
    assert run.query("SELECT COUNT(*) AS n FROM python.steps") == [{"n": 19}]
