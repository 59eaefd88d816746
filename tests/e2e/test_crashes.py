"""Ranks that really crash, each in another way: how they ended, what they left, and the account of it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
from collections.abc import Iterator

import pytest

from conftest import PATIENCE, SCRIPTS, Home, Run, wait_for

STEPS = 12
SCRIPT = str(SCRIPTS / "crashes.py")
ALONE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}

#: How the last rank ends: exit status, signal, and whether it said goodbye.
ENDS = {
    "kill": (None, "SIGKILL", "lost"),
    "segfault": (None, "SIGSEGV", "lost"),
    "exit": (3, None, "lost"),
    "raise": (1, None, "ended"),
    "thread": (0, None, "ended"),
    "hook": (7, None, "lost"),
    "memory": (1, None, "ended"),
    "normal": (0, None, "ended"),
}

HOW = "SELECT rank, state, exit_status, signal, cause, ended IS NOT NULL AS ended FROM probe.agents"
RAISED = "SELECT * FROM python.exceptions ORDER BY ts"


def crash(home: Home, command: list[str], how: str, ranks: int = 1, **more: str) -> Run:
    """The script to its end, which comes when all rows of the steps before it have arrived."""
    run = home.train(*command, SCRIPT, how, str(STEPS), str(home.directory), **more)
    run.wait_for_step(STEPS - 1, ranks)
    (home.directory / "go").touch()
    run.process.wait(PATIENCE)
    return run


def test_what_was_saved_right_before_the_end_is_known(home: Home) -> None:
    run = crash(home, ["python"], "saved", **ALONE)
    assert run.process.returncode == 137, run.errors
    saved = home.query("gpt@1", "SELECT step, kind, path, bytes, error, duration > 0 AS took FROM python.checkpoints")
    size = (home.directory / "last.pt").stat().st_size
    assert saved == [
        {"step": STEPS, "kind": "torch.save", "path": "last.pt", "bytes": size, "error": None, "took": True}
    ]
    assert home.query("gpt@1", "SELECT table_name, reason FROM probe.drops") == []


#: Ends that others show too: a signal, a status, the end of a program.
ALIKE = ("segfault", "exit", "hook", "normal")


@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.extended] * (how in ALIKE)) for how in ENDS])
def test_how_a_process_ended_is_known(home: Home, how: str) -> None:
    status, signal, state = ENDS[how]
    run = crash(home, ["python"], how, **ALONE)
    assert run.process.returncode == (status if signal is None else {"SIGKILL": 137, "SIGSEGV": 139}[signal]), (
        run.errors
    )
    (row,) = home.query("gpt@1", HOW)
    assert (row["exit_status"], row["signal"], row["state"]) == (status, signal, state)
    assert row["ended"]
    if signal is None:
        assert row["cause"] is None
    noticed = home.query("gpt@1", "SELECT severity, rank, step FROM probe.events WHERE kind = 'process end'")
    if status == 0:
        assert noticed == []
    else:
        assert [(event["severity"], event["rank"]) for event in noticed] == [("error", 0)]
        assert noticed[0]["step"] <= STEPS

    raised = home.query("gpt@1", RAISED)
    page = home.probe("gpt@1", "crash")
    assert page.returncode == 0, page.stderr
    if how in ("kill", "segfault", "exit", "normal"):
        assert raised == []
    if how in ("raise", "hook"):
        (row,) = raised
        assert (row["exception"], row["message"], row["step"]) == ("ValueError", "a batch of 7", STEPS)
        assert (row["uncaught"], row["main"], row["module"], row["out_of_memory"]) == (True, True, None, False)
        assert (row["function"], row["file"]) == ("end", SCRIPT)
        assert row["traceback"].startswith("Traceback") and row["traceback"].rstrip().endswith(
            "ValueError: a batch of 7"
        )
        assert "ValueError: a batch of 7 (uncaught" in page.stdout, page.stdout
    if how == "thread":
        (row,) = raised
        assert (row["exception"], row["uncaught"], row["main"]) == ("IndexError", True, False)
        assert row["thread_name"] == "loader" and "list index out of range" in row["traceback"]
    if how == "memory":
        # One row when the exception left the model, and one when it was not caught.
        assert [row["uncaught"] for row in raised] == [False, True]
        for row in raised:
            assert row["out_of_memory"] and "DefaultCPUAllocator" in row["message"]
            assert (row["module"], row["stage"]) == ("1", "forward")
            assert row["function"] == "forward" and re.search(r"VmRSS: \d+ kB\n", row["memory"])
    if status == 0:
        assert "nothing crashed; 1 process ended well" in page.stdout
    else:
        assert re.search(r"rank 0 .* after \d+ steps\n", page.stdout), page.stdout
        last = f"1 (forward), in step {STEPS}" if how == "memory" else f"SGD (step), in step {STEPS - 1}"
        assert f"after {STEPS} steps" in page.stdout and f"last module  {last}\n" in page.stdout, page.stdout
        assert "metrics      loss " in page.stdout and "spans        train_step " in page.stdout, page.stdout


def test_a_rank_that_is_killed_has_an_account(home: Home) -> None:
    run = crash(home, ["torchrun", "--nproc-per-node", "2"], "kill", ranks=2)
    assert run.process.returncode != 0
    rows = json.loads(home.probe("gpt@1", "crash", "--format", "json").stdout)
    killed = next(row for row in rows if row["rank"] == 1)
    assert (killed["signal"], killed["exit_status"], killed["state"]) == ("SIGKILL", None, "lost")
    assert killed["operation_type"] == "all_reduce" and json.loads(killed["metrics"])[0]["name"] == "loss"
    page = home.probe("gpt@1", "crash").stdout
    assert re.match(rf"gpt@1: rank 1 was ended by SIGKILL after {STEPS} steps", page), page
    assert "collective   all_reduce" in page and "memory       cpu: " in page, page
    # torchrun ends the other one, or that one sees its connection break.
    assert re.search(r"; 1 more ended badly after that\n", page) and "\nrank 0: process " in page, page


def test_a_process_that_was_killed_is_gone_although_a_forked_one_has_its_connection(home: Home) -> None:
    _, address = home.serve("gpt")
    arguments = ("worker", str(STEPS), str(home.directory))
    home.spawn("python", SCRIPT, *arguments, PROBE="1", PROBE_COLLECTOR=address, **ALONE)
    wait_for("the agent", lambda: home.query(address, "SELECT pid FROM probe.agents WHERE state = 'live'"))
    (home.directory / "go").touch()
    try:
        # Not for `lost`: that is said of one that was silent for too long, too.
        lost = wait_for("the end", lambda: [row for row in home.query(address, HOW) if row["ended"]])
        assert (lost[0]["signal"], lost[0]["state"]) == ("SIGKILL", "lost")
        # Live, too, there is an account.
        assert "was ended by SIGKILL" in home.probe(address, "crash").stdout
    finally:
        (home.directory / "leave").touch()


def test_how_a_process_ended_outlives_the_collector(home: Home) -> None:
    collector, address = home.serve("gpt")
    arguments = ("kill", str(STEPS), str(home.directory))
    home.spawn("python", SCRIPT, *arguments, PROBE="1", PROBE_COLLECTOR=address, **ALONE)
    wait_for("the agent", lambda: home.query(address, "SELECT pid FROM probe.agents WHERE state = 'live'"))
    (home.directory / "go").touch()
    wait_for("the end", lambda: [row for row in home.query(address, HOW) if row["ended"]])
    # Within a second it is in the journal.
    journal = home.directory / "state" / "runs" / "gpt@1" / "journal"
    wait_for("the end to be written", lambda: any(b"SIGKILL" in file.read_bytes() for file in journal.iterdir()))
    collector.kill()
    collector.wait()
    (row,) = home.query("gpt@1", HOW)
    assert (row["signal"], row["state"]) == ("SIGKILL", "lost")


@pytest.fixture
def small_group(request: pytest.FixtureRequest) -> Iterator[pathlib.Path]:
    """A control group whose processes may take 256 MB together (or as many as the test says), below the one that this process is in."""
    groups = dict(line.split(":", 2)[1:] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines())
    mounts, limit = (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if "memory" in groups else ("/sys/fs/cgroup", "memory.max")
    )
    group = pathlib.Path(mounts + groups.get("memory", groups.get("", ""))) / f"probe-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group may be made here: {error}")
    try:
        if not (group / limit).exists():
            pytest.skip("control groups do not limit memory here")
        (group / limit).write_text(str(getattr(request, "param", 256) << 20))
        yield group
    finally:
        wait_for("the group to be empty", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_a_process_that_the_kernel_killed_for_want_of_memory_is_told_from_others(
    home: Home, small_group: pathlib.Path
) -> None:
    run = crash(home, ["python"], "oom", CONTROL_GROUP=str(small_group), **ALONE)
    assert run.process.returncode == 137, run.errors
    (row,) = home.query("gpt@1", HOW)
    assert (row["signal"], row["state"]) == ("SIGKILL", "lost")
    assert f"{small_group.name} rose from 0 to 1 while it ran" in row["cause"]
    page = home.probe("gpt@1", "crash").stdout
    assert re.search(rf"out of memory: the kernel's OOM kills in control group \S*{small_group.name} rose", page), page
    assert f"after {STEPS} steps" in page, page


@pytest.mark.extended
@pytest.mark.parametrize("small_group", [1024], indirect=True)
def test_the_kernel_kills_the_collector_before_training(home: Home, small_group: pathlib.Path) -> None:
    inside = f'echo $$ > {small_group}/cgroup.procs && exec "$@"'
    run = home.train(
        "python", "examples/train_gpt.py", "--steps", "1000000", "--batch-size", "2",
        within=("sh", "-c", inside, "sh"), PROBE_QUERY_MEMORY="8G",
    )  # fmt: skip
    run.wait_for_step(3)
    info = home.directory / "state/runs/gpt@1/run.json"
    collector = json.loads(info.read_text())["pid"]
    (training,) = [row["pid"] for row in run.query("SELECT pid FROM probe.agents")]
    before = run.query("SELECT MAX(step) AS step FROM python.steps")[0]["step"]
    # It holds the whole text: more than the group may take.
    home.spawn(
        "probe", "gpt", "query", "SELECT length(string_agg(repeat('x', 60000), '')) FROM generate_series(1, 1000000)"
    )
    wait_for("another collector", lambda: json.loads(info.read_text())["pid"] != collector)
    run.wait_for_step(before + 3)
    assert "the collector of run gpt@1 was ended by SIGKILL" in run.errors
    assert [row["pid"] for row in run.query("SELECT pid FROM probe.agents WHERE state = 'live'")] == [training]
    os.kill(training, signal.SIGTERM)
    assert run.process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_where_a_device_had_no_memory_left_the_modules_that_hold_it_are_named(home: Home) -> None:
    _, address = home.serve("gpt")
    process = home.spawn("python", SCRIPT, "device", str(STEPS), str(home.directory), PROBE_COLLECTOR=address)
    assert process.wait(PATIENCE) == 1
    lost = wait_for("the end", lambda: [row for row in home.query(address, HOW) if row["ended"]])
    assert lost[0]["exit_status"] in (1, None)
    (row,) = json.loads(home.probe(address, "crash", "--format", "json").stdout)
    kept = {one["module"]: one["size"] for one in json.loads(row["kept"])["most"]}
    # Modules that had returned before, each with its own memory only. The modules that the exception left have not returned.
    assert kept == {"1.0": 50.0, "0": 20.0, "1.1": 10.0}
    page = home.probe(address, "crash").stdout
    assert "by torch.OutOfMemoryError" in page, page
    assert re.search(r"\n  kept by      1\.0 50 MB, 0 20 MB, 1\.1 10 MB \(step 0\)\n", page), page
