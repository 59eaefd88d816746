"""Acknowledged rows are kept: collectors are killed, disks are full, and every row is stored once."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import pytest

from conftest import AGENT_TABLES, PATIENCE, SCRIPTS, Home, wait_for

STEPS = "SELECT COUNT(*) AS n, COUNT(DISTINCT step) AS steps, MAX(step) AS last FROM python.steps"


def last_step(home: Home, endpoint: str) -> int:
    """The newest step that can be asked for; -1 where none can."""
    rows = home.ask(endpoint, "SELECT MAX(step) AS s FROM python.steps")
    return -1 if not rows or rows[0]["s"] is None else rows[0]["s"]


def journal_bytes(home: Home, run: str) -> int:
    """Bytes of the run's journal, whose files are appended to."""
    return sum(path.stat().st_size for path in (home.directory / "state" / "runs" / run / "journal").iterdir())


def account(home: Home, endpoint: str) -> dict:
    """recorded = stored + dropped + evicted, once nothing is in flight."""
    agents = home.query(endpoint, "SELECT rows_recorded AS recorded, rows_stored AS stored FROM probe.agents")
    assert len(agents) == 1, agents
    drops = "SELECT COALESCE(SUM(CASE WHEN reason = 'evicted' THEN rows END), 0) AS evicted, COALESCE(SUM(CASE WHEN reason <> 'evicted' THEN rows END), 0) AS dropped FROM probe.drops"
    there = sum(home.query(endpoint, f"SELECT COUNT(*) AS n FROM {table}")[0]["n"] for table in AGENT_TABLES)
    return {**agents[0], **home.query(endpoint, drops)[0], "there": there}


def test_a_killed_collector_loses_nothing(home: Home) -> None:
    serve, address = home.serve("mortal")
    trainer = home.spawn("python", "examples/train_gpt.py", "--steps", "300", "--batch-size", "2", "--pause", "0.05", PROBE="1",
                         PROBE_COLLECTOR=address, PROBE_RUN="mortal")  # fmt: skip
    # The last is killed as soon as it answers.
    for steps in (20, 40, 60, 0):
        wait_for("more steps", lambda steps=steps: last_step(home, address) >= steps)
        if steps == 20:
            # They are on disk within a second: whatever waits is written together, so twice is enough.
            for _ in range(2):
                before = journal_bytes(home, "mortal@1")
                wait_for("the journal", lambda before=before: journal_bytes(home, "mortal@1") > before)
        acknowledged = home.query(address, "SELECT MAX(step) AS s FROM python.steps")[0]["s"]
        serve.kill()
        serve.wait(PATIENCE)
        # The directory answers for a run without a collector, except for the second that was not on disk.
        assert "lost" in home.probe("runs").stdout
        assert last_step(home, "mortal") >= 0
        assert last_step(home, "mortal") <= acknowledged + 1000
        resumed = home.probe("serve", "--resume", "mortal@9")
        assert resumed.returncode == 3 and "mortal@1" in resumed.stderr, resumed.stderr
        serve = home.spawn("probe", "serve", "--resume", "mortal", "--listen", address)
        wait_for("the collector", lambda: home.answers(address))
    assert trainer.wait(PATIENCE) == 0, trainer.err_path.read_text()  # type: ignore[attr-defined]
    wait_for("the end", lambda: home.query(address, "SELECT state FROM probe.agents") == [{"state": "ended"}])
    for endpoint in (address, "mortal@1"):
        assert home.query(endpoint, STEPS) == [{"n": 300, "steps": 300, "last": 299}]
        # Every step has the same modules, each once.
        twice = """SELECT step, module, stage, call_index FROM python.torch_trace
                   GROUP BY step, module, stage, call_index, thread HAVING COUNT(*) > 1"""
        assert home.query(endpoint, twice) == []
        counts = (
            "SELECT DISTINCT n FROM (SELECT step, COUNT(*) AS n FROM python.torch_trace WHERE step > 0 GROUP BY step)"
        )
        assert len(home.query(endpoint, counts)) == 1
        books = account(home, endpoint)
        assert books["there"] == books["stored"] == books["recorded"], books
        assert books["dropped"] == books["evicted"] == 0, books
        killed = "SELECT message FROM probe.events WHERE kind = 'collector'"
        told = {"message": "the collector was killed, and another one goes on with the run"}
        assert home.query(endpoint, killed) == [told] * 4
        if endpoint == address:
            serve.send_signal(signal.SIGTERM)
            assert serve.wait(PATIENCE) == 0
    # Nobody told the collector a command.
    (listed,) = json.loads(home.probe("runs", "--format", "json").stdout)
    assert "train_gpt.py --steps 300" in listed["command"], listed
    done = home.probe("serve", "--resume", "mortal")
    assert done.returncode == 1 and "has ended" in done.stderr and "hint:" in done.stderr


def test_a_full_disk_is_said_and_costs_no_rows_while_there_is_memory(home: Home) -> None:
    # No file of the collector may grow past 64 KiB: to it that is a disk that is full.
    limited = "ulimit -f 64; exec probe serve --name full"
    serve = home.spawn("bash", "-c", limited)
    wait_for("the collector", lambda: home.answers("full"))
    trainer = home.spawn("python", "examples/train_gpt.py", "--steps", "100", "--batch-size", "2", PROBE="1",
                         PROBE_COLLECTOR=f"unix:{home.sockets}/full@1.sock")  # fmt: skip
    problem = "SELECT problem FROM probe.agents WHERE problem LIKE '%memory only%'"
    wait_for("it to be said", lambda: home.query("full", problem))
    assert trainer.wait(PATIENCE) == 0, trainer.err_path.read_text()  # type: ignore[attr-defined]
    wait_for("the end", lambda: home.query("full", "SELECT state FROM probe.agents") == [{"state": "ended"}])
    assert home.query("full", STEPS) == [{"n": 100, "steps": 100, "last": 99}]
    books = account(home, "full")
    assert books["there"] == books["stored"] == books["recorded"], books
    errors = serve.err_path.read_text()  # type: ignore[attr-defined]
    assert errors.count("memory only") == 1 and "hint:" in errors, errors
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(PATIENCE) == 1  # The run could not be written, and that is an error.
    errors = serve.err_path.read_text()  # type: ignore[attr-defined]
    assert "File too large" in errors and "External" not in errors, errors
    # What was in memory only is lost, and counted by the last checkpoint.
    books = account(home, "full@1")
    assert books["there"] == books["stored"] < books["recorded"] == books["stored"] + books["dropped"], books
    told = home.probe("full@1", "query", "SELECT DISTINCT reason FROM probe.drops").stderr
    assert " were not on disk when the collector ended (probe.drops)" in told, told
    assert "can't be read" not in told, told


SLOW_DISK = """
#include <unistd.h>
#include <sys/syscall.h>
int fdatasync(int file) { usleep(3000000); return syscall(SYS_fdatasync, file); }
int fsync(int file) { usleep(1000000); return syscall(SYS_fsync, file); }
"""


def test_a_flood_onto_a_slow_disk_is_counted_to_the_row(home: Home, tmp_path: pathlib.Path) -> None:
    # A disk that takes seconds to say that it has something: so long nothing is acknowledged, and the agent's buffer,
    # which is bounded, fills with what two thousand modules a step record.
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_DISK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    serve = home.spawn("probe", "serve", "--name", "slow", LD_PRELOAD=str(library), PROBE_MEMORY="64M")
    wait_for("the collector", lambda: home.answers("slow"))
    trainer = home.spawn("python", str(SCRIPTS / "flood.py"), PROBE="1",
                         PROBE_COLLECTOR=f"unix:{home.sockets}/slow@1.sock")  # fmt: skip
    assert trainer.wait(PATIENCE) == 0, trainer.err_path.read_text()  # type: ignore[attr-defined]
    wait_for(
        "its end",
        lambda: home.query("slow", "SELECT pid FROM probe.agents WHERE state <> 'live' AND ended IS NOT NULL"),
    )
    books = account(home, "slow")
    assert books["recorded"] == books["stored"] + books["dropped"] + books["evicted"], books
    assert books["there"] == books["stored"], books
    reasons = {row["reason"] for row in home.query("slow", "SELECT DISTINCT reason FROM probe.drops")}
    assert reasons and reasons <= {"ring full", "send buffer full", "not sent in time", "evicted"}, reasons
    # After two more writes all rows are in the journal. Each query makes something to write.
    for _ in range(2):
        before = journal_bytes(home, "slow@1")
        wait_for(
            "the journal",
            lambda before=before: home.query("slow", "SELECT 1") and journal_bytes(home, "slow@1") > before,
        )
    serve.kill()
    serve.wait(PATIENCE)
    killed = account(home, "slow@1")
    assert killed == books


def test_a_collector_that_was_killed_is_started_again_by_its_agents(home: Home) -> None:
    # The two ranks were given no collector, so the first of them starts one; and no launcher restarts it when it is killed.
    trainer = home.spawn("torchrun", "--nproc-per-node", "2", "examples/train_gpt.py",
                         "--steps", "200", "--batch-size", "2", "--pause", "0.05", PROBE="1", PROBE_RUN="alone")  # fmt: skip
    wait_for("20 steps", lambda: last_step(home, "alone") >= 20)
    first = json.loads((home.directory / "state/runs/alone@1/run.json").read_text())["pid"]
    os.kill(first, signal.SIGKILL)

    def pid() -> int:
        return json.loads((home.directory / "state/runs/alone@1/run.json").read_text())["pid"]

    wait_for("another collector", lambda: pid() != first and home.answers("alone"))
    assert trainer.wait(PATIENCE) == 0, trainer.err_path.read_text()  # type: ignore[attr-defined]
    wait_for("the end", lambda: home.query("alone", "SELECT DISTINCT state FROM probe.agents") == [{"state": "ended"}])
    assert os.listdir(home.directory / "state/runs") == ["alone@1"]
    by_rank = STEPS.replace("SELECT", "SELECT rank,") + " GROUP BY rank ORDER BY rank"
    there = [{"rank": rank, "n": 200, "steps": 200, "last": 199} for rank in range(2)]
    assert home.query("alone", by_rank) == there
    calls = """SELECT rank, COUNT(*) AS n, COUNT(DISTINCT n) AS kinds FROM (
               SELECT rank, step, COUNT(*) AS n FROM python.torch_trace WHERE step > 0 GROUP BY rank, step) s
               GROUP BY rank ORDER BY rank"""
    assert home.query("alone", calls) == [{"rank": rank, "n": 199, "kinds": 1} for rank in range(2)]
    books = "SELECT SUM(rows_recorded) AS recorded, SUM(rows_stored) AS stored FROM probe.agents"
    assert len({*home.query("alone", books)[0].values()}) == 1
    assert home.query("alone", "SELECT COUNT(*) AS n FROM probe.drops") == [{"n": 0}]
    # It is ended on purpose, and stays so. Without agents it has 30 s until it ends by itself.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid(), signal.SIGTERM)
    info = home.directory / "state/runs/alone@1/run.json"
    wait_for("the run's end", lambda: json.loads(info.read_text())["state"] == "ended")
    assert home.query("alone@1", by_rank) == there


def test_a_collector_that_was_killed_under_its_launcher_costs_training_nothing(home: Home) -> None:
    run = home.train("python", "examples/train_gpt.py", "--steps", "200", "--batch-size", "2", "--pause", "0.05")
    run.wait_for_step(20)
    info = home.directory / "state/runs/gpt@1/run.json"
    first = json.loads(info.read_text())["pid"]
    assert first != run.process.pid
    os.kill(first, signal.SIGKILL)
    run.finish()
    assert json.loads(info.read_text())["pid"] != first
    assert json.loads(info.read_text())["exit_status"] == 0
    assert "the collector of run gpt@1 was ended by SIGKILL" in run.errors
    assert run.query(STEPS) == [{"n": 200, "steps": 200, "last": 199}]
    assert run.query("SELECT COUNT(*) AS n FROM probe.drops") == [{"n": 0}]
    assert run.query("SELECT state, exit_status FROM probe.agents") == [{"state": "ended", "exit_status": 0}]


@pytest.mark.extended
def test_a_collector_that_is_stopped_for_a_minute_costs_training_nothing(home: Home) -> None:
    def paced(least: float, times: pathlib.Path) -> list[str]:
        return [str(SCRIPTS / "paced.py"), "3500", str(least), "7", str(times)]

    plain = subprocess.run(
        [sys.executable, *paced(0.0, home.directory / "plain")],
        env=home.environment(PROBE="0"), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    times = home.directory / "times"

    def took() -> list[tuple[int, float]]:
        """By step, what the hundred before it took of a processor."""
        lines = [line.split() for line in times.read_text().splitlines()]
        return [(int(step), float(seconds)) for step, seconds in lines]

    # Steps of 25 ms are more than a minute, and the agent has room for what it can't send in that time.
    run = home.train("python", *paced(0.025, times))
    run.wait_for_step(300)
    (agent,) = run.query("SELECT pid FROM probe.agents")
    info = home.directory / "state/runs/gpt@1/run.json"
    collector = json.loads(info.read_text())["pid"]
    before = took()[-1][0]
    os.kill(collector, signal.SIGSTOP)
    stopped = time.monotonic()
    wait_for("a minute", lambda: time.monotonic() - stopped >= 60.0 or run.process.poll() is not None)
    after = took()[-1][0]
    assert run.process.poll() is None, f"the run ended early:\n{run.output}\n{run.errors}"
    status = pathlib.Path(f"/proc/{collector}/status").read_text()
    assert "\nState:\tT" in status, status
    os.kill(collector, signal.SIGCONT)
    assert run.process.wait(PATIENCE) == plain.returncode == 7, run.errors
    assert run.output == plain.stdout
    assert after - before >= 300, "training went on at its own pace"
    inside = [seconds for step, seconds in took() if before + 100 < step <= after]
    outside = [seconds for step, seconds in took() if 100 < step <= before or step > after + 100]
    ratio = statistics.median(inside) / statistics.median(outside)
    print(
        f"{after - before} steps while it was stopped, {ratio:.2f} times the processor time of the others; {run.errors}"
    )
    assert ratio < 2.0
    # Nothing was lost, and no other process was recorded in its stead.
    assert run.query(STEPS) == [{"n": 3500, "steps": 3500, "last": 3499}]
    assert run.query("SELECT COUNT(*) AS n FROM probe.drops") == [{"n": 0}]
    assert run.query("SELECT pid, state, exit_status FROM probe.agents") == [
        {**agent, "state": "ended", "exit_status": 7}
    ]
    assert json.loads(info.read_text())["pid"] == collector
    books = account(home, "gpt@1")
    assert books["recorded"] == books["stored"] == books["there"]
