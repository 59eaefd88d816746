"""`probe diagnose` on real runs: a planted cause is named, and its healthy twin is not."""

from __future__ import annotations

import json
import sys

import pytest

from conftest import PROBE, ROOT, Home

sys.path.insert(0, str(ROOT / "tests/diagnose"))
from pressure import PRESSURES, Pressure, wrong

BETWEEN = str(ROOT / "tests/diagnose/plants/between.py")


def test_a_planted_stall_is_named_and_its_twin_is_silent(home: Home) -> None:
    planted = home.train("python", BETWEEN, "--plant", "stall", "--strength", "0.5", name="planted")
    planted.finish()
    done = home.probe("planted", "diagnose", "--json", "--fail-on", "warn")
    answer = json.loads(done.stdout)
    first = answer["findings"][0]
    assert done.returncode == 6 and answer["verdict"], done.stdout
    assert (first["rule"], first["subject"]["part"], first["facts"]["every"]) == ("periodic-stall", "other", 20)
    # 100 ms in each of 20 steps; the machine may be busy.
    assert 3.0 < first["saving"]["ms"] < 10.0, first
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
    assert "verdict: nothing stands out" in page.stdout and "sum" in page.stdout, page.stdout


def test_rules_of_one_s_own(home: Home) -> None:
    home.train("python", BETWEEN, "--steps", "80").finish()
    rules = home.directory / "rules"
    rules.mkdir()
    head = "-- rule: mine\n-- family: own\n-- kind: fact\n-- says: {who}: {seen} steps\n-- do: nothing\n"
    (rules / "mine.sql").write_text(
        head + "SELECT 'many' AS seen, 'warn' AS severity FROM python.steps WHERE $window LIMIT 1"
    )
    answer = json.loads(home.probe("gpt", "diagnose", "--json", "--rules", str(rules)).stdout)
    assert [(of["rule"], of["severity"], of["says"]) for of in answer["findings"] if of["rule"] == "mine"] == [
        ("mine", "warn", "the process: many steps")
    ]
    (rules / "mine.sql").write_text(head + "SELECT nothing FROM python.steps")
    wrong = home.probe("gpt", "diagnose", "--rules", str(rules))
    assert wrong.returncode == 2 and "rule 'mine'" in wrong.stderr and "hint:" in wrong.stderr, wrong.stderr
    few = home.probe("gpt", "diagnose", "--steps", "30..50", "--fail-on", "warn")
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
