"""A run, live or recorded, and all queries and commands for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainprobe import figures, snippets
from trainprobe.cursor import Connection, Cursor
from trainprobe.errors import UsageError
from trainprobe.pages import Benchmark, Capture, Diagnosis, FlameGraph, Page, window
from trainprobe.result import Result
from trainprobe.snippets import Evaluation, Session
from trainprobe.tables import Table, Tables
from trainprobe.target import Limits, Target, endpoint_of
from trainprobe.watching import Watch, view

if TYPE_CHECKING:
    from trainprobe.live import Live

#: Steps that a live view has of each rank at most.
MAX_LIVE_STEPS = 500


class Run:
    """A run or a process to ask; made by :func:`trainprobe.connect`.

    Nothing is kept open: each question is a `probe` command of its own, and after the run has ended the same object
    answers from its directory. All methods raise the exceptions of :mod:`trainprobe.errors`.

    :ivar name: its name: `gpt@1`, a pid, a directory or an address.
    :ivar tables: its tables and views by name.
    """

    def __init__(self, target: Target, limits: Limits | None = None) -> None:
        self._target, self._limits = target, limits or Limits()
        self.name = target.endpoint or ""
        self.tables = Tables(target)

    def sql(self, sql: str, values: Mapping[str, object] | None = None, /, **parameters: object) -> Result:
        """A query in SQL, read-only; it runs when its answer is asked for.

        :param sql: the query, in which `$name` stands for a parameter.
        :param values: parameters by name; the same as keywords.

        Parameters are None, bool, int, float, str or a datetime with a time zone. They are bound to the query and never
        become part of its text. Raises UsageError for a value that can't be one.

        >>> run.sql("SELECT COUNT(*) AS steps FROM python.steps WHERE step < $last", last=2).fetchall()
        [(2,)]
        """
        return Result(self._target, sql, {**(values or {}), **parameters}, self._limits)

    def __getitem__(self, table: str) -> Table:
        """A table or view by its full name, with units and sentences. Raises NoTableError, a KeyError."""
        return self.tables[table]

    def steps(self, last: int | None = None, rank: int | None = None) -> Result:
        """A row per step and rank, with its duration and parts in seconds: `python.steps`.

        :param last: only so many of the newest steps.
        :param rank: only this rank.
        """
        return self._newest("python.steps", "step, rank", last, {"rank": rank})

    def modules(self, stage: str | None = None) -> Result:
        """A row per module and stage with calls, seconds and percentiles, the most expensive first:
        `python.module_profile`."""
        return self._where("python.module_profile", "own DESC", {"stage": stage})

    def collectives(self) -> Result:
        """A row per kind and size class of collective with calls, seconds and bandwidth: `python.collective_profile`."""
        return self.sql("SELECT * FROM python.collective_profile")

    def ranks(self) -> Result:
        """A row per rank: how long it was busy, waited and led, in seconds and percent: `python.rank_balance`."""
        return self.sql("SELECT * FROM python.rank_balance ORDER BY rank")

    def memory(self, last: int | None = None, rank: int | None = None) -> Result:
        """Memory at the end of steps, a row a device, in MB: `python.memory`."""
        return self._newest("python.memory", "step, rank, device", last, {"rank": rank})

    def events(self) -> Result:
        """What happened to the run and its processes, oldest first: `probe.events`."""
        return self.sql("SELECT * FROM probe.events ORDER BY ts, id")

    def metrics(self, name: str | None = None) -> Result:
        """The numbers that the program logged, by step: `python.metrics`."""
        return self._where("python.metrics", "step, rank, name", {"name": name})

    def eval(self, code: str, rank: int | str | None = None, at: str = "auto", timeout: float = 30.0) -> Evaluation:
        """Runs Python in the training process.

        :param code: the snippet; it can use the names of the training code. Its output is returned.
        :param rank: a rank's number, or "all"; one rank by default.
        :param at: "now" beside training, "step" between two steps on all ranks at once, or "auto": as the snippet needs.
        :param timeout: seconds, after which the snippet is cancelled.

        Raises SnippetError with its traceback, Limit after the timeout, Denied where snippets are off, and Unreachable
        for a run that has ended. Ctrl-C cancels the snippet and never the run.
        """
        return snippets.evaluate(self._target, code, rank, at, timeout)

    def session(self, name: str | None = None) -> Session:
        """Snippets that share variables: `with run.session() as s: s.eval(…)`."""
        return Session(self._target, name)

    def hang(self) -> Page:
        """Why steps have stopped: which ranks wait in which collective, and which have not entered it. Only of a live run."""
        return Page.about(self._target, "hang")

    def crash(self) -> Page:
        """How processes ended: signal, exit status, exception, last step and stack."""
        return Page.about(self._target, "crash")

    def stack(self, rank: int | None = None) -> Page:
        """Where every thread of the live processes is."""
        return Page.about(self._target, "stack", *(["--rank", str(rank)] if rank is not None else []))

    def flamegraph(
        self, seconds: float = 10.0, rank: int | None = None, by_rank: bool = False, idle: bool = False
    ) -> FlameGraph:
        """Samples stacks of the live processes for `seconds` and draws them.

        :param by_rank: draws ranks beside each other.
        :param idle: includes threads other than the main one also while they wait.
        """
        return FlameGraph.of(self._target, seconds, rank, by_rank, idle)

    def profile(
        self,
        by: str = "operator",
        steps: tuple[int | None, int | None] | None = None,
        rank: int | str = "all",
    ) -> Page:
        """Which operators, kernels, modules or lines take the time, of what was captured or imported.

        :param by: what a row is: operator, kernel, module or line.
        :param steps: the first and the last step that count, both included; None is open.
        :param rank: 0, "0,3" or "all".
        """
        chosen = window(steps)
        options = ["--by", by, "--rank", str(rank), *(["--steps", chosen] if chosen else [])]
        return Page.about(self._target, "profile", *options)

    def export(
        self,
        path: str | os.PathLike[str],
        steps: tuple[int | None, int | None] | None = None,
        rank: int | str = "all",
        force: bool = False,
    ) -> None:
        """Writes a timeline for Perfetto (`x.pftrace`) or as Chrome JSON (`x.json`, `x.json.gz`).

        :param steps: the first and the last step to write, both included; None is the newest 10, or all of an imported trace.
        :param rank: 0, "0,3" or "all".
        :param force: replaces a file that exists.
        """
        chosen = window(steps)
        options = ["-o", os.fspath(path), "--rank", str(rank), *(["--steps", chosen] if chosen else [])]
        self._target.run("export", *options, *(["--force"] if force else []))

    def capture(
        self, steps: int = 5, ranks: Sequence[int] | None = None, record: Sequence[str] = ("modules",)
    ) -> Capture:
        """Records what some steps of the live run do, operator by operator, and returns when its rows are in
        python.operators, gpu.kernels and the tables beside them.

        :param steps: whole steps.
        :param ranks: which ones; None is all.
        :param record: any of shapes, stacks, memory, flops and modules.
        """
        return Capture(self._target, steps, ranks, record)

    def diagnose(self, steps: tuple[int | None, int | None] | None = None) -> Diagnosis:
        """Why steps take as long as they do.

        :param steps: the first and the last step to look at, both included; None is open.
        """
        return Diagnosis(self._target, window(steps))

    def bench(
        self, expression: str, against: str | None = None, rank: int | None = None, seconds: float = 2.0
    ) -> Benchmark:
        """Times a Python expression in the training process, between two steps, and puts training's state back.

        :param expression: the expression, with the names that the training code uses. Where its value is a module, calls of it
            are timed with inputs like those of training.
        :param against: a second one, timed in turn with the first.
        :param rank: the rank to time on; None is the lowest one.
        :param seconds: the time to spend, warm-up included; at most 60. Training waits meanwhile.
        """
        return Benchmark(self._target, [expression, *([] if against is None else [against])], rank, seconds)

    def compare(
        self,
        other: Run | str | None = None,
        steps: tuple[int | None, int | None] | None = None,
        against: tuple[int | None, int | None] | None = None,
    ) -> Page:
        """Compares this run, the baseline, with another run or another window of its own: medians in milliseconds a step, with
        95 % intervals.

        :param other: the run to compare with; this one in the window `against` if it is None.
        :param steps: steps of this run, and of the other where `against` is None.
        :param against: steps of the other.
        """
        return compare(self, other, steps, against)

    def watch(self, sql: str, values: Mapping[str, object] | None = None, /, every: float = 2.0) -> Watch:
        """Repeats a query every `every` seconds, and yields one answer after another until the loop ends. Raises
        Unreachable when the run ends. In a notebook a watch that stands alone shows itself as a live view.

        >>> for answer in run.watch("SELECT MAX(step) AS step FROM python.steps", every=0.1):
        ...     print(answer.columns)
        ...     break
        ['step']
        """
        return Watch(self.sql(sql, values), every)

    def live(self, last: int = 200, ranks: Sequence[int] | None = None, every: float = 2.0) -> Live:
        """A live view of step time, its parts and throughput by rank, which a notebook shows and which follows the run until it
        ends. Needs anywidget. :meth:`Watch.live` is one of any query.

        :param last: how many of the newest steps are drawn.
        :param ranks: which ranks, at most 16; the first 16 if it is None.
        :param every: seconds from one answer to the next.
        """
        if not 1 <= last <= MAX_LIVE_STEPS:
            raise UsageError(f"last is {last}, and has to be from 1 to {MAX_LIVE_STEPS}")
        if ranks is not None and not 1 <= len(ranks) <= figures.MAX_SERIES:
            raise UsageError(f"{len(ranks)} ranks are chosen, and from 1 to {figures.MAX_SERIES} can be drawn")
        first = f"(rank IS NULL OR rank < {figures.MAX_SERIES})"
        which = first if ranks is None else f"rank IN ({', '.join(str(int(rank)) for rank in ranks)})"
        steps = self.sql(figures.STEPS.format(ranks=which), last=last)
        return view(Watch(steps, every), figures.of_steps, f"the newest {last} steps")

    def connection(self) -> Connection:
        """A connection as PEP 249 has it: for `pandas.read_sql` and `polars.read_database`."""
        return Connection(self._target, self._limits)

    def cursor(self) -> Cursor:
        """A cursor as PEP 249 has it. Parameters are `?`, or `$name` with a dictionary."""
        return self.connection().cursor()

    def __repr__(self) -> str:
        return f"<run {self.name}>"

    def _newest(self, table: str, order: str, last: int | None, equal: Mapping[str, object]) -> Result:
        if last is None:
            return self._where(table, order, equal)
        if last < 1:
            raise UsageError(f"last is {last}, and has to be at least 1")
        newer = f"step > (SELECT MAX(step) FROM {table}) - $last"
        return self._where(table, order, equal, [newer], {"last": last})

    def _where(
        self,
        table: str,
        order: str,
        equal: Mapping[str, object],
        conditions: list[str] | None = None,
        values: dict[str, Any] | None = None,
    ) -> Result:
        given = {name: value for name, value in equal.items() if value is not None}
        conditions = [*(conditions or []), *(f"{name} = ${name}" for name in given)]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return self.sql(f"SELECT * FROM {table}{where} ORDER BY {order}", {**(values or {}), **given})


def compare(
    a: Run | str,
    b: Run | str | None = None,
    steps: tuple[int | None, int | None] | None = None,
    against: tuple[int | None, int | None] | None = None,
) -> Page:
    """Two runs, or two windows of one, as :meth:`Run.compare`: `probe.compare("gpt@1", "gpt@2").df()`."""
    words, environment = ["compare"], {}
    for each in (a, b):
        if isinstance(each, Run):
            environment.update(each._target.environment)
            words.append(each._target.endpoint or "")
        elif each is not None:
            words.append(endpoint_of(each) or "")
    for option, given in (("--steps", window(steps)), ("--against", window(against))):
        words += [option, given] if given else []
    return Page(words, environment)


def path_of(path: str | os.PathLike[str] | None) -> str | None:
    """The absolute path of a file, so that a change of the working directory does not matter."""
    return None if path is None else os.path.abspath(path)
