"""The console on a terminal, as a person uses it, beside a run that trains."""

from __future__ import annotations

import pathlib
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator

import pytest
from terminal import CTRL_C, CTRL_D, TAB, UP, Terminal

from conftest import PATIENCE, PROBE, Home, Run, wait_for

COUNT = "SELECT COUNT(*) > 0 AS some FROM python.steps;"


def open_console(run: Run, *words: str, width: int = 100, height: int = 40, **more: str) -> Terminal:
    environment = run.home.environment(PAGER="cat", **more)
    console = Terminal([PROBE, run.name, *words], environment, width, height)
    console.until("gpt@1> ")
    return console


@pytest.fixture
def console(two_ranks: Run) -> Iterator[Terminal]:
    console = open_console(two_ranks)
    yield console
    drop_line(console)
    console.type(CTRL_D)
    assert console.end() == 0


def drop_line(console: Terminal) -> None:
    # A key that came before may still redraw the prompt: the one meant is on a line of its own. What is typed before it
    # is there can get lost.
    console.type(CTRL_C)
    console.until("\ngpt@1> ")


def answer(console: Terminal, line: str, expected: str) -> str:
    console.type(line + "\r")
    return answered(console, expected)


def answered(console: Terminal, expected: str) -> str:
    """Waits for an answer and the next prompt."""
    return console.until(lambda seen: expected in seen and seen.endswith("> "))


def test_statements_may_go_on_over_lines(console: Terminal) -> None:
    console.type("SELECT 40 +\r")
    console.type("2 AS answer,\r")
    seen = answer(console, "';' AS text;", "probe: 1 row")
    assert re.search(r"^ *42  ;$", seen, re.MULTILINE), seen
    seen = answer(console, "SELECT 1 AS a; SELECT 2 AS b;", "2\n")
    assert seen.count("probe: 1 row") == 2


def test_errors_have_hints_and_end_nothing(console: Terminal) -> None:
    seen = answer(console, "SELECT durations FROM python.steps;", "hint:")
    assert "error: " in seen and "duration" in seen
    assert "hint: \\? lists them" in answer(console, "\\nonsense", "hint:")
    assert "ZeroDivisionError" in answer(console, ">>> 1/0", "ZeroDivisionError")
    answer(console, COUNT, "true")


def test_tab_completes_sql(console: Terminal) -> None:
    console.type("SELECT MIN(forward_t" + TAB)
    console.until("forward_time")
    console.type(" >= 0) AS fine FROM python.step_b" + TAB)
    console.until("python.step_breakdown")
    drop_line(console)
    console.type("SELECT approx_percentile_cont_" + TAB)
    console.until("with_weight(")
    drop_line(console)
    console.type("\\tim" + TAB + TAB)
    # The line is drawn again below the list; keys that come before that can get lost.
    console.until(lambda seen: "\\timing" in seen and "\\timeout" in seen and seen.endswith("> \\tim"))


def test_tab_asks_the_process_for_names(two_ranks: Run, console: Terminal) -> None:
    def after_tab(begun: str, wanted: str) -> None:
        # A busy machine may take longer than the console waits for names: then the key is pressed again.
        deadline = time.monotonic() + PATIENCE
        console.type(">>> " + begun)
        while wanted not in console.seen:
            assert time.monotonic() < deadline, console.seen
            console.press(TAB)
            console.read(0.5)
        drop_line(console)

    rows = "SELECT COUNT(*) AS n FROM probe.evals"
    before = two_ranks.query(rows)
    after_tab("train_l", "train_loader")
    after_tab("print(model.named_par", "model.named_parameters")
    # No code ran for that, so there is no row.
    assert two_ranks.query(rows) == before


def test_history_outlives_the_console_and_is_ours_alone(two_ranks: Run) -> None:
    console = open_console(two_ranks)
    answer(console, "SELECT 6 *\r7 AS remembered;", "probe: 1 row")
    console.type(CTRL_D)
    assert console.end() == 0
    path = two_ranks.home.directory / "state" / "console_history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = open_console(two_ranks, "console")
    again.type(UP)
    again.until("remembered;")
    again.type("\r")
    assert " 42\n" in answered(again, "probe: 1 row")
    again.type(CTRL_D)
    assert again.end() == 0


def test_tables_are_described(console: Terminal) -> None:
    seen = answer(console, "\\d", "python.torch_trace")
    assert "python.step_breakdown" in seen and "probe.evals" in seen
    seen = answer(console, "\\d steps", "forward_time")
    assert "double" in seen and "Examples:" in seen


def test_watch_asks_again_until_ctrl_c(console: Terminal) -> None:
    console.type("SELECT MAX(step) AS newest FROM python.steps \\watch 0.1\r")
    console.until(lambda seen: len(set(re.findall(r"newest[\s─]*([\d,]+)", seen))) >= 2)
    console.type(CTRL_C)
    console.until("gpt@1> ")
    # The watched query is the last query.
    assert "newest" in answer(console, "\\plot", "newest")


def test_answers_look_as_asked(console: Terminal) -> None:
    answer(console, "\\x", "a line a value: on")
    assert "─ row 1 ─" in answer(console, COUNT, "true")
    answer(console, "\\x off", "a line a value: off")
    answer(console, "\\timing", "times: on")
    assert re.search(r"probe: 1 row in \d\.\d{4} s", answer(console, COUNT, "probe: 1 row"))
    assert re.search(r"probe: \d\.\d{4} s", answer(console, ">>> 1 + 1", "probe: "))


def test_pictures_are_drawn(console: Terminal) -> None:
    seen = answer(console, "SELECT step, duration FROM python.steps WHERE step < 100 ORDER BY step \\plot", "step ")
    assert re.search("[\u2801-\u28ff]", seen) and "┤" in seen, seen
    seen = answer(console, "SELECT rank, COUNT(*) AS steps FROM python.steps GROUP BY 1 ORDER BY 1 \\plot bar", "steps")
    # One of the ranks may be a step ahead.
    assert re.search(r"^0 .*██", seen, re.MULTILINE) and re.search(r"^1 .*██", seen, re.MULTILINE), seen
    assert "no column of numbers" in answer(console, "SELECT 'a' AS a, 'b' AS b \\plot", "hint:")


def test_answers_go_to_files(console: Terminal, tmp_path: pathlib.Path) -> None:
    answer(console, f"\\o {tmp_path}/rows.csv", "gpt@1> ")
    answer(console, "SELECT 1 AS a;", "written to")
    answer(console, "SELECT 2 AS a;", "written to")
    answer(console, "\\o", "gpt@1> ")
    assert (tmp_path / "rows.csv").read_text() == "a\n1\n2\n"
    answer(console, f"\\o {tmp_path}/rows.parquet", "gpt@1> ")
    answer(console, COUNT, "written to")
    answer(console, COUNT, "true")
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist() == [{"some": True}]
    seen = answer(console, f"\\o {tmp_path}/no/such.csv", "error:")
    assert "hint:" in seen


def test_python_has_lines_a_mode_and_ranks(console: Terminal) -> None:
    answer(console, ">>> print('batch', batch_size * 10)", "batch 40\n")
    answer(console, "\\py", "gpt@1 >>> ")
    answer(console, "for i in range(2):\r    print('turn', i + 1)\r", "turn 1\nturn 2\n")
    # Variables stay for as long as the console is open.
    answer(console, "mine = batch_size + 17", ">>> ")
    answer(console, "print('mine', mine * 2)", "mine 42\n")
    answer(console, "\\rank all", ">>> ")
    seen = answer(console, "import os; print('pid', os.getpid() > 1)", "[rank 1] pid True")
    assert "[rank 0] pid True" in seen
    answer(console, "\\rank 1", ">>> ")
    assert "runs on rank 1" in answer(console, "\\rank", "rank 1")
    answer(console, "\\sql", "gpt@1> ")
    answer(console, COUNT, "true")


def test_ctrl_c_cancels_the_snippet_and_not_the_run(two_ranks: Run, console: Terminal) -> None:
    console.type(">>> import time; print('in' + 'side', flush=True); [time.sleep(0.01) for _ in range(60000)]\r")
    console.until("inside")
    console.type(CTRL_C)
    answered(console, "the snippet was cancelled")
    newest = "SELECT status FROM probe.evals WHERE code LIKE '%range(60000)%' ORDER BY id DESC LIMIT 1"
    wait_for("the snippet to be over", lambda: two_ranks.query(newest) == [{"status": "cancelled"}])
    step = two_ranks.query("SELECT MAX(step) AS s FROM python.steps")[0]["s"]
    two_ranks.wait_for_step(step + 2, ranks=2)


def test_ctrl_c_cancels_a_query(console: Terminal, two_ranks: Run) -> None:
    many = "SELECT SUM(a.value * b.value) FROM generate_series(1, 999999) a, generate_series(1, 999999) b;"
    console.type(many + "\r")
    # Before it is under way, the key would be one for the prompt.
    under_way = "SELECT 1 FROM probe.queries WHERE status = 'running' AND sql LIKE 'SELECT SUM(a.value%'"
    wait_for("the query", lambda: two_ranks.query(under_way))
    console.type(CTRL_C)
    answered(console, "the query was cancelled")
    answer(console, COUNT, "true")


def test_what_does_not_fit_goes_through_the_pager(two_ranks: Run) -> None:
    home = two_ranks.home
    shown = Terminal([PROBE, "gpt"], home.environment(PAGER="sed 's/^/| /'"), width=60, height=10)
    shown.until("gpt@1> ")
    assert "\n| " not in answer(shown, COUNT, "true")
    assert "\n|     8\n" in answer(shown, "SELECT * FROM generate_series(1, 20);", "probe: 20 rows")
    answer(shown, "\\pager off", "pager: off")
    assert "\n| " not in answer(shown, "SELECT * FROM generate_series(1, 20);", "probe: 20 rows")
    shown.type(CTRL_D)
    assert shown.end() == 0


def test_lines_of_a_pipe_are_done_until_one_fails(two_ranks: Run) -> None:
    def done(text: str) -> tuple[int, str, str]:
        ended = two_ranks.home.probe("gpt", stdin=text)
        return ended.returncode, ended.stdout, ended.stderr

    assert done("SELECT 1 AS a;\n\\x\nSELECT 2 AS a") == (0, "a\n─\n1\n─ row 1 " + "─" * 52 + "\na  2\n", "")
    assert done(">>> for i in range(2):\n...     print(i)\n>>> print('end')\n") == (0, "0\n1\nend\n", "")
    assert done("\\py\nprint(batch_size)\n\\q\nprint('not')\n") == (0, "4\n", "")
    status, out, err = done("SELECT nothing FROM nowhere;\nSELECT 1;\n")
    assert (status, out) == (1, "") and "error:" in err
    status, out, err = done(">>> raise ValueError('planted')\nSELECT 1;\n")
    assert (status, out) == (1, "") and "ValueError: planted" in err
    assert done("\\nonsense\n")[0] == 2


def test_ctrl_c_between_two_lines_of_a_pipe_ends_it(two_ranks: Run) -> None:
    command = [PROBE, "gpt"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": two_ranks.home.environment(), "text": True}
    with subprocess.Popen(command, **pipes) as child:
        assert child.stdin and child.stdout
        child.stdin.write("SELECT 42 AS answer;\n")
        child.stdin.flush()
        while "42" not in child.stdout.readline():
            pass
        # Nothing is under way once one of its threads waits for input (it reads descriptor 0), and nothing will come.
        calls = pathlib.Path(f"/proc/{child.pid}/task")
        wait_for(
            "it to wait for its input",
            lambda: any(call.read_text().startswith("0 0x0 ") for call in calls.glob("*/syscall")),
        )
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 130


def test_a_run_that_ends_goes_on_being_asked(home: Home) -> None:
    run = home.train("python", "examples/train_gpt.py", "--steps", "1000000", "--pause", "0.05")
    run.wait_for_step(3)
    console = open_console(run)
    answer(console, COUNT, "true")
    run.process.terminate()
    run.process.wait(PATIENCE)
    seen = answer(console, COUNT, "true")
    assert "gpt@1 has ended; its rows are read from" in seen
    assert "error: this run has ended" in answer(console, ">>> 1 + 1", "hint:")
    console.type(CTRL_D)
    assert console.end() == 0
    # And from its directory at once.
    ended = home.probe(f"{home.directory}/state/runs/gpt@1", stdin=f"{COUNT}\n>>> 1 + 1\n")
    assert ended.returncode == 3 and "true" in ended.stdout and "this run has ended" in ended.stderr
