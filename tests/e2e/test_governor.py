"""detail=auto: recording is thinned to its budget, the same on all ranks, and slow steps are captured whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import SCRIPTS, Home, Run, wait_for

pytestmark = pytest.mark.timing

TINY = str(SCRIPTS / "tiny_layers.py")
# Steps that this many after the newest plan's first have it.
LATER = 200


def tiny(home: Home, *launcher: str, **environment: str) -> Run:
    return home.train(*(launcher or ("python",)), TINY, str(home.directory / "slow"), "1000000", **environment)


def newest_plan(run: Run) -> tuple[int, int]:
    """The stride that the governor chose last, and from which step on."""
    rows = run.query("SELECT step, details FROM probe.events WHERE kind = 'detail' ORDER BY id DESC LIMIT 1")
    return (json.loads(rows[0]["details"])["stride"], rows[0]["step"]) if rows else (1, 0)


def is_planned(step: int, stride: int) -> bool:
    """Whether a step has detail under detail=auto at this stride, which is above 1."""
    block, position = divmod(step, stride)
    return position == (((block + 1) * 0x9E3779B97F4A7C15 % 2**64) >> 63 if stride == 2 else block % stride)


def detailed(run: Run, rank: str, first: int, last: int) -> list[int]:
    """Steps with rows of modules."""
    rows = run.query(
        f"SELECT DISTINCT step FROM python.torch_trace WHERE {rank} AND step BETWEEN {first} AND {last} ORDER BY step"
    )
    return [row["step"] for row in rows]


def wait_for_stride(run: Run) -> None:
    wait_for("a stride", lambda: run.query("SELECT 1 AS one FROM probe.events WHERE kind = 'detail'"))


def test_tiny_layers_are_thinned_and_every_step_has_its_row(home: Home) -> None:
    run = tiny(home, PROBE_DETAIL="auto")
    run.wait_for_step(20)
    wait_for_stride(run)

    def settled() -> tuple[list[int], list[dict]] | None:
        """A hundred steps under one plan. On a busy machine there may be a capture of slow steps meanwhile, which is none,
        or a plan may come late."""
        stride, begun = newest_plan(run)
        last = run.query("SELECT MAX(step) AS step FROM python.steps")[0]["step"]
        overhead = run.query("SELECT detail_stride FROM probe.overhead ORDER BY ts DESC LIMIT 1")
        if stride == 1 or overhead[0]["detail_stride"] != stride or last <= begun + LATER:
            return None
        among = f"step BETWEEN {last - 100} AND {last}"
        steps = run.query(f"SELECT step, detail FROM python.steps WHERE {among} ORDER BY step")
        planned = [step for step in range(last - 100, last + 1) if is_planned(step, stride)]
        return (planned, steps) if [row["step"] for row in steps if row["detail"]] == planned else None

    planned, steps = wait_for("steps in detail as planned, and no others", settled)  # type: ignore[misc]
    first, last = steps[0]["step"], steps[-1]["step"]
    assert last == first + 100 and [row["step"] for row in steps] == list(range(first, last + 1))
    assert detailed(run, "TRUE", first, last) == planned
    row = run.query("SELECT * FROM probe.overhead ORDER BY ts DESC LIMIT 1")[0]
    assert row["events"] > 600 > row["events_without_detail"] > 0
    assert row["budget"] == 0.01 and 0 < row["estimated_share"] < 0.05
    assert 0 < row["event_cost"] < row["node_cost"] < 1e-5
    assert 0 < row["ring_bytes"] + row["buffer_bytes"] + row["string_bytes"] < 32 << 20
    measured = wait_for("a measured ratio", lambda: run.query(
        "SELECT measured_ratio AS ratio, measured_low AS low, measured_high AS high, measured_pairs AS pairs "
        "FROM probe.overhead WHERE measured_ratio IS NOT NULL ORDER BY ts DESC LIMIT 1"
    ))[0]  # type: ignore[index]  # fmt: skip
    assert measured["low"] <= measured["ratio"] <= measured["high"] and measured["pairs"] >= 8


def test_all_ranks_have_detail_in_the_same_steps(home: Home) -> None:
    run = tiny(home, "torchrun", "--nproc-per-node", "2", PROBE_DETAIL="auto", PROBE_OVERHEAD_BUDGET="0.1%")
    run.wait_for_step(20, ranks=2)
    wait_for_stride(run)
    # Plans come and go while this one runs: whatever holds, it holds on both.
    assert newest_plan(run)[0] > 1
    for setting in ("detail=1/3", "detail=off", "detail=1/5"):
        assert home.probe("gpt", "config", setting).returncode == 0
    home.probe("gpt", "config", "detail=auto")
    newest = run.query("SELECT MAX(step) AS step FROM python.steps")[0]["step"]
    run.wait_for_step(newest + LATER, ranks=2)
    last = newest + LATER
    of = {
        rank: run.query(f"SELECT step, detail FROM python.steps WHERE rank = {rank} AND step <= {last} ORDER BY step")
        for rank in (0, 1)
    }
    assert [row["step"] for row in of[0]] == list(range(last + 1))
    late = run.query("SELECT COUNT(*) AS n FROM probe.drops")[0]["n"]
    assert late == 0
    # On a busy machine a plan may come late; then it is said in which steps the ranks may differ.
    windows = [json.loads(row["details"]) for row in run.query(
        "SELECT details FROM probe.events WHERE kind = 'detail late'"
    )]  # fmt: skip
    apart = {step for window in windows for step in range(window["from_step"], window["until_step"] + 1)}
    differ = {mine["step"] for mine, other in zip(of[0], of[1], strict=True) if mine != other}
    assert differ <= apart and len(apart) < last / 2
    planned = run.query("SELECT MIN(step) AS step FROM probe.events WHERE kind = 'detail'")[0]["step"]
    slow = run.query("SELECT 1 AS one FROM probe.events WHERE kind = 'slow' LIMIT 1")
    for rank in (0, 1):
        steps = [row["step"] for row in of[rank] if row["detail"]]
        # Until the first plan all of them; how many that are is up to the machine, and so is whether steps are slow.
        assert slow or len([step for step in steps if step >= planned]) < (last - planned) / 2
        assert detailed(run, f"rank = {rank}", 0, last) == steps


def test_slow_steps_are_captured_and_the_events_say_why(home: Home) -> None:
    slow = Path(home.directory / "slow")
    run = tiny(home, PROBE_DETAIL="auto")
    run.wait_for_step(20)
    wait_for_stride(run)
    wait_for(
        "a baseline", lambda: run.query("SELECT 1 AS one FROM probe.overhead WHERE step_duration > 0 AND step > 4000")
    )
    assert home.probe("gpt", "config", "capture_on=slow").returncode == 0
    slow.touch()

    def noticed() -> dict | None:
        """The planted layer, and not that the machine had something else to do."""
        for event in run.query("SELECT * FROM probe.events WHERE kind = 'slow' AND severity = 'warning'"):
            if json.loads(event["details"])["recent"] > 0.05:
                return event
        return None

    event: dict = wait_for("that it is slow", noticed)  # type: ignore[assignment]
    medians = json.loads(event["details"])
    assert medians["recent"] > 1.5 * medians["baseline"] > 0
    assert "instead of" in event["message"]

    def captured() -> list[dict]:
        """Ten steps in a row in detail, and the planted layer takes their time."""
        return run.query(
            f"SELECT module, COUNT(DISTINCT step) AS steps FROM python.torch_trace WHERE step > {event['step']} "
            "AND module = '100' AND duration > 0.04 AND step > (SELECT MAX(step) - 10 FROM python.steps) "
            "GROUP BY module HAVING COUNT(DISTINCT step) >= 10"
        )

    wait_for("every step in detail", captured)
    profiled = wait_for("a capture", lambda: run.query("SELECT capture, steps, operators FROM python.captures"))
    assert [row["steps"] for row in profiled] == [3] and profiled[0]["operators"] > 300  # type: ignore[index, attr-defined]
    slow.unlink()
    over = wait_for("that it is over", lambda: run.query(
        f"SELECT message FROM probe.events WHERE kind = 'slow' AND severity = 'info' AND id > {event['id']}"
    ))[0]  # type: ignore[index]  # fmt: skip
    # On a machine that is busier by now, what was slow for half a minute is what it settles at.
    assert "again" in over["message"] or "by now" in over["message"]
    wait_for("thinner steps", lambda: run.query(
        "SELECT 1 AS one FROM python.steps WHERE NOT detail AND step > (SELECT MAX(step) - 30 FROM python.steps) LIMIT 1"
    ))  # fmt: skip


def test_layers_are_switched_while_it_runs(home: Home) -> None:
    run = tiny(home)
    run.wait_for_step(20)
    assert home.probe("gpt", "config", "layers=-backward,-optimizer").returncode == 0
    layers = "SELECT layers FROM probe.agents"
    wait_for("the layers", lambda: "backward=off" in run.query(layers)[0]["layers"])
    off = "FROM python.steps WHERE backward_time = 0"
    wait_for("steps without backward", lambda: run.query(f"SELECT step {off} LIMIT 20")[19:])
    first = run.query(f"SELECT MIN(step) AS step {off}")[0]["step"]
    stages = f"SELECT DISTINCT stage FROM python.torch_trace WHERE step BETWEEN {first} AND {first + 10}"
    assert run.query(stages) == [{"stage": "forward"}]
    step = run.query(f"SELECT * FROM python.steps WHERE step = {first + 5}")[0]
    assert step["forward_time"] > 0 and step["optimizer_time"] > 0 and step["other_time"] > 0
    assert home.probe("gpt", "config", "layers=all").returncode == 0
    wait_for("backward again", lambda: run.query(
        f"SELECT 1 AS one FROM python.torch_trace WHERE stage = 'backward' AND step > {first + 20} LIMIT 1"
    ))  # fmt: skip
    # Rows and what an agent says of itself come each in their own time.
    wait_for("that it is said", lambda: "backward=record_function" in run.query(layers)[0]["layers"])
    wrong = home.probe("gpt", "config", "layers=sideways")
    assert wrong.returncode == 2 and "layers are forward, backward" in wrong.stderr
