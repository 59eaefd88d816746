"""Memory in captures: the profiler's events on the host; snapshots and history of CUDA's allocator, for which a stand-in stands."""

from __future__ import annotations

import json
import pathlib
import pickle
import signal

from conftest import PATIENCE, SCRIPTS, Home, Run, wait_for

#: Trains, and writes what torch itself says of the memory in each trace.
SAYS = """
import json, runpy, sys
from torch.profiler import _KinetoProfile
written, out = _KinetoProfile.export_chrome_trace, sys.argv.pop(1)
def export(self, path, *more):
    written(self, path, *more)
    left = {event.key: event.self_cpu_memory_usage for event in self.key_averages()}
    found = [event for event in self.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(found, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    with open(out, "w") as file:
        json.dump({"left": left, "events": len(found), "peak": peak}, file)
_KinetoProfile.export_chrome_trace = export
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_host_s_memory_is_what_torch_itself_says(home: Home, tmp_path: pathlib.Path) -> None:
    script, says, commands = tmp_path / "says.py", tmp_path / "says.json", tmp_path / "commands"
    script.write_text(SAYS)
    commands.write_text("train")
    run = home.train("python", str(script), str(says), str(SCRIPTS / "profiles_itself.py"), str(commands), "0.02")
    run.wait_for_step(3)
    done = home.probe("gpt", "capture", "--memory", "--steps", "2", "--with", "modules,stacks")
    assert done.returncode == 0, done.stderr
    assert "there is no CUDA allocator in this process: the profiler's memory events of 2 steps" in done.stdout, (
        done.stdout
    )
    assert "what held memory at the peak" in done.stdout
    said = json.loads(says.read_text())
    rows = run.query("SELECT memory_events, memory_blocks, steps, tool, reasons FROM python.captures")
    assert rows[0] | {"reasons": None} == {
        "memory_events": said["events"], "memory_blocks": 0, "steps": 2, "tool": "kineto", "reasons": None,
    }  # fmt: skip
    assert said["events"] > 10 and "emory" not in rows[0]["reasons"]
    left = run.query(
        "SELECT operator, SUM(CASE WHEN action = 'alloc' THEN size ELSE -size END) AS bytes FROM python.memory_events "
        "WHERE device = 'cpu' AND operator IS NOT NULL GROUP BY operator HAVING bytes <> 0"
    )
    theirs = {
        name: size
        for name, size in said["left"].items()
        if size and not name.startswith(("ProfilerStep", "[memory]", "Optimizer"))
    }
    assert {row["operator"]: row["bytes"] for row in left} == theirs
    peak = run.query("SELECT MAX(change) AS peak, MAX(allocated) AS allocated FROM python.memory_timeline")
    assert peak[0]["peak"] == said["peak"]
    held = run.query("SELECT SUM(bytes) AS bytes, MAX(peak) AS peak, COUNT(module) AS modules FROM python.memory_peak")
    assert held[0]["bytes"] == held[0]["peak"] == peak[0]["allocated"]
    lines = run.query(
        "SELECT DISTINCT step, module, file, line FROM python.memory_events WHERE operator = 'aten::addmm' AND action = 'alloc'"
    )
    assert {row["module"] for row in lines} == {"0", "2"} and len({row["step"] for row in lines}) == 2, lines
    assert all(row["file"].endswith("profiles_itself.py") and row["line"] for row in lines), lines
    commands.write_text("end")
    run.finish()


def is_on(run: Run) -> bool:
    """Whether the allocator records a history. While a capture ends, no other snippet runs."""

    def asked() -> str:
        done = run.eval("import torch; print(torch._C._cuda_isHistoryEnabled())", "--at", "step")
        assert done.returncode == 0 or "an earlier snippet is" in done.stderr, done.stderr
        return done.stdout.strip()

    return wait_for("an answer", asked) == "True"


def test_snapshots_and_history_of_the_allocator(home: Home, tmp_path: pathlib.Path) -> None:
    commands = tmp_path / "commands"
    commands.write_text("train")
    run = home.train("python", str(SCRIPTS / "stands_in_for_cuda.py"), str(commands))
    run.wait_for_step(3)

    # A snapshot, without a history.
    done = home.probe("gpt", "capture", "--memory", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "a memory snapshot at step" in done.stdout and "stands_in_for_cuda.py" in done.stdout, done.stdout
    capture = done.stdout.partition(":")[0]
    [written] = tmp_path.glob(f"{capture}-*.memory.pickle")
    blocks = len(pickle.loads(written.read_bytes())["segments"][0]["blocks"])
    rows = run.query(
        "SELECT device, state, line, COUNT(*) AS blocks, SUM(size) AS bytes FROM gpu.memory_blocks GROUP BY 1, 2, 3"
    )
    assert rows == [
        {"device": "cuda:0", "state": "active_allocated", "line": 40, "blocks": blocks, "bytes": blocks * 1_000_000}
    ]
    rows = run.query("SELECT tool, memory_events, memory_blocks, steps, rank_source FROM python.captures")
    # Events at the snapshot itself are no history.
    assert rows == [
        {"tool": "memory-snapshot", "memory_events": 0, "memory_blocks": blocks, "steps": 0, "rank_source": "run"}
    ]

    # The history of two steps.
    done = home.probe("gpt", "capture", "--memory-history", "2")
    assert done.returncode == 0, done.stderr
    capture = done.stdout.partition(":")[0]
    rows = run.query(
        "SELECT step, COUNT(*) AS events, MAX(allocated) - MIN(allocated) AS swing FROM python.memory_events "
        f"WHERE capture LIKE '{capture}/%' AND step IS NOT NULL GROUP BY step ORDER BY step"
    )
    [took] = run.query(f"SELECT first_step, last_step, steps FROM python.captures WHERE capture LIKE '{capture}/%'")
    assert took["steps"] == 2 and [row["step"] for row in rows] == [took["first_step"], took["last_step"]]
    assert all(row["events"] >= 5 and row["swing"] >= 2_000_000 for row in rows), rows
    peak = run.query(
        f"SELECT origin, bytes, blocks, peak, line FROM python.memory_peak WHERE capture LIKE '{capture}/%' ORDER BY origin DESC"
    )
    assert [(row["origin"], row["bytes"] % 1_000_000, row["line"]) for row in peak] == [
        ("capture", 0, 40),
        ("before the capture", 0, None),
    ]
    assert sum(row["bytes"] for row in peak) == peak[0]["peak"]
    assert not is_on(run)

    # Ctrl-C.
    long = home.spawn("probe", "gpt", "capture", "--memory-history", "1000")
    wait_for("its beginning", lambda: "begins at step" in long.err_path.read_text())
    long.send_signal(signal.SIGINT)
    assert long.wait(PATIENCE) == 130
    wait_for("the end of the history", lambda: not is_on(run))

    # The program's own history: it is refused, read, and goes first.
    def switch(to: str) -> None:
        commands.write_text(to)
        wait_for("the switch", lambda: run.output.rstrip().endswith(f"switched {to}"))

    switch("on")
    refused = home.probe("gpt", "capture", "--memory-history", "2")
    assert refused.returncode == 1 and "the program's own memory history is on" in refused.stderr, refused.stderr
    assert is_on(run)
    done = home.probe("gpt", "capture", "--memory")
    assert done.returncode == 0 and "memory events" in done.stdout, done.stderr + done.stdout
    assert is_on(run)
    switch("off")
    last = home.spawn("probe", "gpt", "capture", "--memory-history", "1000")
    wait_for("its beginning", lambda: "begins at step" in last.err_path.read_text())
    switch("on")
    assert last.wait(PATIENCE) == 1
    assert "the program used the memory history of its allocator itself" in last.err_path.read_text()
    assert is_on(run)
    commands.write_text("end")
    run.finish()
    assert not list((home.directory / "state/runs").glob("*/captures/*"))
