"""Tables that a program declares: asked like ours while it trains, after it ended, and after the collector died."""

from __future__ import annotations

import json

from conftest import PATIENCE, SCRIPTS, Home, wait_for

SCRIPT = str(SCRIPTS / "own_tables.py")
SUMS = "SELECT rank, COUNT(*) AS n, SUM(loss) AS loss, SUM(tokens) AS tokens, MAX(step) AS last FROM my.metrics GROUP BY rank ORDER BY rank"  # fmt: skip


def test_ranks_have_one_table_and_a_rank_that_differs_is_told(home: Home) -> None:
    run = home.train("torchrun", "--nproc-per-node", "2", SCRIPT, "40")
    assert run.finish().count("trained 40 steps") == 2
    sums = [{"rank": rank, "n": 40, "loss": 390.0, "tokens": 4000 * rank + 780, "last": 39} for rank in (0, 1)]
    assert run.query(SUMS) == sums
    steps = run.query(
        "SELECT m.rank, m.step, m.tokens FROM my.metrics m JOIN python.steps s USING (run, rank, step) "
        "WHERE m.split = 'odd' AND m.step > 36 ORDER BY m.rank, m.step"
    )
    assert steps == [{"rank": rank, "step": s, "tokens": 100 * rank + s} for rank in (0, 1) for s in (37, 39)]
    # The rank that came first set the columns of the other table; the other rank lost its rows, all of them counted.
    kept = run.query("SELECT rank, COUNT(*) AS n FROM my.disputed GROUP BY rank")
    lost = run.query("SELECT rank, SUM(rows) AS n FROM probe.drops WHERE table_name = 'my.disputed' GROUP BY rank")
    assert [row["n"] for row in kept] == [row["n"] for row in lost] == [40]
    assert kept[0]["rank"] != lost[0]["rank"]
    reasons = run.query("SELECT DISTINCT reason FROM probe.drops WHERE table_name = 'my.disputed'")
    assert reasons == [{"reason": "table refused"}]
    assert "rows of my.disputed are not kept: the run has another table my.disputed: it" in run.errors
    assert "declare it alike on all ranks" in run.errors
    problems = run.query("SELECT problem FROM probe.agents WHERE problem IS NOT NULL")
    assert len(problems) == 1 and "my.disputed" in problems[0]["problem"]
    # A table without rows is there with its columns.
    assert run.query("SELECT COUNT(*) AS n FROM my.empty") == [{"n": 0}]
    listed = json.loads(home.probe("gpt", "tables", "--format", "json").stdout)
    own = {row["table"]: row["rows"] for row in listed if row["table"].startswith("my.")}
    assert own == {"my.disputed": 40, "my.empty": 0, "my.metrics": 80}
    described = home.probe("gpt", "tables", "my.metrics").stdout
    assert "tokens" in described and "SELECT * FROM my.metrics" in described
    missing = home.probe("gpt", "query", "SELECT * FROM my.metric")
    assert missing.returncode == 1 and "did you mean my.metrics?" in missing.stderr


def test_rows_outlive_the_collector_and_are_asked_beside_another_run(home: Home) -> None:
    serve, address = home.serve("kept")
    trainer = home.spawn("python", SCRIPT, "30", PROBE="1", PROBE_COLLECTOR=address, PROBE_RUN="kept")
    assert trainer.wait(PATIENCE) == 0
    wait_for("all rows", lambda: home.query("kept", "SELECT rows_stored FROM probe.agents WHERE state = 'ended'"))
    sums = [{"rank": None, "n": 30, "loss": 217.5, "tokens": 435, "last": 29}]
    assert home.query("kept", SUMS) == sums
    stored = "SELECT rows, rows_on_disk FROM probe.store WHERE table_name = 'my.metrics'"
    assert home.query("kept", stored)[0]["rows"] == 30
    # Two runs in one query, while one of them is live.
    home.train("python", SCRIPT, "10", name="other").finish()
    both = home.probe(
        "other", "query", "--format", "json", "--with", "b=kept",
        "SELECT (SELECT COUNT(*) FROM my.metrics) AS a, (SELECT COUNT(*) FROM b.my.metrics) AS b",
    )  # fmt: skip
    assert both.returncode == 0, both.stderr
    assert json.loads(both.stdout) == [{"a": 10, "b": 30}]
    serve.kill()
    serve.wait(PATIENCE)
    directory = next((home.directory / "state" / "runs").glob("kept*"))
    assert home.query(str(directory), SUMS) == sums
    assert home.query(str(directory), "SELECT COUNT(*) AS n FROM my.disputed") == [{"n": 30}]
