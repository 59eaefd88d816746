"""Live views of a run: what they draw, and how they follow a run from a real kernel."""

from __future__ import annotations

import os
import pathlib
import queue
import signal
import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trainprobe as probe
from jupyter_client.manager import KernelManager
from reader import commands, environment_of, there
from trainprobe import figures
from trainprobe.rows import Column

from conftest import PATIENCE, PROBE, Home, wait_for

MANY = "SELECT value, 2 * value AS double FROM generate_series(1, 3)"


class Kernel:
    """A kernel, and what a browser would say to it and hear."""

    def __init__(self, home: Home) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=home.environment(PROBE_BIN=PROBE, IPYTHONDIR=str(home.directory / "ipython")))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        self.heard: list[dict[str, Any]] = []
        self.run("import os, pathlib, time, threading, trainprobe as probe, trainprobe.live")
        self.pid = int(self.run("os.getpid()"))

    def run(self, code: str) -> str:
        """The result of a cell."""
        return self.reply(self.client.execute(code))

    def reply(self, asked: str) -> str:
        def done() -> dict[str, Any] | None:
            return next((m for m in self.hear() if m["parent_header"].get("msg_id") == asked and idle(m)), None)

        wait_for("the cell", done)
        mine = [message for message in self.heard if message["parent_header"].get("msg_id") == asked]
        errors = [message["content"]["traceback"] for message in mine if message["msg_type"] == "error"]
        assert not errors, "\n".join(errors[0])
        return "".join(m["content"]["data"]["text/plain"] for m in mine if m["msg_type"] == "execute_result")

    def hear(self) -> list[dict[str, Any]]:
        """All that the kernel has said."""
        while True:
            try:
                self.heard.append(self.client.get_iopub_msg(timeout=0.01))
            except queue.Empty:
                return self.heard

    def threads(self) -> list[str]:
        """The threads of views."""
        return list(eval(self.run("[thread.name for thread in threading.enumerate() if 'live view' in thread.name]")))


def idle(message: dict[str, Any]) -> bool:
    return message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"


class View:
    """A live view in a kernel, as its browser has it."""

    def __init__(self, kernel: Kernel, code: str) -> None:
        self.kernel = kernel
        kernel.run(f"view = {code}")
        opened = [m["content"] for m in kernel.hear() if m["msg_type"] == "comm_open"]
        self.id = opened[-1]["comm_id"]
        self.state = opened[-1]["data"]["state"]

    def say(self, **content: Any) -> None:
        data = {"method": "custom", "content": content}
        client = self.kernel.client
        client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": self.id, "data": data}))

    def said(self, kind: str) -> list[dict[str, Any]]:
        """The messages of a kind that it received, with numbers instead of buffers."""
        mine = [m for m in self.kernel.hear() if m["msg_type"] == "comm_msg" and m["content"]["comm_id"] == self.id]
        contents = [(m["content"]["data"].get("content", {}), m["buffers"]) for m in mine]
        return [
            {**c, "numbers": [list(array("d", bytes(b))) for b in buffers]}
            for c, buffers in contents
            if c.get("kind") == kind
        ]

    def answers(self) -> int:
        """The number of the newest answer."""
        return max((answer["n"] for answer in self.said("answer")), default=0)

    def wait(self, state: str, says: str = "") -> None:
        def there() -> bool:
            last = self.said("status")[-1:]
            return bool(last) and last[0]["state"] == state and says in last[0]["said"]

        wait_for(f"'{state}: {says}'", there)

    def see_until(self, condition: Callable[[], object]) -> None:
        """A browser that sees every answer, until something holds."""

        def once() -> object:
            self.say(kind="seen", n=self.answers())
            return condition()

        wait_for("a view that is looked at", once)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Kernel]]:
    home = Home(tmp_path_factory.mktemp("live"))
    kernel = None
    try:
        home.serve("served")
        kernel = Kernel(home)
        yield home, kernel
    finally:
        if kernel:
            kernel.client.stop_channels()
            kernel.manager.shutdown_kernel(now=True)
        home.close()


def nothing_is_asked(kernel: Kernel) -> bool:
    return kernel.threads() == [] and commands(kernel.pid) == []


@pytest.mark.xdist_group("live")
def test_a_view_follows_and_the_kernel_stays_free(watched: tuple[Home, Kernel], tmp_path: pathlib.Path) -> None:
    _, kernel = watched
    # How far a view gets ahead of its browser is the next test's subject.
    kernel.run("trainprobe.live.MAX_AHEAD = 10_000")
    kernel.run("run = probe.connect('served')")
    view = View(kernel, f"run.watch({MANY!r}, every=0.05).live()")
    assert view.state["name"] == "served@1" and "export default" in view.state["_esm"]
    assert nothing_is_asked(kernel), "no browser shows it yet"
    view.say(kind="hello")
    wait_for("three answers", lambda: view.answers() >= 3)
    answer = view.said("answer")[-1]
    (chart,) = answer["charts"]
    (line,) = chart["series"]
    assert (chart["kind"], chart["title"], chart["x"], line["name"]) == ("line", "double", "value", "double")
    assert [answer["numbers"][line[axis]] for axis in ("x", "y")] == [[1, 2, 3], [2, 4, 6]]
    assert answer["table"]["rows"] == [["1", "2"], ["2", "4"], ["3", "6"]]
    assert len(commands(kernel.pid)) == 1 and len(kernel.threads()) == 1
    # A cell that runs holds nothing up.
    go = tmp_path / "go"
    busy = kernel.client.execute(f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)")
    before = view.answers()
    wait_for("answers beside a cell", lambda: view.answers() >= before + 3)
    go.touch()
    kernel.reply(busy)
    # The interrupt button is for cells.
    waiting = "try:\n    print('waiting', flush=True)\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    pass"
    busy = kernel.client.execute(waiting)
    wait_for("the cell", lambda: any(m["content"].get("text") == "waiting\n" for m in kernel.hear()))
    kernel.manager.interrupt_kernel()
    kernel.reply(busy)
    before = view.answers()
    view.see_until(lambda: view.answers() > before + 1)
    kernel.run("view.close()")
    wait_for("its end", lambda: nothing_is_asked(kernel))


@pytest.mark.xdist_group("live")
def test_a_view_asks_only_while_it_is_looked_at(watched: tuple[Home, Kernel]) -> None:
    _, kernel = watched
    kernel.run("trainprobe.live.MAX_AHEAD = 3")
    view = View(kernel, f"probe.connect('served').watch({MANY!r}, every=0.02).live()")
    view.say(kind="hello")
    wait_for("as many answers as are not seen", lambda: view.answers() == 3)
    wait_for("no more questions", lambda: nothing_is_asked(kernel))
    assert view.answers() == 3
    view.see_until(lambda: view.answers() > 6)
    view.say(kind="pause")
    view.wait("paused")
    wait_for("no questions while it is paused", lambda: nothing_is_asked(kernel))
    view.say(kind="resume")
    before = view.answers()
    view.see_until(lambda: view.answers() > before + 3)
    # The cell's output is cleared: another browser that shows it would say so.
    view.say(kind="gone")
    wait_for("the question who looks at it", lambda: view.said("who"))
    wait_for("no questions when it is gone", lambda: nothing_is_asked(kernel))
    before = view.answers()
    view.say(kind="hello")
    view.see_until(lambda: view.answers() > before)
    kernel.run("view.close()\ntrainprobe.live.MAX_AHEAD = 30")
    # A wrong query shows its error, and its view can be tried again.
    view = View(kernel, "probe.connect('served').watch('SELECT stp FROM python.steps').live()")
    view.say(kind="hello")
    view.wait("failed", "did you mean step?")
    wait_for("the question's end", lambda: nothing_is_asked(kernel))
    kernel.run("view.close()")


@pytest.mark.xdist_group("live")
@pytest.mark.parametrize(
    ("name", "how", "says"),
    [("ends", signal.SIGTERM, "has ended"), ("dies", signal.SIGKILL, "was lost: its collector was killed")],
)
def test_a_view_says_that_its_run_has_ended(
    name: str, how: signal.Signals, says: str, watched: tuple[Home, Kernel]
) -> None:
    home, kernel = watched
    process, _ = home.serve(name)
    sql = "SELECT run, 1 AS one FROM probe.store LIMIT 1"
    view = View(kernel, f"probe.connect({name!r}).watch({sql!r}, every=0.02).live()")
    view.say(kind="hello")
    view.see_until(lambda: view.answers() > 1)
    process.send_signal(how)
    process.wait()
    view.see_until(lambda: view.said("status")[-1]["state"] == "ended")
    assert view.said("status")[-1]["said"] == f"{name}@1 {says}; these are its last values"
    assert view.said("answer")[-1]["table"]["rows"] == [[f"{name}@1", "1"]]
    wait_for("its end", lambda: nothing_is_asked(kernel))
    # A page that is loaded again has its last values, and nothing is asked for them.
    before = len(view.said("answer"))
    view.say(kind="hello")
    wait_for("the last values again", lambda: len(view.said("answer")) == before + 1)
    # A run that has ended already gives one answer.
    view = View(kernel, f"probe.connect({name!r}).live()")
    view.say(kind="hello")
    view.wait("ended", says)
    assert view.answers() == 1 and view.said("answer")[0]["charts"][0]["title"] == "Step time"


def test_a_killed_kernel_leaves_nothing_behind(home: Home) -> None:
    home.serve("served")
    kernel = Kernel(home)
    try:
        view = View(kernel, "probe.connect('served').watch('SELECT 1 AS one', every=3600).live()")
        view.say(kind="hello")
        wait_for("an answer", lambda: view.answers() == 1)
        (command,) = commands(kernel.pid)
        os.kill(kernel.pid, signal.SIGKILL)
        wait_for("the command's end", lambda: not there(command))
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)


def columns(**kinds: str) -> list[Column]:
    return [Column({"name": name, "type": kind, "unit": "ns"}) for name, kind in kinds.items()]


def drawn(figure: figures.Figure) -> list[tuple[Any, ...]]:
    """Charts with their numbers instead of buffers."""
    numbers = [list(array("d", buffer)) for buffer in figure.buffers]
    return [
        (
            chart["kind"],
            chart["title"],
            {s["name"]: (numbers[s["x"]] if "x" in s else chart["labels"], numbers[s["y"]]) for s in chart["series"]},
        )
        for chart in figure.content["charts"]
    ]


def test_answers_are_drawn_by_rank() -> None:
    steps = columns(step="int", rank="int", duration="float", loss="float")
    rows = [(1, 0, 0.5, 3.0), (0, 0, 0.25, 4.0), (0, 1, 0.75, None), (1, 1, 0.5, 2.0)]
    lines = drawn(figures.of_answer(steps, rows))
    assert lines[0] == ("line", "duration", {"rank 0": ([0, 1], [0.25, 0.5]), "rank 1": ([0, 1], [0.75, 0.5])})
    assert lines[1][1] == "loss" and str(lines[1][2]["rank 1"]) == "([0.0, 1.0], [nan, 2.0])"
    ((_, title, both),) = drawn(figures.of_answer(steps, rows, y=["duration", "loss"]))
    assert title == "" and list(both) == ["rank 0, duration", "rank 0, loss", "rank 1, duration", "rank 1, loss"]
    # A row a rank is bars; ranks before the step are lines all the same.
    bars = drawn(figures.of_answer(columns(rank="int", busy="float"), [(0, 1.0), (1, 2.0)]))
    assert bars == [("bar", "busy", {"busy": (["rank 0", "rank 1"], [1, 2])})]
    swapped = figures.of_answer(columns(rank="int", step="int", y="float"), [(0, 5, 1.0), (0, 6, 2.0), (1, 5, 3.0)])
    assert drawn(swapped) == [("line", "y", {"rank 0": ([5, 6], [1, 2]), "rank 1": ([5], [3])})]
    text = figures.of_answer(columns(name="text"), [("a",), ("b",)])
    assert text.content["charts"] == [] and text.content["table"]["rows"] == [["a"], ["b"]]
    many = figures.of_answer(columns(x="int", y="int"), [(n, n) for n in range(figures.MAX_ROWS + 1)])
    assert f"the first {figures.MAX_ROWS} rows are drawn; there are more" in many.content["notes"]
    with pytest.raises(probe.UsageError, match="no column 'z'"):
        figures.of_answer(steps, rows, y="z")


def test_steps_are_drawn_by_rank_with_what_was_not_measured_left_out() -> None:
    kinds = dict.fromkeys(("step", "rank", "pid", "world_size"), "int") | dict.fromkeys(
        ("duration", "rate", *figures._PARTS), "float"
    )
    parts = (0.0, 0.25, 0.5, 0.0, 0.125, None, None, 0.125)
    rows = [(step, rank, 7 + rank, 32, 1.0 + rank, 16.0, *parts) for step in (4, 5) for rank in (1, 0)]
    figure = figures.of_steps(columns(**kinds), rows)
    time, rate, stacked = drawn(figure)
    assert (
        time == ("line", "Step time", {"rank 0": ([4, 5], [1, 1]), "rank 1": ([4, 5], [2, 2])})
        and rate[1] == "Throughput"
    )
    assert stacked[:2] == ("stack", "Parts of a step, mean of 2")
    assert list(stacked[2]) == ["data", "forward", "backward", "optimizer", "comm", "other"]
    assert stacked[2]["comm"] == (["rank 0", "rank 1"], [0.125, 0.125])
    assert figure.content["table"]["rows"][1][:4] == ["rank 1", "5", "2", "16"]
    assert figure.content["notes"] == ["2 of 32 ranks: run.live(ranks=[…]) chooses others"]
    alone = figures.of_steps(columns(**kinds), [(0, None, 7, None, 1.0, None, *parts)])
    assert [chart["title"] for chart in alone.content["charts"]] == ["Step time", "Parts of a step"]
    assert (
        alone.content["charts"][0]["series"][0]["name"] == "pid 7"
        and "throughput is not measured" in alone.content["notes"][0]
    )
    assert drawn(figures.of_steps(columns(**kinds), []))[0] == ("line", "Step time", {})


def test_without_anywidget_a_watch_is_text(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    home.serve("served")
    with environment_of(home):
        run = probe.connect("served")
        watch = run.watch("SELECT 1")
        assert "application/vnd.jupyter.widget-view+json" in str(watch._repr_mimebundle_())
        monkeypatch.setitem(sys.modules, "anywidget", None)
        with pytest.raises(probe.Missing, match="pip install anywidget"):
            run.live()
        assert "pip install anywidget" in watch._repr_mimebundle_()["text/plain"]
        for wrong in ({"last": 0}, {"last": 501}, {"ranks": []}, {"ranks": range(17)}):
            with pytest.raises(probe.UsageError):
                run.live(**wrong)
