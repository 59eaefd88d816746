"""Ranks that really hang, each in another way, and the events about them that need no command."""

from __future__ import annotations

import json
import os
import re

import pytest

from conftest import SCRIPTS, Home, Run, wait_for

STEPS = 30

#: How the last of two ranks gets stuck: what the verdict calls it, and what it says.
HANGS = {
    "missing": ("not entered", r"rank 1 has not entered all_reduce \(number \d+ of group .*, 256 B\): "
                r"rank 1 is in wait_for_a_line \(.*hangs.py:\d+\), waiting: read; rank 0 has waited in it for"),
    "mismatched": ("different", r"ranks are in different operations as number \d+ of group .*: "
                   r"rank 0 in all_reduce \(256 B\), rank 1 in all_gather \(\d+ B\)"),
    "loader": ("not entered", r"rank 1 has not entered all_reduce .*: rank 1 is in wait_for_a_line"),
    "lock": ("not entered", r"rank 1 has not entered all_reduce .*: rank 1 is in stand_still .*waiting: futex"),
    "gil": ("not entered", r"rank 1 has not entered all_reduce .*: rank 1 is in stand_still .*and holds the GIL"),
}  # fmt: skip


def stuck(home: Home, how: str, ranks: int = 2) -> Run:
    command = ("torchrun", "--nproc-per-node", str(ranks), str(SCRIPTS / "hangs.py"), how, str(STEPS))
    run = home.train(*command, PROBE_HANG_AFTER="3s")
    run.wait_for_step(STEPS - 1, ranks=ranks)
    return run


def findings(run: Run) -> list[dict]:
    return run.query("SELECT severity, rank, step, message, details FROM probe.events WHERE kind = 'hang' ORDER BY id")


def test_a_message_that_is_not_sent_is_missed_and_is_no_other_operation(home: Home) -> None:
    run = stuck(home, "message")
    (found,) = wait_for("the finding", lambda: findings(run))
    words = r"rank 1 has not entered recv \(number \d+ of group .*, 256 B\): rank 1 is in wait_for_a_line \(.*hangs.py:\d+\)"
    assert re.match(words, found["message"]), found["message"]
    details = json.loads(found["details"])
    assert (details["why"], details["collective"]["entered"], details["collective"]["missing"]) == (
        "not entered",
        [0],
        [1],
    )


def test_ranks_of_a_group_with_messages_are_compared_by_their_collectives(home: Home) -> None:
    run = stuck(home, "early", ranks=3)
    (found,) = wait_for("the finding", lambda: findings(run))
    words = (
        r"rank 2 has not entered all_reduce \(collective \d+ of group .*, 256 B\): "
        r"rank 2 is in wait_for_a_line \(.*hangs.py:\d+\), waiting: read; ranks 0, 1 have waited in it for"
    )
    assert re.match(words, found["message"]), found["message"]
    assert json.loads(found["details"])["collective"]["missing"] == [2]


#: Hangs that are found in the same way as `missing` and `gil`.
ALIKE = ("loader", "lock")


@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.extended] * (how in ALIKE)) for how in HANGS])
def test_a_hang_is_noticed_and_explained(home: Home, how: str) -> None:
    why, words = HANGS[how]
    run = stuck(home, how)
    (found,) = wait_for("the finding", lambda: findings(run))
    assert re.match(words, found["message"]), found["message"]
    assert found["severity"] == "error"
    details = json.loads(found["details"])
    assert details["why"] == why
    collective = details["collective"]
    assert collective["operation_type"] in ("all_reduce", "all_gather") and collective["size"] == 2
    if why == "not entered":
        assert (found["rank"], collective["entered"], collective["missing"]) == (1, [0], [1])
        # The rank that waits has a row of the collective that it waits in.
        pending = run.query("SELECT rank, seq, operation_type, bytes FROM python.nccl_trace WHERE status = 'pending'")
        seq = collective["seq"]
        assert pending == [{"rank": 0, "seq": seq, "operation_type": "all_reduce", "bytes": 256}]
    else:
        pending = run.query("SELECT rank, operation_type FROM python.nccl_trace WHERE status = 'pending' ORDER BY rank")
        assert [row["operation_type"] for row in pending] == ["all_reduce", "all_gather"]
    # PyTorch itself has the same operation as not finished, and knows the tensors and the line.
    waits, odd = details["ranks"]
    (recorded, *_) = waits["flight_recorder"]["pending"]
    # It counts from 1.
    assert (recorded["operation"], recorded["seq"] - 1) == ("gloo:all_reduce", collective["seq"]), recorded
    assert recorded["input_sizes"] == [[8, 8]], recorded
    # To name lines, PyTorch would import torch.compile. So it is asked for them only if the program has done that.
    if how == "missing":
        assert recorded["frames"][0][1].endswith("hangs.py"), recorded
    else:
        assert recorded["frames"] == [], recorded
    if why == "not entered" and how != "gil":
        assert odd["flight_recorder"]["pending"] == []
    if how == "gil":
        assert odd["flight_recorder"] is None
    # The stacks that it was told from are there.
    where = run.query(f"SELECT rank FROM python.stacks WHERE capture = {details['capture']} AND main GROUP BY 1")
    assert sorted(row["rank"] for row in where) == [0, 1]

    # Asked for, it is the same; and it was said once.
    page = home.probe("gpt", "hang")
    assert page.returncode == 0 and re.search(words, page.stdout), page.stdout + page.stderr
    own = r"Flight Recorder and its own numbers:\nrank 0  gloo:all_reduce \d+ of default_pg, \w+, Float \[8, 8\]"
    assert re.search(own + (", from train " if how == "missing" else r"\s"), page.stdout), page.stdout
    if how == "mismatched":
        imported = run.eval("import sys; print('torch._dynamo' in sys.modules)", "--at", "now", "--rank", "0")
        assert (imported.returncode, imported.stdout) == (0, "False\n"), imported.stderr
    rows = json.loads(home.probe("gpt", "hang", "--format", "json").stdout)
    assert [row["why"] for row in rows] == [why, why]
    if why == "not entered":
        assert [row["entered"] for row in rows] == ["entered", "missing"]
    assert len(findings(run)) == 1
    answer = json.loads(home.probe("gpt", "diagnose", "--json", "--no-ask", "--rule", "hangs").stdout)
    assert [of["severity"] for of in answer["findings"]] == ["critical"], answer
    assert answer["findings"][0]["says"].endswith(found["message"]), answer


@pytest.mark.extended
def test_ranks_that_wait_for_each_other_on_two_groups_are_a_deadlock(home: Home) -> None:
    run = stuck(home, "deadlock")
    (found,) = wait_for("the finding", lambda: findings(run))
    words = (
        r"ranks 0, 1 wait for each other, as ranks do that use groups in different orders: "
        r"rank 0 waits in all_reduce \(number \d+ of group .*, 32 B\), which rank 1 has not entered; "
        r"rank 1 waits in all_reduce \(number \d+ of group .*, 256 B\), which rank 0 has not entered; "
        r"rank 0 is in train \(.*hangs.py:\d+\).*; rank 1 is in train"
    )
    assert re.match(words, found["message"]), found["message"]
    assert json.loads(found["details"])["why"] == "deadlock"
    page = home.probe("gpt", "hang")
    assert page.returncode == 0 and re.search(words, page.stdout), page.stdout + page.stderr


def test_a_rank_that_never_enters_the_first_step_is_named(home: Home) -> None:
    enough = home.directory / "enough"
    os.mkfifo(enough)
    command = ("torchrun", "--nproc-per-node", "2", str(SCRIPTS / "hangs.py"), "late", "0", str(enough))
    run = home.train(*command, PROBE_HANG_AFTER="300ms")
    wait_for("both agents", lambda: home.ask("gpt", "SELECT rank FROM probe.agents WHERE rank >= 0 LIMIT 2 OFFSET 1"))
    # A collective waits ten times as long, because ranks load and compile before they have made a step.
    (found,) = wait_for("the finding", lambda: findings(run))
    words = r"rank 1 has not entered all_reduce \(number 0 of group .*, 256 B\): rank 1 is in stand_still .*; rank 0 has waited"
    assert re.match(words, found["message"]), found["message"]
    assert (found["severity"], found["rank"], found["step"]) == ("error", 1, 0)
    page = home.probe("gpt", "hang")
    assert page.returncode == 0 and re.search(words, page.stdout), page.stdout + page.stderr
    assert re.search(r"^rank 0  0      -  +all_reduce 0 of ", page.stdout, re.MULTILINE), page.stdout
    rows = json.loads(home.probe("gpt", "hang", "--format", "json").stdout)
    assert [(row["step"], row["step_ago"], row["entered"]) for row in rows] == [
        (0, None, "entered"),
        (0, None, "missing"),
    ]
    assert len(findings(run)) == 1
    enough.write_text("")
    _, over, *_ = wait_for("its end", lambda: found if len(found := findings(run)) > 1 else None)
    words = r"(all ranks have entered it|steps go on) after \d+ s"
    assert over["severity"] == "info" and re.match(words, over["message"]), over


def test_what_goes_on_is_no_hang_and_a_short_stop_is_taken_back(home: Home) -> None:
    run = home.train(
        "torchrun", "--nproc-per-node", "2", "examples/train_gpt.py", "--steps", "100000", "--batch-size", "2",
        "--pause", "0.03", PROBE_HANG_AFTER="5s",
    )  # fmt: skip
    run.wait_for_step(20, ranks=2)
    wait_for("a page that says so", lambda: "steps go on" in home.probe("gpt", "hang").stdout)
    # Between two steps no rank trains, and the reason is known: it is no hang.
    waited = run.eval("import time; time.sleep(12)", "--at", "step")
    assert waited.returncode == 0, waited.stderr
    assert findings(run) == []
    pending = "SELECT * FROM python.nccl_trace WHERE status = 'pending'"
    wait_for("no row of an operation that waits", lambda: run.query(pending) == [])


def test_a_rank_that_validates_while_the_others_wait_is_no_hang(home: Home) -> None:
    enough = home.directory / "enough"
    script = (str(SCRIPTS / "hangs.py"), "validates", str(STEPS), str(enough))
    run = home.train("torchrun", "--nproc-per-node", "2", *script, PROBE_HANG_AFTER="2s")
    run.wait_for_step(STEPS - 1, ranks=2)

    def asked() -> list[dict]:
        return json.loads(home.probe("gpt", "hang", "--format", "json").stdout or "[]")

    wait_for("a validation that is long", lambda: all(row["step_ago"] > 5 for row in asked()))
    # How long is too long follows from how long the steps took.
    words = re.compile(r"^gpt.*: rank 1 validates$", re.MULTILINE)
    wait_for("a page that says who validates", lambda: words.search(home.probe("gpt", "hang").stdout))
    assert findings(run) == []
    enough.touch()
    run.finish()
    last = f"SELECT rank, validation_time > 5 AS validated, micro_steps FROM python.steps WHERE step = {STEPS} ORDER BY rank"
    assert run.query(last) == [
        {"rank": 0, "validated": False, "micro_steps": 1},
        {"rank": 1, "validated": True, "micro_steps": 1},
    ]


def test_a_hang_outside_of_collectives_is_told_after_the_end(home: Home) -> None:
    program = home.directory / "waits.py"
    program.write_text(
        f"""import queue
import time
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({STEPS}):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)


def wait_for_the_results():
    queue.Queue().get()


wait_for_the_results()
"""
    )
    run = home.train("python", str(program), PROBE_HANG_AFTER="2s")
    run.wait_for_step(STEPS - 1)
    (found,) = wait_for("the finding", lambda: findings(run))
    live = home.probe("gpt", "stack").stdout
    run.process.terminate()
    run.process.wait()
    page = home.probe("gpt", "hang")
    assert page.returncode == 0, page.stderr
    first, noticed, _, *table = page.stdout.splitlines()
    assert first == f"gpt@1: {found['message']}" and "wait_for_the_results" in first, page.stdout
    assert noticed.startswith("The collector noticed this at 20"), page.stdout
    assert any(line.startswith("process ") and f" {STEPS} " in line and "waits.py:15" in line for line in table), (
        page.stdout
    )
    (row,) = json.loads(home.probe("gpt", "hang", "--format", "json").stdout)
    assert (row["why"], row["step"], row["line"]) == ("outside", STEPS, 15), row
    # The stacks are those that were read last, of all threads.
    stacks = home.probe("gpt", "stack")
    assert stacks.stdout.startswith("This run has ended. These stacks were read last:\ngpt@1: "), (
        stacks.stdout + stacks.stderr
    )
    # The text of a line is not recorded.
    frames = [
        line.split()[:-1] if "get()" in line else line.split() for line in live.splitlines() if "waits.py" in line
    ]
    assert frames and [line.split() for line in stacks.stdout.splitlines() if "waits.py" in line] == frames, (
        stacks.stdout + live
    )
    refused = home.probe("gpt", "stack", "--rank", "7")
    assert refused.returncode == 3 and "no stacks of rank 7 were read" in refused.stderr, refused.stderr
    refused = home.probe("gpt", "stack", "--pause")
    assert refused.returncode == 3 and "this run has ended" in refused.stderr, refused.stderr
    refused = home.probe("gpt", "stack", "--watch")
    assert refused.returncode == 2 and "do not change any more" in refused.stderr, refused.stderr


@pytest.mark.extended
def test_what_a_killed_rank_was_in_stays_pending(home: Home) -> None:
    run = stuck(home, "missing")
    wait_for("the finding", lambda: findings(run))
    run.process.terminate()
    run.process.wait()
    pending = home.query("gpt@1", "SELECT rank, operation_type FROM python.nccl_trace WHERE status = 'pending'")
    assert pending == [{"rank": 0, "operation_type": "all_reduce"}]
