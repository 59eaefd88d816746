"""Starting, ending and dying: which processes are agents, which rows stay, and that training never notices."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from conftest import AGENT_TABLES, PATIENCE, SCRIPTS, Home, Run, wait_for


def test_a_run_that_has_ended_answers_the_same(home: Home) -> None:
    run = home.train("python", "examples/train_digits.py", "--epochs", "2", name="digits")
    run.finish()
    # 1437 images in batches of 64: 23 steps an epoch, the last one of its last batch included.
    assert run.query("SELECT COUNT(*) AS n, MAX(step) AS last FROM python.steps") == [{"n": 46, "last": 45}]
    last = run.query(
        "SELECT stage, COUNT(*) AS n FROM python.torch_trace WHERE step = 45 GROUP BY stage ORDER BY stage"
    )
    assert {row["stage"] for row in last} == {"backward", "forward", "step"}
    agents = run.query("SELECT state, rows_recorded, rows_stored, rows_dropped FROM probe.agents")
    assert agents[0]["state"] == "ended"
    assert agents[0]["rows_recorded"] == agents[0]["rows_stored"] and agents[0]["rows_dropped"] == 0
    counted = sum(run.query(f"SELECT COUNT(*) AS n FROM {table}")[0]["n"] for table in AGENT_TABLES)
    assert counted == agents[0]["rows_stored"]
    assert "digits@1" in home.probe("runs").stdout
    assert "digits" not in home.probe("list", "--with-agent").stdout
    # The name may be used again, and then means the newest; the first one is still there.
    home.train("python", "examples/train_digits.py", "--epochs", "1", name="digits").finish()
    assert run.query("SELECT COUNT(*) AS n FROM python.steps") == [{"n": 23}]
    assert home.query("digits@1", "SELECT COUNT(*) AS n FROM python.steps") == [{"n": 46}]


@pytest.mark.parametrize("workers", ["2", pytest.param("0", marks=pytest.mark.extended)])
def test_workers_of_a_data_loader_are_not_agents(home: Home, workers: str) -> None:
    home.train("python", "examples/train_gpt.py", "--steps", "15", "--workers", workers).finish()
    rows = home.query("gpt", "SELECT COUNT(*) AS n FROM probe.agents")
    assert rows == [{"n": 1}]


def test_the_exit_status_is_the_commands_own(home: Home) -> None:
    assert home.probe("run", "--name", "x", "--", "sh", "-c", "exit 7").returncode == 7
    done = home.probe("run", "--name", "y", "--", "python", "-c", "print('hello')")
    assert (done.returncode, done.stdout) == (0, "hello\n")


def test_a_process_that_does_not_train_is_no_agent(home: Home) -> None:
    run = home.train("python", "-c", "import torch; print(torch.ones(2).sum().item())", name="quiet")
    assert run.finish() == "2.0\n"
    assert run.query("SELECT COUNT(*) AS n FROM probe.agents") == [{"n": 0}]


def test_a_training_step_that_is_compiled_whole_is_recorded(home: Home) -> None:
    program = home.directory / "whole.py"
    program.write_text(
        """import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())


@torch.compile(backend="eager")
def train(batch):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(20):
    train(torch.ones(2, 4))
"""
    )
    run = home.train("python", str(program))
    run.finish()
    assert run.query("SELECT COUNT(*) AS n, MAX(step) AS last FROM python.steps") == [{"n": 20, "last": 19}]


def test_killed_trainer_keeps_its_rows_and_is_said_to_be_lost(home: Home) -> None:
    serve, address = home.serve("kept")
    trainer = home.spawn("python", "examples/train_gpt.py", "--steps", "100000", "--pause", "0.03", PROBE="1",
                         PROBE_COLLECTOR=address, PROBE_RUN="kept")  # fmt: skip
    wait_for("20 steps", lambda: (home.query("kept", "SELECT MAX(step) AS s FROM python.steps")[0]["s"] or 0) >= 20)
    trainer.kill()
    trainer.wait(PATIENCE)
    wait_for("it to be lost", lambda: home.query("kept", "SELECT state FROM probe.agents") == [{"state": "lost"}])
    assert home.query("kept", "SELECT MAX(step) AS s FROM python.steps")[0]["s"] >= 20
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(PATIENCE) == 0
    assert home.query("kept", "SELECT MAX(step) AS s FROM python.steps")[0]["s"] >= 20
    assert home.query("kept", "SELECT state FROM probe.agents") == [{"state": "lost"}]


def test_training_outlives_its_collector_and_finds_the_next_one(home: Home) -> None:
    first, address = home.serve("mortal")
    trainer = home.spawn("python", "examples/train_gpt.py", "--steps", "100000", "--pause", "0.03", PROBE="1",
                         PROBE_COLLECTOR=address, PROBE_RUN="mortal")  # fmt: skip
    asked = "SELECT MAX(step) AS s FROM python.steps"
    wait_for("20 steps", lambda: (home.query("mortal", asked)[0]["s"] or 0) >= 20)
    first.kill()
    first.wait(PATIENCE)
    assert trainer.poll() is None
    home.serve("mortal")

    def reached() -> bool:
        rows = home.ask("mortal", asked)
        return bool(rows) and rows[0]["s"] is not None

    wait_for("rows at the new collector", lambda: trainer.poll() is None and reached())
    assert trainer.poll() is None


def test_a_collector_that_was_started_with_blocked_signals_can_be_ended(home: Home) -> None:
    # As an agent starts one anew: its threads have all signals blocked, and what they start inherits that.
    collector = home.spawn("env", "--block-signal", "probe", "serve", "--name", "deaf")
    wait_for("the collector", lambda: home.answers("deaf"))
    collector.terminate()
    assert collector.wait(PATIENCE) == 0


def test_probe_in_the_environment_is_enough(home: Home) -> None:
    trainer = home.spawn("python", "examples/train_gpt.py", "--steps", "100000", "--pause", "0.03", PROBE="1")
    wait_for("a collector of its own", lambda: "train_gpt" in home.probe("list", "--with-agent").stdout)
    wait_for("a step", lambda: home.query("train_gpt", "SELECT COUNT(*) AS n FROM python.steps")[0]["n"] > 0)
    assert home.query("train_gpt", "SELECT COUNT(*) AS n FROM python.torch_trace")[0]["n"] > 0
    # A pid is an endpoint too, and means that process's rows.
    rows = home.query(str(trainer.pid), "SELECT DISTINCT pid FROM python.steps")
    assert rows == [{"pid": trainer.pid}]
    done = home.probe("eval", "print(batch_size)")  # the only live run needs no name
    assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr
    # With sockets in another directory, the process is not taken for one without an agent.
    listed = home.probe("list", "--format", "json", PROBE_RUNTIME_DIR=str(home.directory / "other"))
    assert {row["pid"]: row["state"] for row in json.loads(listed.stdout)}[trainer.pid] == "elsewhere"


def test_a_program_can_start_it(home: Home) -> None:
    serve, address = home.serve("own")
    trainer = home.spawn("python", str(SCRIPTS / "starts_itself.py"), PROBE_COLLECTOR=address)
    assert trainer.wait(PATIENCE) == 0, trainer.err_path.read_text()  # type: ignore[attr-defined]
    assert home.query("own", "SELECT COUNT(*) AS n FROM python.steps") == [{"n": 12}]
    # configure(detail="off") before the sixth step had begun, in the process itself.
    rows = home.query("own", "SELECT DISTINCT step FROM python.torch_trace ORDER BY step")
    assert [row["step"] for row in rows] == list(range(5))
    serve.terminate()
    assert serve.wait(PATIENCE) == 0


def test_a_collector_that_is_not_there_costs_a_line(home: Home) -> None:
    done = subprocess.run(
        ["python", "examples/train_digits.py", "--epochs", "1"],
        env=home.environment(PROBE="1", PROBE_COLLECTOR=f"unix:{home.sockets}/nobody.sock"),
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("epoch 0: loss")
    assert [line for line in done.stderr.splitlines() if line.startswith("probe: ")], done.stderr
    assert done.stderr.count("nobody.sock") == 1


def test_a_collector_that_answers_at_the_last_moment_has_all_and_nothing_is_said(home: Home) -> None:
    serve, address = home.serve("late")
    socket = address.removeprefix("unix:")
    os.rename(socket, f"{socket}.hidden")
    script = str(SCRIPTS / "ends_before_its_collector.py")
    trainer = home.spawn("python", script, f"{socket}.hidden", socket, PROBE="1", PROBE_COLLECTOR=address)
    assert trainer.wait(PATIENCE) == 0
    errors = trainer.err_path.read_text()  # type: ignore[attr-defined]
    assert "no collector" not in errors, errors
    assert home.query("late", "SELECT COUNT(*) AS n FROM python.steps") == [{"n": 1}]
    serve.terminate()
    assert serve.wait(PATIENCE) == 0


GOES_ON = """
import time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""


def test_what_goes_on_when_the_command_has_ended_is_counted(home: Home) -> None:
    (home.directory / "goes_on.py").write_text(GOES_ON)
    wait = f"until [ -e {home.directory}/go ]; do sleep 0.05; done"
    run = home.train("sh", "-c", f"python {home.directory}/goes_on.py & {wait}")
    run.wait_for_step(1)
    (agent,) = run.query("SELECT pid FROM probe.agents")
    try:
        (home.directory / "go").touch()
        run.finish()
        (end,) = run.query("SELECT severity, message FROM probe.events WHERE kind = 'command end'")
    finally:
        os.kill(agent["pid"], signal.SIGKILL)
    rest = "1 process goes on, and what it does from now on is not recorded"
    assert end == {"severity": "warning", "message": f"the command ended with status 0; {rest}"}


def test_off_means_off(home: Home) -> None:
    code = "import sys, torch; assert not [m for m in sys.modules if m.startswith('probe_agent')], 'loaded'"
    for value in ("0", ""):
        done = subprocess.run(["python", "-c", code], env=home.environment(PROBE=value), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_wrong_endpoints_say_what_is_live(two_ranks: Run) -> None:
    home = two_ranks.home
    for endpoint in ("gtp", "99999999", "unix:/nowhere.sock"):
        done = home.probe(endpoint, "query", "SELECT 1")
        assert done.returncode == 3, (endpoint, done.stdout, done.stderr)
        assert endpoint in done.stderr and "hint:" in done.stderr
    assert "gpt" in home.probe("gtp", "query", "SELECT 1").stderr
    denied = home.probe("gpt", "query", "COPY (SELECT 1) TO '/tmp/probe-test.csv'")
    assert denied.returncode in (1, 4) and not os.path.exists("/tmp/probe-test.csv")
    wrong = home.probe("gpt", "query", "SELECT * FROM python.torch_trac")
    assert wrong.returncode == 1 and "python.torch_trace" in wrong.stderr


def test_forks_and_a_pause_leave_the_rows_right(home: Home) -> None:
    serve, address = home.serve("forks")
    trainer = home.spawn("python", str(SCRIPTS / "forks_and_pauses.py"), PROBE_COLLECTOR=address)
    assert trainer.wait(PATIENCE) == 0, trainer.err_path.read_text()  # type: ignore[attr-defined]
    assert home.query("forks", "SELECT COUNT(*) AS n FROM probe.drops") == [{"n": 0}]
    # The process is the same one after its pause.
    own = f"WHERE pid = {trainer.pid}"
    steps = home.query("forks", f"SELECT step, duration, micro_steps FROM python.steps {own} ORDER BY step")
    assert [(row["step"], row["micro_steps"]) for row in steps] == [(step, 1) for step in range(105)]
    calls = home.query("forks", f"SELECT COUNT(*) AS n FROM python.torch_trace {own} AND stage = 'forward'")
    assert calls == [{"n": 105 * 4}]
    # Each child is an agent of its own, whose first step was under way when it was seen to train.
    children = home.query(
        "forks",
        "SELECT a.step AS steps, s.step, COUNT(DISTINCT a.pid) AS n FROM probe.agents a JOIN python.steps s "
        f"ON s.pid = a.pid WHERE a.pid <> {trainer.pid} GROUP BY 1, 2",
    )
    assert children == [{"steps": 2, "step": 1, "n": 50}]
    # The pause is in no step: those after it lie within the clock that began when it ended.
    after = float(trainer.out_path.read_text())  # type: ignore[attr-defined]
    assert sum(row["duration"] for row in steps[100:]) <= after
    serve.terminate()
    assert serve.wait(PATIENCE) == 0
