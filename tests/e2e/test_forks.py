"""Training in processes that the main process forks: agents of their own, where it was none itself."""

from __future__ import annotations

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


@pytest.mark.parametrize("how, agents", [("worker", 0), ("spawned_worker", 0), ("after", 1)])
def test_workers_and_children_of_an_agent_are_none(home: Home, how: str, agents: int) -> None:
    run = home.train("python", SCRIPT, how, name="forked")
    run.finish()
    assert run.query("SELECT COUNT(*) AS n FROM probe.agents") == [{"n": agents}]
    assert run.query("SELECT COUNT(*) AS n FROM python.steps") == [{"n": 20 * agents}]


def test_a_child_that_ends_with_a_thread_s_function_ends(home: Home) -> None:
    run = home.train("python", SCRIPT, "returns", name="forked")
    run.finish()
    assert run.query("SELECT state, step FROM probe.agents") == [{"state": "ended", "step": 20}]
    assert run.query("SELECT COUNT(*) AS n FROM python.steps") == [{"n": 19}]
