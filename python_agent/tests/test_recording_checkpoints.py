"""A checkpoint is a part of its step and a row. What is written, raised and pickled is as without the agent."""

from __future__ import annotations

import copy
import importlib
import io
import os
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_support import NO_PROBLEM, Net, Recorder, in_process, train
from torch import nn

torch.set_num_threads(1)

TORCH, DISTRIBUTED = "torch.save", "torch.distributed.checkpoint.save"


def step(model: nn.Module) -> None:
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.ones(4, 32), 1)


class Broken(io.RawIOBase):
    """A disk that is full."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(28, "No space left on device")


def test_checkpoints_in_a_loop_are_a_part_of_their_step_and_rows(recorder: Recorder, tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    path = tmp_path / "step 2.pt"
    for number in range(4):
        train(model, optimizer, torch.ones(4, 32), 1)
        if number == 1:
            torch.save(model.state_dict(), path)
            torch.save({"optimizer": optimizer.state_dict()}, f=str(tmp_path / "optimizer.pt"))
        if number == 2:
            buffer = io.BytesIO(b"12345678")
            buffer.seek(8)
            torch.save(model, buffer)
            with open(tmp_path / "opened.pt", "wb") as file:
                torch.save([1], file)
    rows = recorder.take()
    saved, steps = rows["python.checkpoints"], rows["python.steps"]
    assert [
        (row["kind"], row["path"], row["bytes"], row["error"], row["step"] - steps[0]["step"]) for row in saved
    ] == [
        (TORCH, "step 2.pt", path.stat().st_size, None, 2),
        (TORCH, "optimizer.pt", (tmp_path / "optimizer.pt").stat().st_size, None, 2),
        (TORCH, None, len(buffer.getvalue()) - 8, None, 3),
        (TORCH, "opened.pt", (tmp_path / "opened.pt").stat().st_size, None, 3),
    ]
    assert [at["checkpoint_time"] > 0 for at in steps] == [False, False, True, True]
    parts = ["data", "forward", "backward", "optimizer", "comm", "validation", "checkpoint", "other"]
    for at in steps:
        of = sum(row["duration"] for row in saved if row["step"] == at["step"])
        # The clock of the rows is read around that of the records.
        assert at["checkpoint_time"] <= of <= at["checkpoint_time"] + at["other_time"]
        assert sum(at[f"{part}_time"] for part in parts) == pytest.approx(at["duration"], rel=1e-9)
    assert torch.load(path)["head.bias"].equal(model.state_dict()["head.bias"]) is False  # Trained on since.
    assert rows["probe.drops"] == {} and recorder.native.problem() == NO_PROBLEM


def test_a_checkpoint_within_validation_is_no_part_of_it(recorder: Recorder, tmp_path: Path) -> None:
    model = Net()
    step(model)
    model.eval()
    with torch.no_grad():
        model(torch.ones(4, 32))
        torch.save(model.state_dict(), tmp_path / "best.pt")
        model(torch.ones(4, 32))
    model.train()
    step(model)
    _, at = recorder.take()["python.steps"]
    parts = ["data", "forward", "backward", "optimizer", "comm", "validation", "checkpoint", "other"]
    assert at["checkpoint_time"] > 0 < at["validation_time"]
    assert sum(at[f"{part}_time"] for part in parts) == pytest.approx(at["duration"], rel=1e-9)


def test_a_model_that_is_pickled_is_no_checkpoint_for_each_of_its_tensors(recorder: Recorder) -> None:
    model = Net()
    pickled = pickle.loads(pickle.dumps(model))
    assert all(map(torch.equal, pickled.parameters(), model.parameters()))
    buffer = io.BytesIO()
    torch.save(model, buffer, _use_new_zipfile_serialization=False)
    step(model)
    assert [row["bytes"] for row in recorder.take()["python.checkpoints"]] == [len(buffer.getvalue())]


def test_a_save_that_fails_raises_what_it_would_and_says_so(recorder: Recorder, tmp_path: Path) -> None:
    model = Net()
    nowhere = tmp_path / "no such directory" / "model.pt"
    raised = []
    for arguments in (
        (model, nowhere),
        (model, Broken()),
        (lambda: None, tmp_path / "no pickle.pt"),
        (model,),
        (model, 5),
    ):
        with pytest.raises(Exception) as ours:
            torch.save(*arguments)
        with pytest.raises(Exception) as theirs:
            torch.save.__wrapped__(*arguments)  # type: ignore[attr-defined]
        assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))
        raised.append(type(ours.value).__name__)
        # The traceback leads to torch.
        assert "_native" not in str(ours.traceback[-1].path)
    step(model)
    rows = recorder.take()
    assert [row["error"] for row in rows["python.checkpoints"]] == raised
    assert [row["path"] for row in rows["python.checkpoints"]] == ["model.pt", None, "no pickle.pt", None, None]
    assert {row["bytes"] for row in rows["python.checkpoints"]} == {None}
    # A file's odd methods are not called, so there is no problem here.
    assert recorder.native.problem() == NO_PROBLEM


def test_save_is_torchs_own_to_whoever_looks(recorder: Recorder, tmp_path: Path) -> None:
    import inspect

    from torch import serialization

    assert torch.save is serialization.save and inspect.isfunction(torch.save)
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save and copy.deepcopy(torch.save) is torch.save
    assert (torch.save.__module__, torch.save.__qualname__) == ("torch.serialization", "save")
    assert list(inspect.signature(torch.save).parameters)[:2] == ["obj", "f"]
    # A process without the agent has torch's own function under that name.
    pickled = pickle.dumps({"save": torch.save, "model": Net().state_dict()})
    code = (
        "import pickle, sys, torch; found = pickle.load(sys.stdin.buffer)['save'];"
        "print(found is torch.save, hasattr(found, '__wrapped__'), 'probe_agent' in sys.modules)"
    )
    plain = {**os.environ, "PROBE": "0"}
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, env=plain, check=True)
    assert done.stdout.split() == [b"True", b"False", b"False"]
    # The same bytes.
    model, ours, theirs = Net(), io.BytesIO(), io.BytesIO()
    torch.save(model.state_dict(), ours)
    torch.save.__wrapped__(model.state_dict(), theirs)  # type: ignore[attr-defined]
    assert ours.getvalue() == theirs.getvalue()


def test_nothing_is_left_when_recording_ends(tmp_path: Path) -> None:
    import probe_agent.torch as agent

    original, finders = torch.save, list(sys.meta_path)
    agent.install()
    ours = torch.save
    assert ours is not original
    agent.uninstall()
    assert torch.save is original and torch.serialization.save is original and sys.meta_path == finders
    ours([1], tmp_path / "later.pt")  # Code that kept the wrapper can still call it.
    assert torch.load(tmp_path / "later.pt") == [1]
    # Another wrapper around ours stays.
    agent.install()
    ours = torch.save
    torch.save = lambda *args, **kwargs: ours(*args, **kwargs)  # type: ignore[assignment]
    theirs = torch.save
    agent.uninstall()
    assert torch.save is theirs
    torch.save = original


def distributed(directory: str, early: bool) -> dict[str, Any]:
    """A distributed checkpoint by one process, with ``torch.distributed.checkpoint`` imported before the agent or after it."""
    warnings.simplefilter("ignore")
    finders = len(sys.meta_path)
    if early:
        importlib.import_module("torch.distributed.checkpoint")
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint import save, state_dict_saver

    model = Net()
    step(model)
    save(model.state_dict(), checkpoint_id=f"{directory}/step 1/")
    checkpoint.save(
        model.state_dict(), storage_writer=checkpoint.FileSystemWriter(f"{directory}/step 2", thread_count=2)
    )
    step(model)
    checkpoint.async_save(model.state_dict(), checkpoint_id=f"{directory}/step 3").result()
    step(model)
    rows = recorder.take()
    same = save is checkpoint.save is state_dict_saver.save
    agent.uninstall()
    return {
        "rows": [[row[name] for name in ("kind", "path", "bytes", "error")] for row in rows["python.checkpoints"]],
        "threads": len({row["thread"] for row in rows["python.checkpoints"]}),
        "time": [at["checkpoint_time"] > 0 for at in rows["python.steps"]],
        "same": same,
        "left": [hasattr(checkpoint.save, "__wrapped__") and checkpoint.save is save, len(sys.meta_path) - finders],
        "problem": recorder.native.problem(),
    }


@pytest.mark.parametrize("early", [True, False], ids=["imported before", "imported after"])
def test_distributed_checkpoints_are_one_row_each(early: bool, tmp_path: Path) -> None:
    found = in_process(distributed, arguments=(str(tmp_path), early))
    sizes = {name: sum(file.stat().st_size for file in (tmp_path / name).iterdir()) for name in os.listdir(tmp_path)}
    assert sizes.keys() == {"step 1", "step 2", "step 3"} and min(sizes.values()) > 0
    assert found["rows"] == [[DISTRIBUTED, name, sizes[name], None] for name in ("step 1", "step 2", "step 3")]
    # A save by another thread is no part of the loop.
    assert found["threads"] == 2 and found["time"] == [False, True, False]
    assert found["same"] and found["left"] == [False, 0] and found["problem"] == NO_PROBLEM


def test_saves_of_two_threads_are_two_rows(recorder: Recorder, tmp_path: Path) -> None:
    step(Net())
    thread = threading.Thread(target=torch.save, args=([1], tmp_path / "elsewhere.pt"))
    thread.start()
    thread.join()
    torch.save([1], tmp_path / "here.pt")
    step(Net())
    rows = recorder.take()
    elsewhere, here = rows["python.checkpoints"]
    assert (elsewhere["path"], here["path"]) == ("elsewhere.pt", "here.pt") and elsewhere["thread"] != here["thread"]
    assert rows["python.steps"][1]["checkpoint_time"] <= here["duration"]


SAFETENSORS = """
import torch

def save_file(tensors, filename, metadata=None):
    with open(filename, "wb") as file:
        file.write(b"x" * 100)

def save_model(model, filename):
    save_file(model.state_dict(), filename)
"""


def saved_by_safetensors(directory: str, early: bool) -> dict[str, Any]:
    """Files saved by a stand-in for the package, imported before the agent or after it, and what is left without the agent."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        del sys.modules[name]
    sys.path.insert(0, directory)
    os.chdir(directory)
    if early:
        importlib.import_module("safetensors.torch")
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    from safetensors.torch import save_file, save_model  # type: ignore[import-not-found]

    step(Net())
    save_file({}, "a.safetensors")
    save_model(Net(), filename="b.safetensors")
    step(Net())
    rows = recorder.take()
    agent.uninstall()
    import safetensors.torch  # type: ignore[import-not-found]

    return {
        "saved": [(row["kind"], row["path"], row["bytes"]) for row in rows["python.checkpoints"]],
        "time": rows["python.steps"][1]["checkpoint_time"],
        "left": [hasattr(safetensors.torch.save_file, "__wrapped__"), recorder.native.problem() == NO_PROBLEM],
    }


@pytest.mark.parametrize("early", [True, False], ids=["imported before", "imported after"])
def test_files_of_safetensors_are_checkpoints(tmp_path: Path, early: bool) -> None:
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").touch()
    (tmp_path / "safetensors" / "torch.py").write_text(SAFETENSORS)
    answer = in_process(saved_by_safetensors, arguments=(str(tmp_path), early))
    kind = "safetensors.torch.save_file"
    assert answer["saved"] == [[kind, "a.safetensors", 100], [kind, "b.safetensors", 100]]
    assert answer["time"] > 0 and answer["left"] == [False, True]
