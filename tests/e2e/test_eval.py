"""Snippets in a live run: where they run, what they leave behind, how they fail."""

from __future__ import annotations

import re

from conftest import PATIENCE, SCRIPTS, Home, Run, wait_for


def digests(output: str) -> dict[int, str]:
    """rank -> digest of the parameters, as the example prints it at its end."""
    # Both write to one file, without a buffer: the end of a line may come after the other's line.
    found = re.findall(r"rank (\d+): \d+ steps, loss [\d.]+, parameters ([0-9a-f]{16})", output)
    return {int(rank): digest for rank, digest in found}


def test_train_step_on_two_ranks_leaves_them_equal_and_the_run_ends_well(home: Home) -> None:
    # Steps for longer than three commands take, whatever else the machine does.
    program = ["examples/train_gpt.py", "--steps", "150", "--batch-size", "2", "--pause", "0.1"]
    run = home.train("torchrun", "--nproc-per-node", "2", *program)
    run.wait_for_step(20, ranks=2)
    for _ in range(3):
        done = run.eval("for _ in range(3): trainer.train_step()\nprint('done')")
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        assert "between steps" in done.stderr
    output = run.finish()
    ends = digests(output)
    assert set(ends) == {0, 1} and ends[0] == ends[1]
    # The steps of snippets are the snippets' own: the run has made its 150.
    assert run.query("SELECT rank, COUNT(*) AS n, MAX(step) AS last FROM python.steps GROUP BY rank ORDER BY rank") == [
        {"rank": 0, "n": 150, "last": 149},
        {"rank": 1, "n": 150, "last": 149},
    ]
    rows = run.query("SELECT DISTINCT step FROM python.torch_trace")
    assert len(rows) == 150


def test_reading_runs_beside_training_and_changes_nothing(home: Home) -> None:
    steps = ["python", "examples/train_gpt.py", "--steps", "100", "--batch-size", "2"]
    plain = home.spawn(*steps, PROBE="0")
    assert plain.wait(PATIENCE) == 0
    run = home.train(*steps, "--pause", "0.1")
    run.wait_for_step(5)
    done = run.eval("print(train_loader.num_workers, batch_size, model.config.hidden_size)")
    assert (done.returncode, done.stdout) == (0, "0 2 128\n"), done.stderr
    assert "between steps" not in done.stderr
    # The last loss and every parameter are, bit for bit, those of a run without any of this.
    assert run.finish().splitlines()[-1] == plain.out_path.read_text().splitlines()[-1]  # type: ignore[attr-defined]
    assert run.query("SELECT placed, status FROM probe.evals") == [{"placed": "now", "status": "ok"}]


def test_every_rank_answers_when_asked(two_ranks: Run) -> None:
    done = two_ranks.eval("import torch.distributed as dist; print(dist.get_rank())", "--rank", "all")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank 0] 0", "[rank 1] 1"]
    done = two_ranks.eval("import torch.distributed as dist; print(dist.get_rank())", "--rank", "1")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_session_keeps_its_variables_on_every_rank(two_ranks: Run) -> None:
    def session(code: str, *more: str) -> str:
        done = two_ranks.eval(code, "--session", "mine", "--rank", "all", *more)
        assert done.returncode == 0, done.stderr
        return "".join(sorted(done.stdout.splitlines(keepends=True)))

    session("import torch.distributed as dist\nkept = dist.get_rank() * 10")
    assert session("print(kept)") == "[rank 0] 0\n[rank 1] 10\n"
    assert session("kept += 1\nprint(kept)", "--at", "step") == "[rank 0] 1\n[rank 1] 11\n"
    assert "NameError" in two_ranks.eval("print(kept)").stderr
    session("", "--end-session")
    done = two_ranks.eval("print(kept)", "--session", "mine")
    assert done.returncode == 1 and "NameError" in done.stderr


def test_a_failure_on_one_rank_is_that_ranks(two_ranks: Run) -> None:
    code = "import torch.distributed as dist\nprint('began')\nassert dist.get_rank() == 0, 'planted'\nprint('ended')"
    for at in ("now", "step"):
        done = two_ranks.eval(code, "--rank", "all", "--at", at)
        assert done.returncode == 1
        assert sorted(done.stdout.splitlines()) == ["[rank 0] began", "[rank 0] ended", "[rank 1] began"]
        assert "[rank 1] AssertionError: planted" in done.stderr and "[rank 0] " not in done.stderr


def test_the_last_value_is_shown_in_words(two_ranks: Run) -> None:
    done = two_ranks.eval("model")
    assert done.returncode == 0, done.stderr
    assert " parameters (all trained), float32, cpu" in done.stdout and len(done.stdout) < 10_000
    shown = two_ranks.eval("next(iter(model.parameters()))").stdout
    assert shown.startswith("Parameter shape=(") and " nan 0  inf 0\n  values [" in shown


def test_a_mode_that_a_snippet_leaves_is_put_back(two_ranks: Run) -> None:
    done = two_ranks.eval("model.eval(); print(model.training)")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert "put back: " in done.stderr and "in training mode" in done.stderr
    done = two_ranks.eval("print(model.training)", "--rank", "all")
    assert sorted(done.stdout.splitlines()) == ["[rank 0] True", "[rank 1] True"]


def test_an_exception_is_a_traceback_and_exit_1(two_ranks: Run) -> None:
    done = two_ranks.eval("x = 1\nprint('before')\nraise ValueError('planted')")
    assert (done.returncode, done.stdout) == (1, "before\n")
    assert "ValueError: planted" in done.stderr and "line 3" in done.stderr
    done = two_ranks.eval("print(")
    assert done.returncode == 1 and "SyntaxError" in done.stderr
    done = two_ranks.eval("print(no_such_name)")
    assert done.returncode == 1 and "NameError" in done.stderr


def test_a_deadline_is_kept(two_ranks: Run) -> None:
    done = two_ranks.eval("while True: pass", "--timeout", "4s")
    assert done.returncode == 5, done.stderr
    assert "its deadline of 4 s" in done.stderr
    # And the process goes on, and takes the next one.
    done = two_ranks.eval("print('still here')")
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr


def test_output_is_cut_at_its_limit(two_ranks: Run) -> None:
    done = two_ranks.eval("while True: print('x' * 1000)", "--max-output", "100000")
    assert done.returncode == 5
    assert 90_000 <= len(done.stdout) <= 110_000


def test_what_syntax_cannot_show_is_stopped(two_ranks: Run) -> None:
    # On one rank alone the collective would wait for the other for ever.
    for code in ("model(*trainer.next_batch())", "import torch.distributed as d; d.all_reduce(torch.ones(1))"):
        done = two_ranks.eval(code, "--at", "now")
        assert done.returncode == 1
        assert "--at step" in done.stderr
    done = two_ranks.eval("import torch.distributed as d; x = torch.ones(1); d.all_reduce(x); print(x.item())")
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr


def test_output_streams_while_the_snippet_runs(two_ranks: Run) -> None:
    code = "import time\nprint('first', flush=True)\nfor _ in range(60_000): time.sleep(0.01)"
    child = two_ranks.home.spawn("probe", "gpt", "eval", code)
    wait_for("the first line", lambda: "first" in child.out_path.read_text())  # type: ignore[attr-defined]
    assert child.poll() is None
    child.terminate()
    child.wait(PATIENCE)
    # A client that disconnects cancels its snippet.
    wait_for(
        "the snippet to be over",
        lambda: two_ranks.query("SELECT status FROM probe.evals ORDER BY id DESC LIMIT 1")[0]["status"] == "cancelled",
    )


def test_config_switches_detail_while_it_runs(home: Home) -> None:
    run = home.train("python", "examples/train_gpt.py", "--steps", "100000", "--pause", "0.03")
    run.wait_for_step(5)
    assert home.probe("gpt", "config", "detail=off").returncode == 0
    wait_for("a step without detail", lambda: run.query("SELECT step FROM python.steps WHERE NOT detail"))
    first = run.query("SELECT MIN(step) AS s FROM python.steps WHERE NOT detail")[0]["s"]
    run.wait_for_step(first + 5)
    later = f"FROM python.torch_trace WHERE step >= {first} AND step < {first + 5}"
    assert run.query(f"SELECT COUNT(*) AS n {later}") == [{"n": 0}]
    assert home.probe("gpt", "config", "detail=every-step").returncode == 0
    wait_for("detail again", lambda: run.query(f"SELECT step FROM python.torch_trace WHERE step > {first + 5} LIMIT 1"))
    wrong = home.probe("gpt", "config", "detail=sometimes")
    assert wrong.returncode == 2 and "every-step" in wrong.stderr


def test_where_threads_are_greenlets_training_goes_on_and_snippets_are_refused(home: Home) -> None:
    """As under gevent: a thread of ours that waits for commands would stand in for the one that trains."""
    run = home.train("python", str(SCRIPTS / "greenlets.py"))
    run.wait_for_step(20)
    for command in (["eval", "print(1)"], ["bench", "1 + 1"], ["capture"]):
        done = home.probe("gpt", *command)
        assert done.returncode == 4 and "gevent" in done.stderr, (command, done)
    step = run.query("SELECT MAX(step) AS step FROM python.steps")[0]["step"]
    run.wait_for_step(step + 10)
