"""`probe capture`: torch.profiler in a live run, on for some steps and off again whatever happens."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import subprocess

import pytest

from conftest import BIN, PATIENCE, SCRIPTS, Home, Run, wait_for

#: Prints whether anything of the profiler is left in a process.
STATE = """
import torch, threading
from torch.autograd import profiler
from torch.nn.modules import module
print(profiler._is_profiler_enabled, profiler._enable_profiler.__class__.__name__, profiler._prepare_profiler.__class__.__name__,
      [t.name for t in threading.enumerate() if t.name == "probe-capture"])
"""
NOTHING = "False builtin_function_or_method builtin_function_or_method []"


def is_profiled(run: Run) -> bool:
    """Whether torch's profiler is on in the thread that trains. A capture that was ended goes on to the next boundary, and no
    other snippet runs until then."""

    def asked() -> str:
        done = run.eval("import torch; print(torch._C._autograd._profiler_enabled())", "--at", "step")
        assert done.returncode == 0 or "an earlier snippet is" in done.stderr, done.stderr
        return done.stdout.strip()

    return wait_for("an answer", asked) != "False"


def test_ranks_are_captured_at_the_same_steps_into_rows_that_join(two_ranks: Run, tmp_path: pathlib.Path) -> None:
    done = two_ranks.home.probe("gpt", "capture", "--steps", "2", "--with", "modules,shapes", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    capture = done.stdout.partition(":")[0]
    assert "on ranks 0, 1" in done.stdout and "a step took" in done.stdout and "aten::addmm" in done.stdout, done.stdout
    rows = two_ranks.query(
        f"SELECT capture, rank, steps, first_step, last_step, operators, complete, waited > 0 AS waited, rank_source "
        f"FROM python.captures WHERE capture LIKE '{capture}/%' ORDER BY rank"
    )
    first = rows[0]["first_step"]
    for rank, row in enumerate(rows):
        assert row["capture"] == f"{capture}/rank{rank}" and row["operators"] > 1000
        assert (row["steps"], row["first_step"], row["last_step"]) == (2, first, first + 1)
        assert (row["complete"], row["waited"], row["rank_source"]) == (True, True, "run")
    # Every operator has its step and rank, and lies within the steps that rows of python.steps call captured.
    joined = two_ranks.query(
        "SELECT o.rank, o.step, COUNT(*) AS operators, COUNT(input_shapes) > 0 AS shapes FROM python.operators o "
        "JOIN python.steps s ON s.rank = o.rank AND s.step = o.step AND s.captured "
        f"WHERE capture LIKE '{capture}/%' GROUP BY 1, 2 ORDER BY 1, 2"
    )
    assert [(row["rank"], row["step"]) for row in joined] == [(0, first), (0, first + 1), (1, first), (1, first + 1)]
    assert all(row["shapes"] for row in joined) and sum(row["operators"] for row in joined) == sum(
        row["operators"] for row in rows
    )
    around = two_ranks.query(
        f"SELECT DISTINCT step FROM python.steps WHERE captured AND step BETWEEN {first - 9} AND {first + 9} ORDER BY 1"
    )
    assert [row["step"] for row in around] == [first, first + 1]
    # Rows of modules say it of themselves.
    around = two_ranks.query(
        "SELECT step, rank, captured FROM python.torch_trace "
        f"WHERE step BETWEEN {first - 1} AND {first + 2} AND stage = 'forward' GROUP BY ALL ORDER BY 1, 2"
    )
    assert {row["captured"] for row in around} <= {False, True} and {
        (row["step"], row["rank"]) for row in around if row["captured"]
    } == {(first, 0), (first, 1), (first + 1, 0), (first + 1, 1)}, around
    # A busy machine may stop one of these steps in an operator without a module.
    named = two_ranks.query(
        "SELECT stage, rank, MAX(share) AS share FROM (SELECT stage, rank, step, "
        "SUM(self_duration) FILTER (WHERE module IS NOT NULL) / SUM(self_duration) AS share "
        f"FROM python.operators WHERE capture LIKE '{capture}/%' AND kind = 'operator' AND stage IN ('forward', 'backward') "
        "GROUP BY stage, rank, step) GROUP BY stage, rank"
    )
    least = {"forward": 0.99, "backward": 0.97}
    assert len(named) == 4 and all(row["share"] >= least[row["stage"]] for row in named), named
    traced = two_ranks.query("SELECT DISTINCT module FROM python.torch_trace")
    modules = two_ranks.query("SELECT DISTINCT module FROM python.operators WHERE module IS NOT NULL")
    assert {row["module"] for row in modules} <= {row["module"] for row in traced}
    for rank in (0, 1):
        trace = json.loads((tmp_path / f"{capture}-rank-{rank}.pt.trace.json").read_text())
        assert trace["distributedInfo"]["rank"] == rank and len(trace["traceEvents"]) > 1000
    state = two_ranks.eval(STATE, "--rank", "all", "--at", "now")
    assert state.stdout.count(NOTHING) == 2, state.stdout + state.stderr
    assert not list((two_ranks.home.directory / "state/runs").glob("*/captures/*"))


VALIDATED = """
import glob, sys
from torch.profiler._trace_validator import validate_trace
for path in sorted(glob.glob(sys.argv[1] + "/*")):
    print(*validate_trace(path))
"""


@pytest.mark.extended
def test_torchs_validator_passes_an_export_of_a_capture(two_ranks: Run, tmp_path: pathlib.Path) -> None:
    assert two_ranks.home.probe("gpt", "capture", "--steps", "2").returncode == 0
    done = two_ranks.home.probe("gpt", "export", "--per-rank", str(tmp_path / "ranks"))
    assert done.returncode == 0, done.stderr
    command = [str(BIN / "python"), "-c", VALIDATED, str(tmp_path / "ranks")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout == "True []\nTrue []\n", found.stdout + found.stderr


def test_one_rank_of_two(two_ranks: Run) -> None:
    done = two_ranks.home.probe("gpt", "capture", "--steps", "1", "--rank", "1")
    assert done.returncode == 0, done.stderr
    capture = done.stdout.partition(":")[0]
    rows = two_ranks.query(f"SELECT DISTINCT rank FROM python.operators WHERE capture LIKE '{capture}/%'")
    assert rows == [{"rank": 1}]
    wrong = two_ranks.home.probe("gpt", "capture", "--rank", "0,7")
    assert wrong.returncode == 2 and "no live rank 7" in wrong.stderr and "hint: available: rank 0" in wrong.stderr
    recorded = two_ranks.home.probe("gpt", "capture", "--steps", "0")
    assert recorded.returncode == 2 and "1 to 1000 steps" in recorded.stderr


def test_it_is_off_again_whatever_happens(home: Home, tmp_path: pathlib.Path) -> None:
    commands = tmp_path / "commands"
    commands.write_text("train")
    run = home.train("python", str(SCRIPTS / "profiles_itself.py"), str(commands), "0.02")
    run.wait_for_step(3)

    def tell(command: str) -> None:
        commands.write_text(command)

    def captures() -> int:
        return run.query("SELECT COUNT(*) AS captures FROM python.captures")[0]["captures"]

    def begun(arguments: tuple[str, ...] = ("--steps", "1000")):
        started = home.spawn("probe", "gpt", "capture", *arguments)
        wait_for("its beginning", lambda: "begins at step" in started.err_path.read_text())
        return started

    # The program's own profiler: refused, and it does not notice.
    tell("profile")
    wait_for("the own profiler", lambda: is_profiled(run))
    refused = home.probe("gpt", "capture")
    assert refused.returncode == 1 and "the program's own profiler is running" in refused.stderr, refused.stderr
    assert is_profiled(run)
    tell("stop")
    wait_for("what it saw", lambda: "own profiler saw" in run.output)
    assert "saw 0 calls" not in run.output and captures() == 0

    # One at a time; Ctrl-C takes it off.
    first = begun()
    second = home.probe("gpt", "capture")
    assert second.returncode == 1 and "another capture is running: " in second.stderr, second.stderr
    first.send_signal(signal.SIGINT)
    assert first.wait(PATIENCE) == 130
    wait_for("the end of the capture", lambda: NOTHING in run.eval(STATE, "--at", "now").stdout)
    assert not is_profiled(run) and captures() == 0

    # The program starts a profiler of its own meanwhile: ours goes first.
    third = begun()
    tell("profile")
    assert third.wait(PATIENCE) == 1
    assert "the program started its own profiler" in third.err_path.read_text()
    wait_for("the own profiler", lambda: is_profiled(run))
    tell("stop")
    wait_for("what it saw", lambda: run.output.count("own profiler saw") == 2)

    # Ranges that begin in a capture and end under the program's profiler: torch would write to the memory of ours.
    last = begun()
    tell("open")
    wait_for("the ranges", lambda: "opened" in run.output)
    last.send_signal(signal.SIGINT)
    assert last.wait(PATIENCE) == 130
    wait_for("the end of the capture", lambda: not is_profiled(run))
    tell("profile")
    wait_for("the own profiler", lambda: is_profiled(run))
    tell("close")
    wait_for("their end", lambda: "closed" in run.output)
    tell("stop")
    wait_for("what it saw", lambda: run.output.count("own profiler saw") == 3)
    reason = "open when a capture began or ended"
    wait_for(
        "their count", lambda: run.query(f"SELECT rows FROM probe.drops WHERE reason = '{reason}'") == [{"rows": 20}]
    )

    # It raises out of its steps, and never comes to a boundary again: the deadline takes it off.
    fourth = begun(("--steps", "1000", "--timeout", "10s"))
    tell("raise")
    wait_for("the exception", lambda: "caught the program's own" in run.output)
    assert fourth.wait(PATIENCE) == 5
    wait_for("the end of the capture", lambda: NOTHING in run.eval(STATE, "--at", "now").stdout)
    tell("train")
    wait_for("a step that is not profiled", lambda: not is_profiled(run))

    # And after all of that one works.
    done = home.probe("gpt", "capture", "--steps", "3")
    assert done.returncode == 0 and captures() == 1, done.stderr
    tell("end")
    run.finish()
    # The same query of the run that has ended.
    rows = home.query(
        "gpt", "SELECT COUNT(DISTINCT step) AS steps, COUNT(DISTINCT module) AS modules FROM python.operators"
    )
    assert rows == [{"steps": 3, "modules": 3}]
    over = home.probe("gpt", "capture")
    assert over.returncode == 3 and "this run has ended" in over.stderr, over.stderr
    assert not list((home.directory / "state/runs").glob("*/captures/*"))


#: Runs the example, and writes what torch's own summary of each trace says beside what is imported.
SUMMARIES = """
import json, os, runpy, sys
from torch.profiler import _KinetoProfile
written, out = _KinetoProfile.export_chrome_trace, sys.argv.pop(1)
def export(self, path, *more):
    written(self, path, *more)
    events = [event for event in self.key_averages() if not event.is_user_annotation]
    said = {event.key: [event.count, event.self_cpu_time_total, event.cpu_time_total] for event in events}
    with open(os.path.join(out, f"rank{os.environ['RANK']}.json"), "w") as file:
        json.dump(said, file)
_KinetoProfile.export_chrome_trace = export
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.extended
def test_times_are_those_of_torch_s_own_summary_and_training_is_the_same(home: Home, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "summaries.py"
    script.write_text(SUMMARIES)
    torchrun = ("torchrun", "--nproc-per-node", "2")

    def digests(output: str) -> list[str]:
        # Both write to one file, without a buffer: the end of a line may come after the other's line.
        return sorted(re.findall(r"rank \d+: \d+ steps, loss [\d.]+, parameters [0-9a-f]{16}", output))

    plain = home.train(*torchrun, "examples/train_gpt.py", "--steps", "60", name="plain")
    expected = digests(plain.finish())
    run = home.train(*torchrun, str(script), str(tmp_path), "examples/train_gpt.py", "--steps", "60")
    run.wait_for_step(5, ranks=2)
    done = home.probe("gpt", "capture", "--steps", "5")
    assert done.returncode == 0, done.stderr
    assert digests(run.finish()) == expected and len(expected) == 2
    for rank in (0, 1):
        said = json.loads((tmp_path / f"rank{rank}.json").read_text())
        said = {name: of for name, of in said.items() if not name.startswith("probe_agent.module: ")}
        rows = home.query(
            "gpt",
            "SELECT name, COUNT(*) AS calls, SUM(self_duration) * 1e6 AS own, SUM(duration) * 1e6 AS total "
            f"FROM python.operators WHERE rank = {rank} AND kind = 'operator' GROUP BY name",
        )
        ours = {row["name"]: row for row in rows}
        assert ours.keys() == said.keys()
        for name, (calls, own, total) in said.items():
            assert ours[name]["calls"] == calls, name
            # Below a microsecond a call the units differ in their rounding.
            assert ours[name]["total"] == pytest.approx(total, rel=0.01, abs=calls * 0.01), name
            assert ours[name]["own"] == pytest.approx(own, rel=0.01, abs=calls * 0.01), name


#: Trains within a range, with a profiler of its own in some of its steps, whose object is garbage with a finalizer afterwards.
ALTERNATES = """
import pathlib, sys, torch
from torch.profiler import ProfilerActivity, profile, record_function
torch.set_num_threads(1)
end = pathlib.Path(sys.argv[1])
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(20)))
optimizer = torch.optim.AdamW(model.parameters())
step, own = 0, None
while not end.exists():
    if step % 40 == 0:
        kind = step // 40 % 3
        own = profile(activities=[ProfilerActivity.CPU], with_stack=kind == 1, record_shapes=kind == 2, profile_memory=kind == 2)
        own.start()
    with record_function("a step"):
        loss = model(torch.rand(8, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    step += 1
    if step % 40 == 10:
        own.stop()
        own = None
"""


@pytest.mark.extended
@pytest.mark.parametrize("what", ["none", "modules", "modules,shapes,memory", "stacks"])
def test_captures_and_the_program_s_own_profiler_take_turns(home: Home, tmp_path: pathlib.Path, what: str) -> None:
    script, end = tmp_path / "alternates.py", tmp_path / "end"
    script.write_text(ALTERNATES)
    run = home.train("python", str(script), str(end))
    run.wait_for_step(3)
    captured = 0
    for _ in range(100):
        done = home.probe("gpt", "capture", "--steps", "3", "--with", what)
        assert done.returncode in (0, 1), done.stderr
        assert done.returncode == 0 or "own profiler" in done.stderr, done.stderr
        captured += done.returncode == 0
    assert captured > 10
    end.touch()
    run.finish()
