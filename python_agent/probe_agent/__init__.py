"""The agent of `probe` inside a training process.

Most programs do not call this module: under `probe run`, or with `PROBE=1`, the agent starts by itself. A program that
decides on its own calls :func:`start`. Nothing here imports torch, and this module itself imports next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, TypeVar

    from probe_agent.spans import Span
    from probe_agent.tables import Table

    _Item = TypeVar("_Item")

__all__ = ["configure", "log", "span", "start", "status", "step", "stop", "table", "watch"]


def start(
    run: str | None = None,
    collector: str | None = None,
    detail: str | None = None,
) -> None:
    """Starts the agent in this process, before or after training has begun. A second call changes nothing but `detail`.

    :param run: the run's name; default `PROBE_RUN`, else the script's name.
    :param collector: where to send, `unix:PATH` or `HOST:PORT`; default `PROBE_COLLECTOR`, else a collector that is
        started here and ends when no process uses it any more.
    :param detail: which steps have their modules recorded: `auto`, `every-step`, `1/N` or `off`; default `PROBE_DETAIL`,
        else `auto`.

    `PROBE=0` in the environment keeps the agent off whatever a program calls. Does nothing in workers of a DataLoader, in
    torchrun's launcher, and in forked children of a process whose agent was stopped. Raises ValueError for a `detail` or
    `collector` that is not valid. Any other error is printed on stderr, and training goes on.
    """
    from probe_agent import agent

    agent.start(run, collector, detail)


def stop() -> None:
    """Stops recording, sends what is left (for up to two seconds) and disconnects. :func:`start` starts it again."""
    from probe_agent import agent

    agent.stop()


def configure(detail: str | None = None, layers: str | None = None, overhead_budget: float | None = None) -> None:
    """Changes settings of this process while training runs, with or without a collector, from the next step on. With
    several ranks call it on all of them between the same two steps, or use `probe config`, which applies a change to all
    ranks at one step.

    :param detail: which steps have their modules recorded: `every-step`, `auto`, `1/N` or `off`.
    :param layers: which layers record: `all`, `forward,data` (these), `-backward` (all but this).
    :param overhead_budget: what `auto` may cost, as a share of step time.

    Raises ValueError that says what is allowed.
    """
    from probe_agent import agent

    agent.configure(detail, layers, overhead_budget)


def step() -> None:
    """Says that a step ends here, for loops in which no optimizer of torch steps. Without it their steps are backward passes,
    or calls of the model where nothing trains, from the first dozen on (`python.steps.kind`). Snippets that wait for the
    boundary between two steps run in it."""
    from probe_agent import agent

    agent.step()


def span(name: str) -> Span:
    """Names a part of the program: ``with probe_agent.span("eval"):``, or as a decorator of a function. Its times are in
    `python.spans`, with how deep it is in others. Does nothing where the agent is off, and never raises."""
    from probe_agent.spans import Span

    return Span(name)


def log(values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
    """Records numbers by name: ``probe_agent.log(loss=loss, lr=lr)``, or ``log({"train/loss": loss})``; a row each in
    `python.metrics`.

    Numbers, numpy's and tensors of one element on the CPU are read. A tensor on a device is not, because training would
    wait for the device: its row has no value and says why (``loss.item()`` is a number, and waits).
    Does nothing where the agent is off, and never raises.
    """
    from probe_agent import spans

    spans.log(values, named)


def table(name: str, columns: Mapping[str, type] | None = None, /, **named: type) -> Table:
    """Declares a table of the program's own: ``mine = probe_agent.table("my.metrics", loss=float, tokens=int)``. Rows come
    by ``mine.append(loss=loss, tokens=512)``, or from a pyarrow RecordBatch or Table; `SELECT * FROM my.metrics` has them,
    with the step, the time and the process of each, and they are kept and bounded as ours are.

    :param name: SCHEMA.NAME, of lower-case letters, digits and _. Schemas of ours (python, probe, process, gpu) can't be.
    :param columns: names and types: float, int, str, bool or datetime. All can be NULL.

    The same declaration again is the same table. All processes of a run declare it alike: rows of one that differs are
    not kept, which it is told on stderr, and they are counted in `probe.drops`. Raises ValueError for a name, a column or
    a declaration that can't be, TypeError for a type that can't be.
    """
    from probe_agent import tables

    return tables.Table(name, {**columns, **named} if columns else named)


def watch(iterable: Iterable[_Item]) -> Iterable[_Item]:
    """Makes what comes from an iterable count as data loading: ``for batch in probe_agent.watch(batches):``. A step's
    `data_time` then has the time that the loop waits for it, `python.data_trace` a row a batch, and snippets that wait for
    the boundary between two steps run there. A DataLoader is watched anyway and returned as it is. Where the agent is
    off, iterating costs nothing more."""
    from probe_agent import iterables

    return iterables.watch(iterable)


def status() -> dict[str, Any]:
    """How the agent is doing: `phase` (off, waiting for torch, waiting for training, connecting, connected, refused,
    ended), `enabled`, `run`, `collector`, `step`, `config`, `layers` and `problem` (the newest thing that went wrong;
    empty when nothing did)."""
    from probe_agent import agent

    return agent.status()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from probe_agent import _native

        return _native.VERSION
    raise AttributeError(f"module 'probe_agent' has no attribute '{name}'")
