"""How questions of `trainprobe` end: with their run, with what asked them, or by the interrupt button."""

from __future__ import annotations

import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator

import pyarrow
import pytest
import trainprobe as probe
from IPython.core.interactiveshell import InteractiveShell
from reader import commands, environment_of, new_shell, offered, there, with_interrupts
from trainprobe.progress import Progress

from conftest import PROBE, Home, wait_for

MANY = "SELECT value, value * 0.5 AS half FROM generate_series(1, 50000000)"
ENDLESS = "SELECT COUNT(*) FROM generate_series(1, 1000000000000) WHERE value % 2 = 3"


@pytest.fixture
def served(home: Home) -> Iterator[tuple[subprocess.Popen[str], probe.Run]]:
    process, _ = home.serve("served")
    with environment_of(home):
        yield process, probe.connect("served")


def test_memory_stays_the_same_however_many_rows_are_read(served: tuple[object, probe.Run]) -> None:
    _, run = served
    rows, most = 0, 0
    before = pyarrow.total_allocated_bytes()
    for batch in run.sql("SELECT value, value * 0.5 AS half FROM generate_series(1, 1000000)").to_arrow_reader():
        rows += batch.num_rows
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert rows == 1_000_000 and most < 4 << 20, "all of them are 16 MB"
    tracemalloc.start()
    assert sum(1 for _ in run.sql("SELECT value, 'text' AS t FROM generate_series(1, 50000)").iter_rows()) == 50_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.extended
@pytest.mark.parametrize("way", ["to_arrow_reader", "iter_rows"])
def test_ten_million_rows_are_read_in_bounded_memory(way: str, served: tuple[object, probe.Run]) -> None:
    code = f"""
import resource, trainprobe
sql = "SELECT value, value * 0.5 AS half, 'text' AS text FROM generate_series(1, $last)"
def read(last):
    found = trainprobe.connect("served").sql(sql, last=last).{way}()
    rows = sum(getattr(each, "num_rows", 1) for each in found)
    return rows, *(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(read(100_000), read(10_000_000))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (few, own, command), (many, own_then, command_then) = eval(f"[{done.stdout.replace(') (', '), (')}]")
    assert (few, many) == (100_000, 10_000_000)
    # In KiB. All of them are 240 MB as Arrow, and more as rows of Python.
    assert own_then - own < 32 << 10 and command_then - command < 32 << 10, done.stdout


@pytest.mark.parametrize("way", ["plain", "arrow"])
def test_a_run_that_is_killed_says_so_and_answers_from_its_directory(
    way: str, served: tuple[subprocess.Popen[str], probe.Run]
) -> None:
    process, run = served
    rows = iter(run.sql(MANY).iter_rows() if way == "plain" else run.sql(MANY).to_arrow_reader())
    next(rows)
    process.kill()
    with pytest.raises(probe.Unreachable, match="the connection to the collector broke"):
        for _ in rows:
            pass
    process.wait()
    assert run.sql("SELECT run FROM probe.store LIMIT 1").fetchall() == [("served@1",)]
    assert [each["state"] for each in probe.runs()] == ["lost"]
    assert probe.runs().df()["state"].to_list() == ["lost"]
    assert commands() == []


def test_a_command_that_is_killed_is_an_answer_that_broke_off(served: tuple[object, probe.Run]) -> None:
    _, run = served
    rows = iter(run.sql(MANY).iter_rows())
    next(rows)
    (pid,) = commands()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(probe.Broken, match="signal 9"):
        for _ in rows:
            pass


def test_no_command_is_left_behind(served: tuple[object, probe.Run]) -> None:
    _, run = served
    rows = iter(run.sql(MANY).iter_rows())
    next(rows)
    assert len(commands()) == 1
    del rows
    assert commands() == []
    reader = run.sql(MANY).to_arrow_reader()
    reader.read_next_batch()
    del reader
    assert commands() == []
    with pytest.raises(ZeroDivisionError):
        for row in run.sql(MANY).iter_rows():
            row[0] // 0
    assert commands() == []


def test_a_killed_interpreter_leaves_no_command_behind(served: tuple[object, probe.Run], home: Home) -> None:
    _, run = served
    code = f"import trainprobe; trainprobe.connect('served').sql({ENDLESS!r}).fetchall()"
    asking = home.spawn(sys.executable, "-c", code, PROBE_BIN=PROBE)
    running = run.sql("SELECT status FROM probe.queries WHERE sql = $sql", sql=ENDLESS)
    wait_for("the query", lambda: running.fetchall() == [("running",)])
    children = pathlib.Path(f"/proc/{asking.pid}/task/{asking.pid}/children")
    (command,) = map(int, children.read_text().split())
    asking.kill()
    asking.wait()
    wait_for("the command's end", lambda: not there(command))
    wait_for("the query's end", lambda: running.fetchall() == [("cancelled",)])


@pytest.fixture
def shell(tmp_path: pathlib.Path) -> InteractiveShell:
    return new_shell(tmp_path)


def test_cells_ask_and_say_where_rows_are_cut(
    served: tuple[object, probe.Run], shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = served
    assert shell.run_line_magic("probe", "served").name == "served@1"
    shell.run_cell("first, text = 3, 'it\\'s: :first'")
    cell = (
        "%%probe -o found\nSELECT value, :text AS text, 'a:first' AS plain, 1::int AS cast FROM generate_series(1, 5)\n"
    )
    assert shell.run_cell(f"{cell}WHERE value > :first -- :nothing").success
    found = shell.user_ns["found"]
    assert found.values.tolist() == [[4, "it's: :first", "a:first", 1], [5, "it's: :first", "a:first", 1]]
    capsys.readouterr()
    done = shell.run_cell("%%probe -n 3 --plot\nSELECT value FROM generate_series(1, 100000)")
    assert len(done.result) == 3
    shown = capsys.readouterr().out
    assert "the first 3 rows; there are more" in shown and "<svg" in shown
    asked = run.sql("SELECT COUNT(*) FROM probe.queries WHERE sql LIKE 'SELECT value FROM generate_series(1, 100000)%'")
    assert asked.fetchall() == [(1,)], "what is drawn is not asked for again"
    assert len(shell.run_cell("%%probe\nSELECT value FROM generate_series(1, 100000)").result) == 10_000
    for wrong, says in (("-o 1x\nSELECT 1", "no name of a variable"), ("\nSELECT :none", "not a variable")):
        assert says in str(shell.run_cell(f"%%probe {wrong}").error_in_exec)
    assert isinstance(shell.run_cell("%%probe\nSELECT nothing").error_in_exec, probe.SqlError)
    # No process of the run is there to run it.
    assert isinstance(shell.run_cell("%%probe_eval\nprint(1)").error_in_exec, probe.ProbeError)
    assert commands() == []


def test_tables_and_columns_are_completed(served: tuple[object, probe.Run], shell: InteractiveShell) -> None:
    shell.run_line_magic("probe", "served")

    assert "python.steps" in offered(shell, "%%probe\nSELECT * FROM python.st")
    assert "forward_time" in offered(shell, "%%probe\nSELECT * FROM python.steps WHERE forw")
    assert not any("." in name for name in offered(shell, "forw"))


def test_the_interrupt_button_cancels_the_query(served: tuple[object, probe.Run], shell: InteractiveShell) -> None:
    _, run = served
    running = run.sql("SELECT status FROM probe.queries WHERE sql LIKE $sql", sql=f"{ENDLESS}%")

    def interrupt() -> None:
        wait_for("the query", lambda: running.fetchall() == [("running",)])
        os.kill(os.getpid(), signal.SIGINT)

    button = threading.Thread(target=interrupt)
    with with_interrupts():
        button.start()
        done = shell.run_cell(f"%%probe\n{ENDLESS}")
        button.join()
    assert isinstance(done.error_in_exec, KeyboardInterrupt)
    wait_for("the query's end", lambda: running.fetchall() == [("cancelled",)])
    assert commands() == []


def test_what_takes_long_says_so_and_clears_its_line() -> None:
    out = io.StringIO()
    with Progress("asking gpt", out, pause=0.01):
        wait_for("the line", lambda: re.search(r"asking gpt: \d+ s; interrupt to cancel", out.getvalue()))
    assert out.getvalue().endswith(" \r")
    quick = io.StringIO()
    with Progress("asking gpt", quick):
        pass
    assert quick.getvalue() == ""
