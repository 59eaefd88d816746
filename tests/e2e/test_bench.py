"""`probe bench`: expressions timed in a live run, which goes on to the last bit as if nothing had run."""

from __future__ import annotations

import json
import pathlib
import subprocess

import trainprobe as probe
from reader import environment_of

from conftest import PATIENCE, SCRIPTS, Home, Run

BOTH = 'RANK=1 python "$0" "$@" & RANK=0 python "$0" "$@"; status=$?; wait; exit $status'


def command(*arguments: str) -> list[str]:
    """Two ranks of the program."""
    return ["env", "WORLD_SIZE=2", "sh", "-c", BOTH, str(SCRIPTS / "benched.py"), *arguments]


def bench(run: Run, *arguments: str, seconds: str = "0.2") -> subprocess.CompletedProcess[str]:
    return run.home.probe(run.name, "bench", "--seconds", seconds, *arguments)


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_ranks_are_timed_and_train_as_if_they_were_not(home: Home, tmp_path: pathlib.Path) -> None:
    end = tmp_path / "end"
    run = home.train(*command(str(tmp_path / "meet"), str(end)))
    run.wait_for_step(5, ranks=2)

    module = json.loads(said(bench(run, "model.module.layers", "--json", seconds="2")))
    assert (module["rank"], module["threads"], module["compared"]) == (0, 1, [])
    assert module["step"] > 0 and module["training_waited"] >= 0.2 and module["kept"]["tensors"] > 10
    forward, both = module["timings"]
    assert (forward["part"], both["part"]) == ("forward", "forward and backward")
    assert forward["inputs"] == both["inputs"] == "(8, 16) float32"
    assert 0 < forward["low"] <= forward["median"] <= forward["high"] < both["median"]
    # Running statistics change by a call, and random numbers are drawn.
    assert module["kept"]["put_back"] >= 3

    step = json.loads(said(bench(run, "optimizer.step()", "--rank", "1", "--json")))
    assert (step["rank"], len(step["timings"]), step["timings"][0]["expression"]) == (1, 1, "optimizer.step()")
    trained = said(bench(run, "model.module(x).sum().backward()"))
    assert trained.startswith("rank 0, between steps ") and "\na: model.module(x).sum().backward()\n" in trained
    slow = "torch.randn(256, 256) @ torch.randn(256, 256)"
    compared = json.loads(said(bench(run, "torch.randn(8)", "--against", slow, "--json", seconds="2")))
    assert compared["compared"][0]["verdict"] == "slower" and compared["compared"][0]["low"] > 1

    with environment_of(home):
        timed = probe.connect("gpt").bench("optimizer.step()", rank=1, seconds=0.2)
    assert str(timed).startswith("rank 1, between steps ") and timed.timings[0]["median"] > 0 and timed.waited > 0.2

    # Code in which other ranks would have to take part is an error, and the run goes on.
    for talks in ("model(x)", "torch.distributed.all_reduce(torch.ones(1))", "model"):
        refused = bench(run, talks)
        assert refused.returncode == 1 and "talks to other ranks" in refused.stderr, (talks, refused.stderr)
    raised = bench(run, "optimizer.step() or 1 / 0")
    assert raised.returncode == 1 and "ZeroDivisionError" in raised.stderr and "Traceback" in raised.stderr
    wrong = bench(run, "1 +")
    assert wrong.returncode == 1 and "SyntaxError" in wrong.stderr, wrong.stderr
    uncalled = bench(run, "torch.nn.Linear(2, 2)")
    assert uncalled.returncode == 1 and "hint:" in uncalled.stderr, uncalled.stderr
    ended = bench(run, "optimizer.step() or [None for _ in iter(int, 1)]", "--timeout", "2s")
    assert ended.returncode == 5, ended.stderr

    # Its calls are no rows of training.
    rows = run.query(
        "SELECT rank, step, COUNT(*) AS calls FROM python.torch_trace "
        "WHERE module = 'Net.layers' AND stage = 'forward' GROUP BY 1, 2 HAVING COUNT(*) > 1"
    )
    assert rows == []
    end.touch()
    steps, *digests = run.finish().split()
    plain = subprocess.run(
        command(str(tmp_path / "meet again"), steps),
        env=home.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert plain.stdout.split() == [steps, *digests], plain.stderr


def test_a_run_that_is_over_has_nothing_to_time(home: Home) -> None:
    home.train("python", "-c", "import torch; torch.nn.Linear(1, 1)(torch.ones(1))").finish()
    done = home.probe("gpt", "bench", "1 + 1")
    assert done.returncode == 3 and "hint:" in done.stderr, done.stderr
    assert home.probe("gpt", "bench", " ").returncode == 2
