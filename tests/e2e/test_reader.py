"""`import trainprobe`: questions to a run from Python, by every way to an answer."""

from __future__ import annotations

import asyncio
import datetime
import doctest
import importlib
import json
import math
import os
import pathlib
import pkgutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from decimal import Decimal

import duckdb
import pandas
import polars
import pyarrow
import pytest
import trainprobe as probe
from reader import new_shell, offered, trained, with_interrupts
from trainprobe import cursor

from conftest import PATIENCE, Home, wait_for

#: A column of every type that an answer can have, with NULL in the second row.
TYPES = {
    "whole": ("9007199254740993", "NULL"),
    "small": ("arrow_cast(-5, 'Int32')", "NULL"),
    "half": ("0.5", "NULL"),
    "real": ("CAST(0.25 AS REAL)", "NULL"),
    "nan": ("CAST('NaN' AS DOUBLE)", "CAST('inf' AS DOUBLE)"),
    "yes": ("true", "NULL"),
    "name": ("'é日 \"quoted\" \\ \n two'", "NULL"),
    "at": ("arrow_cast(1700000000123456789, 'Timestamp(ns, \"UTC\")')", "NULL"),
    "zoneless": ("arrow_cast(1700000000123, 'Timestamp(ms)')", "NULL"),
    "nothing": ("NULL", "NULL"),
    "took": ("arrow_cast(1500, 'Duration(µs)')", "NULL"),
    "day": ("DATE '2026-01-02'", "NULL"),
    "exact": ("arrow_cast(1.25, 'Decimal128(10, 2)')", "NULL"),
    "raw": ("X'00ff'", "NULL"),
    "list": ("[1, NULL, 3]", "NULL"),
    "pair": ("{a: 1, b: 'x'}", "NULL"),
}
EVERY_TYPE = " UNION ALL ".join(
    "SELECT " + ", ".join(f"{values[row]} AS {name}" for name, values in {"row": ("0", "1"), **TYPES}.items())
    for row in (0, 1)
)
NANOSECONDS = 1_700_000_000_123_456_789


@pytest.fixture(scope="module")
def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, probe.Run]]:
    with trained(tmp_path_factory.mktemp("tiny")) as made:
        yield made


@pytest.fixture
def tiny(tiny_home: tuple[Home, probe.Run]) -> probe.Run:
    return tiny_home[1]


def every_type(run: probe.Run) -> probe.Result:
    return run.sql(f"SELECT * FROM ({EVERY_TYPE}) ORDER BY row")


def test_plain_python_reads_every_type(tiny: probe.Run) -> None:
    first, second = every_type(tiny).to_dicts()
    assert math.isnan(first.pop("nan")) and second.pop("nan") == math.inf
    assert first.pop("at").nanoseconds == NANOSECONDS
    assert first.pop("zoneless").isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert first == {
        "row": 0,
        "whole": 9007199254740993,
        "small": -5,
        "half": 0.5,
        "real": 0.25,
        "yes": True,
        "name": 'é日 "quoted" \\ \n two',
        "nothing": None,
        "took": datetime.timedelta(microseconds=1500),
        "day": datetime.date(2026, 1, 2),
        "exact": Decimal("1.25"),
        "raw": b"\x00\xff",
        "list": [1, None, 3],
        "pair": {"a": 1, "b": "x"},
    }
    assert second.pop("row") == 1 and set(second.values()) == {None}


def test_pyarrow_pandas_polars_and_duckdb_read_every_type(tiny: probe.Run) -> None:
    result = every_type(tiny)
    table = result.to_arrow_table()
    assert table.schema.field("at").type == pyarrow.timestamp("ns", "UTC")
    assert table["at"].cast(pyarrow.int64()).to_pylist() == [NANOSECONDS, None]
    # pyarrow and plain Python read the same values, except for times, because Python has no nanoseconds.
    exact = [name for name in table.column_names if name not in ("at", "zoneless", "nan")]
    plain = [{name: row[name] for name in exact} for row in result.to_dicts()]
    assert table.select(exact).to_pylist() == plain

    frame = result.df()
    assert (str(frame["whole"].dtype), str(frame["yes"].dtype)) == ("Int64", "boolean")
    assert frame["whole"][0] == 9007199254740993 and frame["whole"].isna()[1]
    assert frame["at"][0] == pandas.Timestamp(NANOSECONDS, tz="UTC") and frame["at"].isna()[1]
    assert math.isnan(frame["nan"][0]) and frame["nan"][1] == math.inf
    assert frame["name"][0] == plain[0]["name"] and frame["name"].isna()[1]

    for polar in (result.pl(), polars.DataFrame(result)):
        assert polar["at"].dtype == polars.Datetime("ns", "UTC")
        assert polar["at"].cast(polars.Int64).to_list() == [NANOSECONDS, None]
        assert polar["whole"].to_list() == [9007199254740993, None]
        assert polar["name"].to_list() == [plain[0]["name"], None]

    columns = 'row, whole, half, yes, name, epoch_ns("at"), list, pair'
    found = duckdb.sql(f"SELECT {columns} FROM result ORDER BY row")
    one = (0, 9007199254740993, 0.5, True, plain[0]["name"], NANOSECONDS, [1, None, 3], {"a": 1, "b": "x"})
    assert found.fetchall() == [one, (1, None, None, None, None, None, None, None)]


def test_parameters_come_back_as_they_were_given(tiny: probe.Run) -> None:
    at = probe.Timestamp.of(NANOSECONDS)
    values = {
        "a": -(2**63),
        "b": 0.1,
        "c": "'; DROP TABLE x; --\n$a",
        "d": False,
        "e": None,
        "f": at,
        "g": "",
        "h": math.inf,
    }
    names = ", ".join(f"${name} AS {name}" for name in values)
    assert tiny.sql(f"SELECT {names}", **values).to_dicts() == [values]
    assert tiny.sql("SELECT $f AS f", f=at).to_dicts()[0]["f"].nanoseconds == NANOSECONDS
    # Numbers of numpy and pandas' times are taken for what they are.
    other = tiny.sql("SELECT $a AS a, $b AS b", a=pandas.Series([3])[0], b=pandas.Timestamp(NANOSECONDS, tz="UTC"))
    assert other.to_dicts()[0]["a"] == 3 and other.to_dicts()[0]["b"].nanoseconds == NANOSECONDS
    long = "x" * 100_000
    assert tiny.sql(f"SELECT $a = '{long}' AS same", a=long).fetchall() == [(True,)]
    with pytest.raises(probe.Limit, match="too long"):
        tiny.sql("SELECT $a", a=long * 2).fetchall()
    for wrong in (2**63, [1], datetime.datetime(2026, 1, 1), "a\0b"):
        with pytest.raises(probe.UsageError):
            tiny.sql("SELECT $x", x=wrong)
    with pytest.raises(probe.SqlError, match=r"no value is given.*\n?") as missing:
        tiny.sql("SELECT $x").fetchall()
    assert missing.value.hint == "give one: x=VALUE"


def test_parameters_are_arguments_of_table_functions_too(tiny: probe.Run) -> None:
    sql = "SELECT COUNT(*), MIN(value) FROM generate_series($first, $last * 2) WHERE value <> $first"
    assert tiny.sql(sql, first=3, last=5).fetchall() == [(7, 4)]
    with pytest.raises(probe.SqlError, match="Cannot cast string 'x'"):
        tiny.sql(sql, first=3, last="x").fetchall()


def test_columns_become_tensors(tiny: probe.Run) -> None:
    sql = "SELECT row AS a, half, whole, yes, at, took FROM ({}) WHERE row = 0"
    tensors = tiny.sql(sql.format(EVERY_TYPE)).torch()
    assert {name: (tuple(made.shape), str(made.dtype)) for name, made in tensors.items()} == {
        "a": ((1,), "torch.int64"),
        "half": ((1,), "torch.float64"),
        "whole": ((1,), "torch.int64"),
        "yes": ((1,), "torch.bool"),
        "at": ((1,), "torch.int64"),
        "took": ((1,), "torch.int64"),
    }
    assert (tensors["whole"].item(), tensors["at"].item(), tensors["took"].item()) == (
        2**53 + 1,
        NANOSECONDS,
        1_500_000,
    )
    tensors["half"] += 1
    half = tiny.sql(f"SELECT half, yes FROM ({EVERY_TYPE}) ORDER BY row")
    with pytest.raises(probe.UsageError, match="'half' is NULL in 1 of 2 rows"):
        half.torch()
    assert [str(made.tolist()) for made in half.torch(null=math.nan).values()] == ["[0.5, nan]", "[1.0, nan]"]
    with pytest.raises(probe.UsageError, match="'kind' is string"):
        tiny.sql("SELECT kind FROM python.steps").torch()


def test_exit_statuses_are_exceptions(tiny: probe.Run) -> None:
    with pytest.raises(probe.SqlError) as wrong:
        tiny.sql("SELECT stp FROM python.steps").df()
    assert (wrong.value.status, wrong.value.hint) == (1, "did you mean step?")
    with pytest.raises(probe.Denied, match="queries only read"):
        tiny.sql("DROP TABLE python.steps").pl()
    with pytest.raises(probe.Limit):
        tiny.sql("SELECT value FROM generate_series(1, 100)").within(max_rows=10).to_arrow_table()
    with pytest.raises(probe.Limit):
        tiny.sql("SELECT COUNT(*) FROM generate_series(1, 1000000000000)").within(timeout=0.1).fetchall()
    with pytest.raises(probe.Unreachable) as nowhere:
        probe.connect("nothing")
    assert nowhere.value.status == 3 and isinstance(nowhere.value, ConnectionError)
    with pytest.raises(KeyError, match="did you mean"):
        tiny["python.stepz"]
    with pytest.raises(probe.SnippetError, match="ZeroDivisionError") as raised:
        tiny.eval("print('before')\n1 / 0")
    assert raised.value.evaluation.text == "before\n"


def test_a_run_is_found_by_name_pid_and_directory(
    tiny_home: tuple[Home, probe.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, run = tiny_home
    count = "SELECT COUNT(*) FROM python.steps"
    (pid,) = {row["pid"] for row in run.steps().to_dicts()}
    directory = home.directory / "state" / "runs" / "tiny@1"
    for endpoint in (None, "tiny", "tiny@1", pid, f"unix:{home.sockets}/tiny@1.sock"):
        assert probe.connect(endpoint).sql(count).fetchall() == [(8,)], endpoint
    assert probe.connect(directory, others={"live": "tiny"}).name == str(directory)
    both = probe.connect("tiny", others={"other": "tiny"})
    assert both.sql("SELECT COUNT(*) FROM python.steps JOIN other.python.steps USING (step)").fetchall() == [(8,)]
    monkeypatch.setenv("PROBE_ENDPOINT", "tiny")
    assert probe.connect().name == "tiny@1"


def test_views_tables_and_pages(tiny: probe.Run, tmp_path: pathlib.Path) -> None:
    assert [row["step"] for row in tiny.steps(last=2).to_dicts()] == [6, 7]
    assert len(tiny.steps()) == 8 and tiny.steps(rank=3).fetchall() == []
    for view in (tiny.modules(), tiny.collectives(), tiny.ranks(), tiny.memory(last=3), tiny.events()):
        assert view.columns
    assert len(tiny.metrics("loss")) == 8
    table = tiny["python.steps"]
    assert table.units["duration"] == "s" and "One row per optimizer step" in repr(table)
    assert "<small>s</small>" in table._repr_html_() and "duration" in table.df()
    assert tiny.tables["python.steps"].columns == table.columns and "python.steps" in repr(tiny.tables)
    assert "there are more" in repr(tiny.sql("SELECT value FROM generate_series(1, 30)"))
    assert "<td" in tiny.steps()._repr_html_() and len(tiny.sql("SHOW TABLES")) > 10
    assert "ProjectionExec" in tiny.sql("SELECT $x AS x", x=1).explain()
    assert "tiny@1" in str(tiny.hang())
    assert "train_and_wait.py" in str(tiny.stack()) and "<pre" in tiny.stack()._repr_html_()
    assert "function" in tiny.stack().df() and tiny.crash().to_dicts() is not None
    assert str(tiny.flamegraph(seconds=1)).rstrip().endswith("</svg>")
    assert isinstance(tiny.diagnose().findings, list)
    tiny.export(tmp_path / "tiny.json", steps=(0, 3))
    events = json.loads((tmp_path / "tiny.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "step"] == [f"step {step}" for step in range(4)]
    with pytest.raises(probe.CommandError, match="no operator of tiny@1 was captured"):
        tiny.profile()
    compared = probe.compare(tiny, tiny, steps=(0, 7))
    assert compared.pl().columns == list(compared.to_dicts()[0])


def test_plots_are_pictures(tiny: probe.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    line = tiny.sql("SELECT step, duration, NULL AS gap FROM python.steps ORDER BY step").plot(y="duration")
    bars = tiny.sql(
        "SELECT stage, COUNT(*) AS calls, CAST('NaN' AS DOUBLE) AS nan FROM python.torch_trace GROUP BY 1"
    ).plot()
    assert str(line).count("<path") == 1 and "<rect" in str(bars) and "nan" not in str(line).lower()
    monkeypatch.setattr(probe.Plot, "MOST", 3)
    assert "the first 3 rows; there are more" in str(tiny.steps().plot(y="duration"))
    with pytest.raises(probe.UsageError, match="no column 'x'"):
        tiny.sql("SELECT 1 AS a").plot(x="x")


def test_snippets_and_sessions(tiny: probe.Run) -> None:
    done = tiny.eval("print(model[0].weight.shape)")
    assert (done.text, list(done.ranks.values())) == ("torch.Size([8, 8])\n", [done.text]) and done.step == 8
    with tiny.session() as session:
        session.eval("kept = 40")
        assert session.eval("print(kept + 2)").text == "42\n"
    with pytest.raises(probe.SnippetError, match="NameError"):
        tiny.session(session.name).eval("print(kept)")


def test_cells_run_python_in_the_training_process(tiny: probe.Run, tmp_path: pathlib.Path) -> None:
    shell = new_shell(tmp_path)
    done = shell.run_cell("%%probe_eval tiny --at now\nprint(len(model), optimizer.param_groups[0]['lr'])")
    assert done.success and done.result.text == "3 0.01\n"
    assert isinstance(shell.run_cell("%%probe_eval\n1 / 0").error_in_exec, probe.SnippetError)
    # Nothing is offered if the process takes longer than two seconds to answer.
    wait_for("a name", lambda: "optimizer" in offered(shell, "%%probe_eval\noptimiz"))
    wait_for("an attribute", lambda: "param_groups" in offered(shell, "%%probe_eval\noptimizer.param_g"))
    shell.run_cell("%%probe_eval --session cell\nkept = 1")
    assert shell.run_cell("%%probe_eval --session cell\nprint(kept)").result.text == "1\n"


def test_the_interrupt_button_cancels_the_snippet_and_not_the_run(tiny: probe.Run, tmp_path: pathlib.Path) -> None:
    shell = new_shell(tmp_path)
    endless = "import time\nwhile True:\n    time.sleep(0.01)  # endless"
    status = tiny.sql("SELECT status FROM probe.evals WHERE code LIKE '%# endless%'")

    def interrupt() -> None:
        wait_for("the snippet", lambda: status.fetchall() == [("running",)])
        os.kill(os.getpid(), signal.SIGINT)

    button = threading.Thread(target=interrupt)
    with with_interrupts():
        button.start()
        done = shell.run_cell(f"%%probe_eval tiny --at now\n{endless}")
        button.join()
    assert isinstance(done.error_in_exec, KeyboardInterrupt)
    wait_for("the snippet's end", lambda: status.fetchall() == [("cancelled",)])
    assert tiny.eval("print(1)").text == "1\n"


def test_pep_249_cursors_are_taken_by_pandas_and_polars(tiny: probe.Run) -> None:
    sql = "SELECT step, kind FROM python.steps WHERE step < ? ORDER BY step"
    assert (cursor.apilevel, cursor.paramstyle) == ("2.0", "qmark")
    with tiny.cursor() as asked:
        asked.execute(sql, (2,))
        assert [column[0] for column in asked.description or []] == ["step", "kind"]
        assert asked.fetchone()[0] == 0 and len(asked.fetchmany(5)) == 1 and asked.fetchone() is None
        asked.execute("SELECT $a || '?' AS text, '?' AS mark", {"a": "x"})
        assert list(asked) == [("x?", "?")]
        with pytest.raises(cursor.ProgrammingError):
            asked.execute("SELECT nothing")
    with warnings.catch_warnings():
        # pandas says of every connection but SQLAlchemy's and sqlite's that it was not tested.
        warnings.simplefilter("ignore")
        assert list(pandas.read_sql(sql, tiny.connection(), params=(2,))["step"]) == [0, 1]
    assert polars.read_database("SELECT step FROM python.steps", tiny.connection()).height == 8


def test_watch_repeats_a_question(tiny: probe.Run) -> None:
    with tiny.watch("SELECT MAX(step) AS step, $x AS x FROM python.steps", {"x": None}, every=0.05) as answers:
        for _ in range(2):
            answer = next(answers)
            assert answer.to_dicts() == [{"step": 7, "x": None}] and answer.df()["step"][0] == 7


def test_questions_can_be_awaited_and_cancelled(tiny: probe.Run) -> None:
    async def ask() -> None:
        run = await probe.aconnect("tiny")
        steps, text = await asyncio.gather(run.sql("SELECT step FROM python.steps").pl(), run.eval("print(1)"))
        assert steps.height == 8 and text.text == "1\n"
        async for answer in run.watch("SELECT 1 AS one", every=0.05):
            assert answer.rows == [(1,)]
            break
        endless = asyncio.ensure_future(
            run.sql("SELECT COUNT(*) AS cancelled_one FROM generate_series(1, 1000000000000)").df()
        )
        running = "SELECT status FROM probe.queries WHERE sql LIKE 'SELECT COUNT(*) AS cancelled_one%'"
        while await run.sql(running).fetchall() != [("running",)]:
            await asyncio.sleep(0.02)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        while await run.sql(running).fetchall() != [("cancelled",)]:
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(ask(), PATIENCE))


def test_what_is_not_installed_is_named(tiny: probe.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pyarrow", "pandas", "polars"):
        monkeypatch.setitem(sys.modules, package, None)
    result = tiny.sql("SELECT step FROM python.steps WHERE step = 1")
    with pytest.raises(probe.Missing, match="pip install pandas pyarrow"):
        result.df()
    with pytest.raises(probe.Missing, match="pip install polars"):
        result.pl()
    with pytest.raises(probe.Missing, match="pip install pyarrow"):
        pyarrow.table(result)
    assert result.fetchall() == [(1,)] and result.to_dicts() == [{"step": 1}]


def test_examples_in_docstrings_hold(tiny: probe.Run) -> None:
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
    for module in pkgutil.iter_modules(probe.__path__, "trainprobe."):
        loaded = importlib.import_module(module.name)
        for example in finder.find(loaded, globs={**vars(loaded), "probe": probe, "run": tiny}):
            runner.run(example)
    assert runner.summarize().failed == 0 and runner.tries > 8


def test_json_rows_are_json(tiny_home: tuple[Home, probe.Run]) -> None:
    home, _ = tiny_home
    done = home.probe("tiny", "query", "--format", "json-rows", "SELECT step FROM python.steps ORDER BY step LIMIT 2")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"columns": [{"name": "step", "type": "int"}]},
        [0],
        [1],
        {"rows": 2},
    ]
    assert pathlib.Path(probe.__file__).with_name("py.typed").exists()
