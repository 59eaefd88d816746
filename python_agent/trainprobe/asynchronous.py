"""The interface for programs that await: every query runs in a thread, and cancelling the task ends it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from trainprobe.command import Command, noted
from trainprobe.connecting import connect
from trainprobe.pages import Benchmark, Diagnosis, FlameGraph, Page
from trainprobe.result import Result
from trainprobe.run import Run
from trainprobe.snippets import Evaluation
from trainprobe.watching import Answer

if TYPE_CHECKING:
    import os

    import pandas
    import polars
    import pyarrow

_T = TypeVar("_T")


async def away(work: Callable[[], _T]) -> _T:
    """The result of `work`, done in a thread. A cancelled task interrupts the commands that it has begun: a query is
    cancelled in the collector, a snippet in the training process."""
    commands: list[Command] = []
    with noted(commands):
        doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        for command in commands:
            await asyncio.to_thread(command.interrupt)
        doing.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


class AsyncResult:
    """A query whose answer is awaited; see :class:`trainprobe.Result`."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self.sql = result.sql

    async def df(self) -> pandas.DataFrame:
        """The answer as a DataFrame of pandas."""
        return await away(self._result.df)

    async def pl(self) -> polars.DataFrame:
        """The answer as a DataFrame of Polars."""
        return await away(self._result.pl)

    async def to_arrow_table(self) -> pyarrow.Table:
        """The answer as a table of pyarrow."""
        return await away(self._result.to_arrow_table)

    async def to_dicts(self) -> list[dict[str, Any]]:
        """All rows as dictionaries of plain Python values."""
        return await away(self._result.to_dicts)

    async def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples of plain Python values."""
        return await away(self._result.fetchall)

    async def explain(self) -> str:
        """How the query is run."""
        return await away(self._result.explain)


class AsyncRun:
    """A run whose answers are awaited; see :class:`trainprobe.Run`.

    :ivar name: its name.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.name = run.name

    def sql(self, sql: str, values: Mapping[str, object] | None = None, /, **parameters: object) -> AsyncResult:
        """A query, as :meth:`trainprobe.Run.sql`; its answer is awaited: `await run.sql(…).df()`."""
        return AsyncResult(self._run.sql(sql, values, **parameters))

    async def eval(
        self, code: str, rank: int | str | None = None, at: str = "auto", timeout: float = 30.0
    ) -> Evaluation:
        """Runs Python in the training process, as :meth:`trainprobe.Run.eval`."""
        return await away(functools.partial(self._run.eval, code, rank, at, timeout))

    async def hang(self) -> Page:
        """Why steps have stopped."""
        return await away(self._run.hang)

    async def crash(self) -> Page:
        """How processes ended."""
        return await away(self._run.crash)

    async def stack(self, rank: int | None = None) -> Page:
        """Where every thread is."""
        return await away(functools.partial(self._run.stack, rank))

    async def flamegraph(self, seconds: float = 10.0, rank: int | None = None) -> FlameGraph:
        """Samples stacks for `seconds`."""
        return await away(functools.partial(self._run.flamegraph, seconds, rank))

    async def profile(
        self,
        by: str = "operator",
        steps: tuple[int | None, int | None] | None = None,
        rank: int | str = "all",
    ) -> Page:
        """Which operators, kernels, modules or lines take the time."""
        return await away(functools.partial(self._run.profile, by, steps, rank))

    async def export(
        self,
        path: str | os.PathLike[str],
        steps: tuple[int | None, int | None] | None = None,
        rank: int | str = "all",
        force: bool = False,
    ) -> None:
        """Writes a timeline for other viewers."""
        await away(functools.partial(self._run.export, path, steps, rank, force))

    async def diagnose(self, steps: tuple[int | None, int | None] | None = None) -> Diagnosis:
        """Why steps take as long as they do."""
        return await away(functools.partial(self._run.diagnose, steps))

    async def bench(
        self, expression: str, against: str | None = None, rank: int | None = None, seconds: float = 2.0
    ) -> Benchmark:
        """Times an expression in the training process, or two in turn."""
        return await away(functools.partial(self._run.bench, expression, against, rank, seconds))

    async def watch(
        self, sql: str, values: Mapping[str, object] | None = None, /, every: float = 2.0
    ) -> AsyncIterator[Answer]:
        """Repeats a query every `every` seconds: `async for answer in run.watch(…)`."""
        with self._run.watch(sql, values, every=every) as answers:
            while True:
                # StopIteration can't leave a coroutine.
                answer = await away(lambda: next(answers, None))
                if answer is None:
                    return
                yield answer

    def __repr__(self) -> str:
        return f"<async run {self.name}>"


async def aconnect(endpoint: str | int | None = None, **more: Any) -> AsyncRun:
    """Finds a run, as :func:`trainprobe.connect` with the same parameters: `run = await probe.aconnect()`."""
    return AsyncRun(await away(lambda: connect(endpoint, **more)))
