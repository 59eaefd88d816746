"""`probe diagnose` on real runs: a planted cause is named, and its healthy twin is not."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, cast

import pytest

from conftest import PATIENCE, PROBE, ROOT, Home, wait_for

sys.path.insert(0, str(ROOT / "tests/diagnose"))
from pressure import PRESSURES, Pressure, wrong

BETWEEN = str(ROOT / "tests/diagnose/plants/between.py")


def test_a_planted_stall_is_named_and_its_twin_is_silent(home: Home) -> None:
    # Where neighbours have the processors, a shorter stall is a note: it is not sure that it takes a tenth of the time.
    planted = home.train("python", BETWEEN, "--plant", "stall", "--strength", "2", name="planted")
    planted.finish()
    done = home.probe("planted", "diagnose", "--json", "--fail-on", "warn")
    answer = json.loads(done.stdout)
    stall = answer["findings"][0]
    assert done.returncode == 6 and answer["verdict"], done.stdout
    assert (stall["rule"], stall["subject"]["part"], stall["facts"].get("every")) == (
        "periodic-stall",
        "other",
        20,
    ), done.stdout
    # 400 ms in each of 20 steps, or a few more of them. On a busy machine these steps take longer.
    (longest,) = planted.query("SELECT MAX(duration) * 1000 AS ms FROM python.steps WHERE step > 20")
    assert 12.0 < stall["saving"]["ms"] < 1.1 * longest["ms"] / 20, (stall, longest)
    rows = sum(row["typical_ms"] + row["excess_ms"] for row in answer["waterfall"])
    assert abs(rows - answer["step_ms"]) < 1e-6 * answer["step_ms"]
    sql = home.probe("planted", "diagnose", "--sql", "1")
    assert home.probe("planted", "query", "-", stdin=sql.stdout).returncode == 0

    healthy = home.train("python", BETWEEN, name="healthy")
    healthy.finish()
    done = home.probe("healthy", "diagnose", "--json", "--fail-on", "warn")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"], answer["fits"]) == (0, None, True), done.stdout
    page = home.probe("healthy", "diagnose")
    # A busy machine has a note.
    assert re.search("^verdict: (nothing stands out|no warning; )", page.stdout, re.M) and "sum" in page.stdout, (
        page.stdout
    )


EVALUATES_FIRST = """
import torch
model, x = torch.nn.Linear(64, 64), torch.randn(32, 64)
with torch.no_grad():
    for _ in range(112):
        model.eval()(x)
optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def test_calls_before_training_are_no_steps_to_judge_it_by(home: Home) -> None:
    run = home.train("python", "-c", EVALUATES_FIRST)
    run.finish()
    by_kind = "SELECT kind, COUNT(*) AS n, MIN(step) AS first FROM python.steps GROUP BY kind ORDER BY first"
    assert run.query(by_kind) == [
        {"kind": "call", "n": 100, "first": 1}, {"kind": "optimizer", "n": 200, "first": 101},
    ]  # fmt: skip
    page = home.probe("gpt", "diagnose").stdout
    head = re.match(r"gpt@1: (\d+) steps of 1 process \(step (\d+)\.\.300\), ", page)
    assert head and int(head[1]) <= 200 - 16 and int(head[2]) >= 101 + 16, page
    # With these steps alone, nothing has become slower.
    assert run.query("SELECT message FROM probe.events WHERE kind = 'slow'") == []


def test_samples_of_the_stack_name_the_line_of_planted_work(home: Home) -> None:
    program = ["python", BETWEEN, "--plant", "work", "--strength", "1", "--steps"]
    home.train(*program, "480").finish()
    answer = json.loads(home.probe("gpt", "diagnose", "--json").stdout)
    work = answer["findings"][0]
    assert work["rule"] == "work-between-parts" and work["says"].endswith("(sampled)"), answer
    assert (work["sampled"]["function"], answer["asked"]) == ("burn", None), work
    assert work["subject"]["line"] == f"{work['sampled']['file']}:{work['sampled']['line']}"
    kinds = {row["kind"] for row in home.query("gpt", "SELECT kind FROM python.stack_samples GROUP BY kind")}
    assert "always" in kinds and "asked" not in kinds

    # A live run that was not sampled is asked, and goes on as before.
    live = home.train(*program, "100000", name="live", PROBE_STACK_SAMPLING="off")
    live.wait_for_step(240)
    assert live.query("SELECT COUNT(*) AS n FROM python.stack_samples") == [{"n": 0}]
    read = json.loads(home.probe("live", "diagnose", "--json", "--no-ask").stdout)
    line = [of["why"] for of in read["not_decided"] if of["rule"] == "work-between-parts"]
    assert line and line[0].startswith("the line: 0 samples"), read

    samples = 0

    def sampled() -> dict[str, Any] | None:
        nonlocal samples
        done = home.probe("live", "diagnose", "--json", "--ask", "--rule", "work-between-parts")
        answer = json.loads(done.stdout)
        work, stacks = answer["findings"][0], answer["asked"][0]
        assert work["rule"] == "work-between-parts", answer
        assert stacks["what"] == "stacks" and stacks["problem"] is None and stacks["seconds"] >= 4, stacks
        assert "sampling stacks from outside for 4 s" in done.stderr and "of the collector's processor" in done.stderr
        samples += int(stacks["cost"].split()[0])
        shows = "the line of work-between-parts (" if work["sampled"] else "nothing new"
        assert f"it shows {shows}" in done.stderr, done.stderr
        return cast("dict[str, Any] | None", work["sampled"])

    # On a busy machine four seconds may bring too few samples. Those of the next time are added to them.
    line = cast(dict[str, Any], wait_for("the sampled line", sampled))
    assert line["function"] == "burn", line
    counted = live.query("SELECT kind, COUNT(*) AS n FROM python.stack_samples GROUP BY kind")
    assert counted == [{"kind": "asked", "n": samples}]


def test_a_run_that_is_asked_for_more_records_as_before_afterwards(home: Home) -> None:
    few = {"PROBE_DETAIL": "auto", "PROBE_OVERHEAD_BUDGET": "0.01%"}
    program = ["examples/train_gpt.py", "--steps", "1000000", "--batch-size", "2", "--pause", "0.01"]
    run = home.train("python", *program, **few)

    def without_detail(since: int) -> int:
        rows = run.query(f"SELECT COUNT(*) AS n FROM python.steps WHERE NOT detail AND step > {since}")
        return rows[0]["n"]

    run.wait_for_step(150)
    wait_for("steps without detail", lambda: without_detail(150) > 50)
    done = home.probe("gpt", "diagnose", "--ask", "--json")
    asked = {of["what"]: of for of in json.loads(done.stdout)["asked"]}
    assert list(asked) == ["stacks", "modules", "operators"], done.stdout
    assert [of["problem"] for of in asked.values()] == [None, None, None], asked
    steps = re.match(r"(\d+) steps with modules", asked["modules"]["cost"])
    assert steps and int(steps[1]) >= 20, asked
    (newest,) = run.query("SELECT MAX(step) AS step FROM python.steps")
    wait_for("detail as before", lambda: without_detail(newest["step"]) > 50)

    def config_events() -> list[dict[str, Any]]:
        events = run.query("SELECT message FROM probe.events WHERE kind = 'config' ORDER BY id")
        return events if len(events) >= 2 else []

    config = cast("list[dict[str, Any]]", wait_for("both events", config_events))
    assert len(config) == 2 and "asked for detail in 20 steps and for operators in 0" in config[0]["message"], config


def test_a_thread_that_holds_the_lock_is_told(home: Home) -> None:
    run = home.train("python", BETWEEN, "--plant", "gil", "--steps", "100000")
    run.wait_for_step(60)

    def finding() -> dict[str, Any] | None:
        answer = json.loads(home.probe("gpt", "diagnose", "--ask", "--json", "--rule", "gil-held-elsewhere").stdout)
        return next(iter(answer["findings"]), None)

    # On a busy machine the four seconds of one sampling may bring too few samples.
    held = cast(dict[str, Any], wait_for("the finding", finding))
    assert held["severity"] != "critical" and "Pump held the GIL" in held["says"] and "in burn" in held["says"], held


def test_rules_of_one_s_own(home: Home) -> None:
    home.train("python", BETWEEN, "--steps", "80").finish()
    rules = home.directory / "rules"
    rules.mkdir()
    head = "-- rule: mine\n-- family: own\n-- kind: fact\n-- says: {who}: {seen} steps\n-- do: nothing\n"
    (rules / "mine.sql").write_text(
        head + "SELECT 'many' AS seen, 'warn' AS severity FROM python.steps WHERE $window LIMIT 1"
    )
    answer = json.loads(home.probe("gpt", "diagnose", "--json", "--rules", str(rules)).stdout)
    mine = [(of["rule"], of["severity"], of["says"]) for of in answer["findings"] if of["rule"] == "mine"]
    assert mine == [("mine", "warn", "the process: many steps")], answer
    (rules / "mine.sql").write_text(head + "SELECT nothing FROM python.steps")
    wrong = home.probe("gpt", "diagnose", "--rules", str(rules))
    assert wrong.returncode == 2 and "rule 'mine'" in wrong.stderr and "hint:" in wrong.stderr, wrong.stderr
    few = home.probe("gpt", "diagnose", "--steps", "30..50", "--fail-on", "warn", "--all")
    assert few.returncode == 7 and "too few" in few.stdout, few.stdout


#: The one that trains for the shortest time is asked before every commit.
QUICK = "copied"
EACH = [
    pytest.param(pressure, id=pressure.name, marks=[] if pressure.name == QUICK else [pytest.mark.extended])
    for pressure in PRESSURES
]


@pytest.mark.parametrize("pressure", EACH)
def test_a_wrong_suspicion_is_answered(home: Home, pressure: Pressure) -> None:
    program = [str(ROOT / "tests/diagnose/situations.py"), pressure.name, "--steps", str(pressure.steps)]
    launcher = ["torchrun", "--nproc-per-node", str(pressure.ranks)] if pressure.ranks > 1 else ["python"]
    home.train(*launcher, *program, OMP_NUM_THREADS="1").finish()
    assert wrong(pressure, home.directory / "state/runs/gpt@1", PROBE) == []


FORWARD_MODE = """
import torch
from torch.func import functional_call, jvp
model, x = torch.nn.Linear(4, 1), torch.ones(2, 4)
parameters = {name: value.detach() for name, value in model.named_parameters()}
for _ in range(40):
    direction = {name: torch.randn_like(value) for name, value in parameters.items()}
    loss, slope = jvp(lambda values: functional_call(model, values, (x,)).square().mean(), (parameters,), (direction,))
    parameters = {name: parameters[name] - 0.01 * slope * direction[name] for name in parameters}
"""


def test_a_run_without_steps_says_why(home: Home) -> None:
    home.serve("forward")
    started = "import probe_agent; probe_agent.start()\n"
    settings = {"PROBE_COLLECTOR": f"unix:{home.served['forward']}", "PROBE_RUN": "forward"}
    assert home.spawn("python", "-c", started + FORWARD_MODE, **settings).wait(PATIENCE) == 0
    for report in (["forward", "diagnose"], ["compare", "forward", "forward"]):
        told = home.probe(*report)
        assert told.returncode != 0 and "has no finished step" in told.stderr, told
        assert "hint: no step has ended: 32 calls" in told.stderr and "probe_agent.step()" in told.stderr, told


def test_a_run_that_an_exception_ended_before_its_first_step_says_so(home: Home) -> None:
    program = "import torch\nmodel = torch.nn.Linear(2, 2)\nmodel(torch.zeros(1, 2))\nraise KeyError('split')\n"
    assert home.probe("run", "--name", "ended", "--", "python", "-c", program).returncode == 1
    told = home.probe("ended", "diagnose")
    assert told.returncode != 0 and "hint: KeyError ended it, and probe ended@1 crash says where" in told.stderr, told


@pytest.mark.extended
def test_the_planted_layer_of_the_guide_is_found(home: Home) -> None:
    run = home.train("python", "examples/slow_gpt.py", "layer", "--steps", "200", "--batch-size", "8", name="slow")
    run.finish()
    answer = json.loads(home.probe("slow", "diagnose", "--json").stdout)
    found = {finding["rule"]: finding["subject"] for finding in answer["findings"]}
    assert found["odd-sibling"]["module"] == "layers.2", answer["findings"]
