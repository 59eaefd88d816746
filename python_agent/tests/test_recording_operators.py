"""Copies of tensors, and the points where the host reads a tensor's values."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_support import Net, Recorder, in_process, train
from torch import nn

torch.set_num_threads(1)

HERE = Path(__file__).name


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    recorder.native.watch_operators(True)
    yield recorder
    recorder.native.watch_operators(False)
    agent.uninstall()


def line_here(offset: int = 0) -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno + offset


def at(row: dict[str, Any]) -> tuple[str, int]:
    return Path(row["file"]).name, row["line"]


def test_copies_say_what_moved_and_which_line_asked_for_it(recorder: Recorder) -> None:
    a = torch.ones(32, 16)
    b = torch.zeros(32, 16)
    recorder.take()
    first = line_here(1)
    b.copy_(a)
    a.clone()
    a.t().contiguous()
    a.to(torch.float64)
    b.copy_(a.t().reshape(32, 16), non_blocking=True)
    a.contiguous()  # It is contiguous: nothing is copied.
    a.mul(b)
    rows = recorder.take()["python.copies"]
    told = [(row["operation"], row["bytes"], row["contiguous"], row["converted"], row["blocking"]) for row in rows]
    assert told == [
        ("copy_", 2048, True, False, True),
        ("clone", 2048, True, False, True),
        ("contiguous", 2048, False, False, True),
        ("to", 4096, True, True, True),
        ("clone", 2048, False, False, True),
        ("copy_", 2048, True, False, False),
    ]
    assert [at(row) for row in rows] == [(HERE, first + n) for n in (0, 1, 2, 3, 4, 4)]
    assert all(row["direction"] == "host to host" and row["source"] == row["destination"] == "cpu" for row in rows)
    assert all(0 < row["duration"] < 1 and row["stride"] == 1 for row in rows)


def test_bytes_and_gaps_are_those_of_torch_itself(recorder: Recorder) -> None:
    """Torch before 2.8 has no function that native code could ask for either."""
    names = ("uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128 bool bfloat16 "
             "uint16 uint32 uint64 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz").split()  # fmt: skip
    x = torch.zeros(4, 3, 2, 2)
    tensors = [torch.zeros(3, 2, dtype=getattr(torch, name)) for name in names]
    tensors += [x.transpose(0, dimension) for dimension in range(4)]
    tensors += [x[:, :1], x[:1], x[1:, :, :1], x[:0].transpose(1, 2), x[0, 0, 0, 0], x[0, 0, 0, :1].expand(5), x[::2]]
    tensors += [x.contiguous(memory_format=torch.channels_last), torch.zeros(1, 3).t(), torch.zeros(3, 1).t()]
    recorder.take()
    for tensor in tensors:
        torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)
    told = [
        (row["bytes"], row["contiguous"]) for row in recorder.take()["python.copies"] if row["operation"] == "copy_"
    ]
    assert told == [(tensor.nbytes, tensor.is_contiguous()) for tensor in tensors]


def test_reads_are_counted_by_line(recorder: Recorder) -> None:
    x = torch.arange(6.0)
    recorder.take()
    first = line_here(1)
    for n in range(5):
        x[n].item()
    if x[1]:
        float(x[2])
    torch.nonzero(x)
    str(x)
    recorder.native.mark_step()
    rows = recorder.take()["python.sync_points"]
    counts = Counter()
    for row in rows:
        assert Path(row["file"]).name == HERE and row["device"] == "cpu" and row["waited"] > 0
        counts[row["line"] - first, row["operation"]] += row["count"]
    # What print does is up to torch, but each number is read.
    printed = sum(count for (line, _), count in counts.items() if line == 5)
    assert printed >= 6
    assert {key: count for key, count in counts.items() if key[0] != 5} == {
        (1, "item"): 5, (2, "is_nonzero"): 1, (3, "item"): 1, (4, "nonzero"): 1
    }  # fmt: skip
    # One line of code is one row a step.
    assert len([row for row in rows if row["line"] == first + 1]) == 1


def test_code_of_libraries_is_not_the_programs(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Flatten())
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.ones(2, 2, 4).transpose(0, 1)
    recorder.take()
    loss = model(x.reshape(2, 8)).sum()
    line = line_here(1)
    loss.backward()
    optimizer.step()
    torch.utils.data.default_collate([torch.ones(3)] * 2)
    rows = recorder.take()["python.copies"]
    assert rows and {Path(row["file"]).name for row in rows} == {HERE}
    assert any(row["line"] <= line for row in rows)


def test_operators_are_counted_as_torch_profiler_counts_them(recorder: Recorder) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), torch.ones(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        for row in x:
            row.add(1)
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    recorder.take()
    recorder.native.watch_operators(True)
    step()
    rows = recorder.take()["python.operator_counts"]
    assert {row["part"] for row in rows} == {"other", "forward", "backward", "optimizer"}
    assert {(row["step"], row["stride"]) for row in rows} == {(rows[0]["step"], 1)}
    counted = Counter[str]()
    for row in rows:
        counted[row["operator"]] += row["count"]
        assert 0 <= row["outermost"] <= row["count"] and 0 <= row["duration"] < 1, row
    inner = [row for row in rows if row["operator"] == "aten::addmm"]
    assert [(row["part"], row["count"], row["outermost"]) for row in inner] == [("forward", 1, 0)]
    added = [row for row in rows if row["operator"] == "aten::add"]
    assert [(row["part"], row["count"], row["outermost"]) for row in added] == [("other", 4, 4)]

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        step()
    expected = {of.key: of.count for of in profiled.key_averages() if of.key.startswith("aten::")}
    assert {name: count for name, count in counted.items() if name.startswith("aten::")} == expected


class Reads(nn.Module):
    """Reads its input once a call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * x.sum().item()


def steps_watched() -> dict[str, Any]:
    """Rows of 150 steps, with the layers as they are, and then of 150 more with both off."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model = Reads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(2, 4)
    losses = train(model, optimizer, x, 150)
    first = recorder.take()
    recorder.native.set_policy(recorder.native.step() + 1, 1, "-copies,-sync_points", False)
    train(model, optimizer, x, 150)
    second = recorder.take()
    layers = recorder.native.layers()
    return {
        "reads": first["python.sync_points"], "copies": len(first["python.copies"]), "losses": losses,
        "steps": [row["step"] for row in first["python.steps"]],
        "after": len(second["python.sync_points"]) + len(second["python.copies"]),
        "layers": [layers["copies"], layers["sync_points"]], "drops": len(first["probe.drops"]),
    }  # fmt: skip


def test_one_of_many_steps_is_watched_and_the_layers_can_be_switched_off() -> None:
    found = in_process(steps_watched)
    assert found["steps"] == list(range(1, 151))
    # Once in forward, and once in the loop after the optimizer's step before: that is in the time of this step.
    reads = [(row["step"], row["count"], row["stride"]) for row in found["reads"]]
    # One of 16 at first. Watching so short steps may be too expensive to go on like that.
    strides = {step: stride for step, _, stride in reads}
    first = {10: 16, 26: 16, 42: 16, 58: 16}
    assert strides in (first | {74: 64, 138: 64}, first | dict.fromkeys(range(74, 150, 16), 16))
    assert sorted(reads) == [(step, 1, stride) for step, stride in sorted(strides.items()) for _ in range(2)]
    assert found["drops"] == 0 and found["after"] == 0 and found["layers"] == ["off", "off"]


def test_layers_that_are_not_wanted_are_off() -> None:
    import probe_agent.torch as agent

    agent.install()
    layers = agent._native.layers()
    agent.uninstall()
    assert (layers["copies"], layers["sync_points"]) == ("record_function", "record_function")
    found = in_process(steps_watched, "-copies")
    assert found["copies"] == 0 and len(found["reads"]) >= 12


def test_a_model_that_is_drawn_alike_learns_alike() -> None:
    torch.manual_seed(3)
    model = Net()
    x = torch.randn(4, 32)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    alone = train(model, torch.optim.SGD(model.parameters(), lr=0.1), x, 5)
    model.load_state_dict(state)
    import probe_agent.torch as agent

    agent.install()
    try:
        agent._native.watch_operators(True)
        watched = train(model, torch.optim.SGD(model.parameters(), lr=0.1), x, 5)
    finally:
        agent._native.watch_operators(False)
        agent.uninstall()
    assert watched == alone


def test_a_tensor_that_is_logged_is_read_on_the_line_that_logs_it(recorder: Recorder) -> None:
    """torch lets go of the GIL while it reads, here within a function of ours."""
    import probe_agent

    # Numbers of common types in host memory are read without torch.
    tensor = torch.full((2,), 0.5, dtype=torch.float16, requires_grad=True).sum()
    recorder.take()
    probe_agent.log(loss=tensor.float())
    first = line_here(1)
    probe_agent.log(loss=tensor)
    tensor.item()
    recorder.native.mark_step()
    rows = recorder.take()
    assert [row["value"] for row in rows["python.metrics"]] == [1.0, 1.0]
    assert [at(row) for row in rows["python.sync_points"]] == [(HERE, first), (HERE, first + 1)]


def synchronizing() -> dict[str, Any]:
    """Rows of waiting for devices. There is none: what torch calls to wait is replaced beforehand, except for an event
    that was never recorded, for which torch itself waits without a device."""
    import types

    import probe_agent.torch as agent

    waited: list[Any] = []

    def wait(*args: Any) -> str:
        waited.append(args)
        if args and args[0] == 7:
            raise RuntimeError("no such device")
        return "the answer"

    cuda: Any = torch.cuda
    cuda._lazy_init = lambda: None
    cuda._exchange_device = cuda._maybe_exchange_device = lambda index: index
    core: Any = torch._C
    core._cuda_synchronize = core._accelerator_synchronizeDevice = wait
    core._cuda_getDevice = lambda: 1
    cuda.streams.Stream.synchronize = wait
    event, before = cuda.Event(), cuda.streams.Event.synchronize
    agent.install()
    recorder = Recorder()
    core._cuda_synchronize()
    recorder.native.watch_operators(True)
    first = line_here(1)
    for _ in range(3):
        torch.cuda.synchronize()
    accelerator: Any = getattr(torch, "accelerator", None)  # From torch 2.6 on.
    (accelerator.synchronize if accelerator else core._accelerator_synchronizeDevice)(0)
    stream = types.SimpleNamespace(device=torch.device("cuda", 2))
    answer = torch.cuda.Stream.synchronize(stream)  # type: ignore[arg-type]
    event.synchronize()
    try:
        core._accelerator_synchronizeDevice(7)
    except RuntimeError as error:
        answer += f", {error}"
    recorder.native.mark_step()
    rows = recorder.take()["python.sync_points"]
    recorder.native.watch_operators(False)
    torch.cuda.synchronize()
    recorder.native.mark_step()
    after = recorder.take()["python.sync_points"]
    patched = core._cuda_synchronize is not wait
    agent.uninstall()
    original = [core._cuda_synchronize, core._accelerator_synchronizeDevice, cuda.streams.Stream.synchronize]
    return {
        "rows": [[row["line"] - first, row["operation"], row["device"], row["count"]] for row in rows],
        "files": sorted({Path(row["file"]).name for row in rows}), "waits": len(waited), "after": after,
        "answer": answer, "patched": patched, "positive": all(row["waited"] > 0 for row in rows),
        "restored": all(function is wait for function in original) and cuda.streams.Event.synchronize is before,
    }  # fmt: skip


def test_waiting_for_devices_is_seen() -> None:
    found = in_process(synchronizing)
    assert found["rows"] == [
        [1, "synchronize", "cuda:1", 3],
        [3, "synchronize", "cuda:0", 1],
        [5, "Stream.synchronize", "cuda:2", 1],
        [6, "Event.synchronize", "cuda", 1],
        [8, "synchronize", "cuda:7", 1],
    ]
    assert found["files"] == [HERE] and found["positive"]
    assert found["waits"] == 8 and found["answer"] == "the answer, no such device"
    assert found["after"] == [] and found["patched"] and found["restored"]
    without = in_process(synchronizing, "-sync_points")
    assert without["rows"] == [] and without["waits"] == 8 and not without["patched"]


def compiled_with_waits() -> list[list[int] | str]:
    """Frames and operators that torch.compile finds in functions that wait for devices, without the agent and with it;
    or what it raises: on 2.5 and 2.8 Dynamo calls torch.cuda.synchronize itself, which wants a driver; on 2.11 it does not
    take it."""
    import probe_agent.torch as agent
    import torch._dynamo
    from torch._dynamo.testing import CompileCounter

    event = torch.cuda.Event()

    def all_of_them(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.cuda.synchronize()
        return y * 2

    def one(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        event.synchronize()
        return y * 2

    found: list[list[int] | str] = []
    for installed in (False, True):
        if installed:
            agent.install()
            agent._native.watch_operators(True)
        for function in (all_of_them, one):
            torch._dynamo.reset()
            counter = CompileCounter()
            compiled: Any = torch.compile(function, backend=counter, fullgraph=True)
            try:
                compiled(torch.ones(3))
            except (torch._dynamo.exc.TorchRuntimeError, torch._dynamo.exc.Unsupported) as error:
                found.append(str(error).splitlines()[0].split(" at 0x")[0])
            else:
                found.append([int(counter.frame_count), int(counter.op_count)])
    agent.uninstall()
    return found


def test_torch_compile_takes_waits_as_before() -> None:
    found = in_process(compiled_with_waits)
    assert found[:2] == found[2:]
    taken = [frames for frames, _ in (counts for counts in found if not isinstance(counts, str))]
    assert len(taken) >= 2 and set(taken) == {1}
