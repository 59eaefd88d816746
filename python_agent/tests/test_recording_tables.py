"""Tables that a program declares itself."""

from __future__ import annotations

import datetime
import os

import numpy as np
import probe_agent
import pyarrow as pa
import pytest
import torch
from recording_support import Net, Recorder, in_process, train

torch.set_num_threads(1)


def test_rows_have_the_step_they_were_appended_in(recorder: Recorder) -> None:
    mine = probe_agent.table("my.losses", loss=float, tokens=int, split=str, best=bool)
    model = Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32)
    first = recorder.native.step()
    losses = []
    for _ in range(3):
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        mine.append(loss=loss, tokens=np.int64(7), split="train", best=np.bool_(True))
    mine.append(loss=1)
    rows = recorder.take()["my.losses"]
    # Between an optimizer's step and the next forward it is the step just finished.
    assert [row["step"] for row in rows] == [first, first + 1, first + 2, first + 2]
    assert [row["loss"] for row in rows] == [*losses, 1.0]
    assert [(row["tokens"], row["split"], row["best"]) for row in rows] == [(7, "train", True)] * 3 + [(None,) * 3]
    assert [row["ts"] for row in rows] == sorted(row["ts"] for row in rows)
    # The same declaration again, in another order, is the same table.
    again = probe_agent.table("my.losses", {"best": bool, "split": str, "tokens": int, "loss": float})
    again.append(tokens=1, best=False)
    assert [(row["tokens"], row["best"]) for row in recorder.take()["my.losses"]] == [(1, False)]


def test_batches_of_pyarrow_are_rows(recorder: Recorder) -> None:
    train(Net(), torch.optim.SGD(Net().parameters(), lr=0.1), torch.randn(4, 32), 1)
    mine = probe_agent.table("my.batches", value=float, count=int, name=str, at=datetime.datetime)
    at = datetime.datetime(2026, 1, 1, 12, 0, 0, 250, tzinfo=datetime.timezone.utc)
    batch = pa.record_batch({
        "value": pa.array([1.5, None, 3.0], pa.float32()),
        "count": pa.array([1, 2, None], pa.uint8()),
        "name": pa.array(["a", None, "ü"], pa.large_string()),
        "at": pa.array([at, None, at], pa.timestamp("us", tz="UTC")),
    })  # fmt: skip
    mine.append(batch)
    mine.append(pa.Table.from_batches([batch, batch]).select(["count"]))
    mine.append(at=at)
    rows = recorder.take()["my.batches"]
    assert len(rows) == 10
    wanted = round(at.timestamp() * 1e6) * 1000
    assert [(row["value"], row["count"], row["name"], row["at"]) for row in rows[:3]] == [
        (1.5, 1, "a", wanted), (None, 2, None, None), (3.0, None, "ü", wanted)
    ]  # fmt: skip
    assert [row["count"] for row in rows[3:9]] == [1, 2, None] * 2 and rows[9]["at"] == wanted
    with pytest.raises(TypeError, match=r"column count of my.batches is int, not double"):
        mine.append(pa.record_batch({"count": pa.array([1.5])}))
    with pytest.raises(TypeError, match=r"has no column other"):
        mine.append(pa.record_batch({"other": pa.array([1])}))
    with pytest.raises(TypeError, match=r"not list"):
        mine.append([1, 2])
    with pytest.raises(TypeError, match=r"not both"):
        mine.append(batch, value=1.0)
    assert recorder.take()["my.batches"] == []


@pytest.mark.parametrize(
    "name", ["python.mine", "probe.mine", "process.metrics", "gpu.x", "losses", "My.losses", "my.a.b", ""]
)
def test_names_that_cannot_be_are_said(name: str) -> None:
    with pytest.raises(ValueError, match=r"can't be .*hint: "):
        probe_agent.table(name, loss=float)


def test_declarations_and_values_that_cannot_be_are_said(recorder: Recorder) -> None:
    for columns, error, words in [
        ({}, ValueError, "no columns"),
        ({"rank": int}, ValueError, "every table has a column rank already"),
        ({"Loss": float}, ValueError, "can't be called 'Loss'"),
        ({"loss": list}, TypeError, "hint: one of float, int, str, bool, datetime"),
    ]:
        with pytest.raises(error, match=words):
            probe_agent.table("my.wrong", columns)
    mine = probe_agent.table("my.typed", loss=float, tokens=int, split=str, at=datetime.datetime)
    with pytest.raises(ValueError, match=r"my.typed is declared already, and differs: it has no column lr"):
        probe_agent.table("my.typed", loss=float, lr=float)
    with pytest.raises(ValueError, match=r"its column loss is float, not int"):
        probe_agent.table("my.typed", loss=int, tokens=int, split=str, at=datetime.datetime)
    for values, words in [
        ({"lr": 1.0}, "my.typed has no column lr; it has loss, tokens, split, at"),
        ({"loss": "high"}, "column loss of my.typed is float, not str"),
        ({"tokens": 1.5}, "column tokens of my.typed is int, not float"),
        ({"tokens": True}, "is int, not bool"),
        ({"split": 1}, "is str, not int"),
        ({"at": 1.0}, "is datetime with a time zone, not float"),
        ({"at": datetime.datetime(2026, 1, 1)}, "not a datetime without a time zone"),
        ({"loss": torch.ones(2)}, "column loss of my.typed is float, not Tensor"),
    ]:
        with pytest.raises(TypeError, match=words):
            mine.append(**values)
    assert recorder.take()["my.typed"] == []


def test_what_has_no_room_is_counted_and_nothing_raises(recorder: Recorder) -> None:
    mine = probe_agent.table("my.bounded", text=str, number=int)
    mine.append(number=2**63)
    mine.append(text="x" * 5000)
    for _ in range(3000):
        mine.append(text="y" * 4000)
    taken = recorder.take()
    kept, drops = len(taken["my.bounded"]), taken["probe.drops"]
    assert 900 < kept < 1100
    assert drops == {
        ("my.bounded", "number too large"): 1,
        ("my.bounded", "text too long"): 1,
        ("my.bounded", "too many at once"): 3000 - kept,
    }
    mine.append(text="there is room again")
    assert len(recorder.take()["my.bounded"]) == 1


def off_and_in_a_child() -> list[int]:
    """Exit status of a child that appends and declares, where the agent is on."""
    import probe_agent.torch as agent

    before = probe_agent.table("my.before", loss=float)
    before.append(loss=1.0)
    agent.install()
    mine = probe_agent.table("my.forked", loss=float)
    child = os.fork()
    if child == 0:
        mine.append(loss=2.0)
        probe_agent.table("my.child", loss=float).append(loss=3.0)
        os._exit(7)
    rows = Recorder().take()
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(rows["my.forked"]), len(rows["my.before"])]


def test_where_the_agent_is_off_nothing_is_kept_and_nothing_fails() -> None:
    assert in_process(off_and_in_a_child) == [7, 0, 0]
