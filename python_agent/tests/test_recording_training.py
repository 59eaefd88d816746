"""Recording of plain training: names, times, steps. The good mechanisms, or the tests fail."""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import pytest
import torch
from recording_support import (
    HOOKS_OF_GROUPS,
    Block,
    Net,
    PassClock,
    Recorder,
    accounted,
    by_module,
    median_by_module,
    median_ratio,
    of_step,
    train,
)
from torch import nn

torch.set_num_threads(1)


def test_the_good_mechanisms_run(recorder: Recorder) -> None:
    assert recorder.native.layers() == {
        "forward": "tp_call",
        "backward": "record_function",
        "optimizer": "record_function",
        "data": "next-patch",
        "collectives": "pg_hooks" if HOOKS_OF_GROUPS else "patched-functions",
        "memory": "statistics",
        "process": "proc",
        "spans": "record_function",
        "metrics": "log",
        "environment": "torch",
        "copies": "record_function",
        "sync_points": "record_function",
        "device_time": "cuda_events",
        "exceptions": "hooks",
        "checkpoints": "wrappers",
        "pauses": "callbacks",
    }
    assert recorder.native.problem() == ""


@pytest.mark.timing
def test_steps_agree_with_a_hand_timed_loop(recorder: Recorder) -> None:
    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, item: int) -> torch.Tensor:
            # Some milliseconds: what we do before and after it takes 0.06 ms in cold caches.
            x = torch.full((512, 128), float(item))
            for _ in range(200):
                x = x.sin()
            return x

    model, clock = Net(128, 4), time.perf_counter
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = iter(torch.utils.data.DataLoader(Slow(), batch_size=None))
    for _ in range(5):
        train(model, optimizer, next(loader), 1)
    backward = PassClock(*model.layers[0].parameters())
    recorder.take()
    # What is taken of it is what this step is measured by, so it begins with a clock of its own.
    recorder.native.mark_step()
    last = clock()
    hand: dict[str, list[float]] = {
        "data_time": [], "forward_time": [], "backward_time": [], "optimizer_time": [], "duration": []
    }  # fmt: skip
    for _ in range(20):
        t0 = clock()
        x = next(loader)
        t1 = clock()
        output = model(x)
        t2 = clock()
        loss = backward.watch(output.square().mean())
        t3 = clock()
        loss.backward()
        t4 = clock()
        optimizer.step()
        t5 = clock()
        optimizer.zero_grad()
        assert t3 < backward.begin < backward.end < t4
        for times, took in zip(hand.values(), (t1 - t0, t2 - t1, backward.end - backward.begin, t5 - t4, t5 - last)):
            times.append(took)
        last = t5
        # Freed here, because assigning the next ones would free these between two clocks.
        del x, output, loss
    rows = recorder.take()
    steps = rows["python.steps"][1:]  # The first one ended with the mark.
    trace = rows["python.torch_trace"]
    assert len(steps) == 20
    for column, times in hand.items():
        assert median_ratio((step[column] for step in steps), times) == pytest.approx(1.0, abs=0.05), column
    parts = ["data_time", "forward_time", "backward_time", "optimizer_time", "comm_time", "other_time"]
    for step in steps:
        assert sum(step[part] for part in parts) == pytest.approx(step["duration"], rel=1e-6)
        assert (step["micro_steps"], step["samples"], step["detail"], step["clock"]) == (1, 512, True, "host")
    assert [step["step"] for step in steps] == list(range(steps[0]["step"], steps[0]["step"] + 20))
    for column, stage in (("forward_time", "forward"), ("backward_time", "backward"), ("optimizer_time", "step")):
        assert accounted(steps, trace, column, stage) == pytest.approx(1.0, abs=0.03), stage
    # Spread over the modules, not dumped somewhere.
    backward = median_by_module(steps, trace, "backward")
    whole = sum(backward.values())
    assert backward[None] / whole < 0.1 and backward["Net"] / whole < 0.05
    assert min(backward[f"layers.{i}.{part}"] for i in range(4) for part in ("up", "down")) / whole > 0.03


class Slow(torch.autograd.Function):
    """The identity, slowly, both ways."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor, rounds: int) -> torch.Tensor:
        ctx.rounds = rounds  # type: ignore[attr-defined]
        _work(rounds)
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        _work(ctx.rounds)  # type: ignore[attr-defined]
        return gradient, None


def _work(rounds: int) -> None:
    x = torch.ones(128, 128)
    for _ in range(rounds):
        x = (x @ x).clamp(max=1)


def test_a_planted_slow_layer_is_found_first(recorder: Recorder) -> None:
    class Planted(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(Slow.apply(x, 60))

    model = Net(32, 4)
    model.layers[2] = Planted(32)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(8, 32), 7)
    rows = recorder.take()
    for stage in ("forward", "backward"):
        times = median_by_module(rows["python.steps"], rows["python.torch_trace"], stage)
        assert max(times, key=times.__getitem__) == "layers.2", stage


def test_steps_with_detail_are_multiples_of_the_stride_and_others_have_their_rows(recorder: Recorder) -> None:
    model = Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(256, 32)
    first = recorder.native.step()
    train(model, optimizer, x, 3)
    assert recorder.native.set_policy(first + 5, 4, "all", False)
    assert not recorder.native.set_policy(first + 3, 4, "all", False), "that step has begun"
    recorder.native.set_detail(True)
    assert recorder.native.set_policy(first + 6, 4, "all", False)
    train(model, optimizer, x, 40)
    rows = recorder.take()
    recorder.native.set_detail(True)
    steps = rows["python.steps"]
    assert [step["step"] for step in steps] == list(range(first, first + 43))
    detailed = [step["step"] for step in steps if step["detail"]]
    assert detailed == [step for step in range(first, first + 43) if step < first + 6 or step % 4 == 0]
    assert sorted({row["step"] for row in rows["python.torch_trace"]}) == detailed
    for row in rows["python.torch_trace"]:
        assert row["module"] is not None or row["stage"] == "backward"
    for step in steps:
        parts = sum(step[f"{part}_time"] for part in ("data", "forward", "backward", "optimizer", "comm", "other"))
        assert abs(parts - step["duration"]) < 1e-6
    overhead = rows["probe.overhead"][-1]
    assert overhead["detail_stride"] == 4 and overhead["events"] > overhead["events_without_detail"] > 0
    assert overhead["measured_pairs"] >= 8 and overhead["measured_low"] <= overhead["measured_high"]


@pytest.mark.timing
def test_a_backward_pass_takes_as_long_in_steps_without_detail(recorder: Recorder) -> None:
    model = Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(256, 32)
    recorder.native.set_detail(True)
    assert recorder.native.set_policy(recorder.native.step() + 1, 4, "all", False)
    train(model, optimizer, x, 200)
    steps = recorder.take()["python.steps"][10:]
    recorder.native.set_detail(True)

    def share(of: list[dict[str, Any]]) -> float:
        # The quickest quarter: on a busy machine the others wait for a processor in some part.
        quickest = sorted(of, key=lambda step: step["duration"])[: len(of) // 4]
        return statistics.median(step["backward_time"] / step["duration"] for step in quickest)

    # Without nodes a backward pass is the call of it, which is a little longer.
    thin, whole = ([step for step in steps if step["detail"] == detail] for detail in (False, True))
    ratio = share(thin) / share(whole)
    assert 0.6 < ratio < 1.6


def test_layers_that_are_off_have_no_rows_and_no_times(recorder: Recorder) -> None:
    model = Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32)
    train(model, optimizer, x, 2)
    for layers, stages in (
        ("-forward", {"backward", "step"}),
        ("-backward", {"forward", "step"}),
        ("-optimizer", {"forward", "backward"}),
        ("data", set()),
        ("all", {"forward", "backward", "step"}),
    ):
        first = recorder.native.step()
        recorder.native.set_policy(first + 1, 1, layers, False)
        recorder.take()
        train(model, optimizer, x, 4)
        rows = recorder.take()
        later = [row for row in rows["python.torch_trace"] if row["step"] > first]
        assert {row["stage"] for row in later} == stages, layers
        assert [step["step"] for step in rows["python.steps"]] == list(range(first, first + 4))
        step = rows["python.steps"][-1]
        # Which steps there are does not depend on the layers, and nor does the optimizer's time.
        assert (step["forward_time"] > 0) == ("forward" in stages)
        assert (step["backward_time"] > 0) == ("backward" in stages)
        assert step["optimizer_time"] > 0
        shown = recorder.native.layers()
        assert (shown["forward"] == "off") == ("forward" not in stages)


def test_detail_switches_at_step_boundaries(recorder: Recorder) -> None:
    model = Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32)
    for on in (True, False, True):
        # In the middle of a step, between forward and backward: that step stays what it was.
        loss = model(x).sum()
        recorder.native.set_detail(on)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        train(model, optimizer, x, 2)
    rows = recorder.take()
    details = [step["detail"] for step in rows["python.steps"]]
    assert details == [True] * 3 + [True, False, False] + [False, True, True]
    calls = {step["step"]: 0 for step in rows["python.steps"]}
    for row in rows["python.torch_trace"]:
        calls[row["step"]] += row["stage"] == "forward"
    for step, detail in zip(rows["python.steps"], details):
        assert calls[step["step"]] == (14 if detail else 0)
        assert step["forward_time"] > 0 and step["backward_time"] > 0 and step["optimizer_time"] > 0


def test_gradient_accumulation_counts_micro_steps(recorder: Recorder) -> None:
    model = Net()
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    for _ in range(2):
        for size in (2, 3, 4):
            loss_of(model(torch.randn(size, 32)), torch.zeros(size, 32)).backward()
        optimizer.step()
    rows = recorder.take()
    assert [(step["micro_steps"], step["samples"]) for step in rows["python.steps"]] == [(3, 9), (3, 9)]
    forward = [
        row for row in rows["python.torch_trace"] if row["stage"] == "forward" and row["module"] in ("Net", "MSELoss")
    ]
    first = forward[0]["step"]
    seen = [
        (row["step"] - first, row["micro_step"], row["module"]) for row in sorted(forward, key=lambda row: row["ts"])
    ]
    assert seen == [(step, micro, module) for step in (0, 1) for micro in (0, 1, 2) for module in ("Net", "MSELoss")]
    backward = {
        (row["step"] - first, row["micro_step"]) for row in rows["python.torch_trace"] if row["stage"] == "backward"
    }
    assert backward == {(step, micro) for step in (0, 1) for micro in (0, 1, 2)}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.timing
def test_checkpointing_is_recompute_and_counted_once(recorder: Recorder, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return self.head(x)

    model = Checkpointed(64, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(256, 64, requires_grad=True)
    train(model, optimizer, x, 2)
    recorder.take()
    train(model, optimizer, x, 6)
    rows = recorder.take()
    trace = rows["python.torch_trace"]
    recomputed = {row["module"] for row in trace if row["stage"] == "recompute"}
    assert {f"layers.{i}.{part}" for i in range(3) for part in ("norm", "up", "down")} <= recomputed
    assert "head" not in recomputed
    steps = rows["python.steps"]
    assert accounted(steps, trace, "backward_time", "backward", "recompute") == pytest.approx(1.0, abs=0.03)
    assert accounted(steps, trace, "forward_time", "forward") == pytest.approx(1.0, abs=0.03)
    work = median_by_module(steps, trace, "backward")
    assert all(work[f"layers.{i}.up"] > 0 for i in range(3))
    whole = sum(work.values())
    assert work.get(None, 0.0) / whole < 0.25


def test_an_exception_in_forward_passes_and_is_recorded(recorder: Recorder) -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model = nn.Sequential(nn.Linear(4, 8), Breaks())
    for _ in range(3):
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(torch.randn(2, 4))
    trace = recorder.take()["python.torch_trace"]
    assert [row["module"] for row in trace if row["stage"] == "forward"] == ["0", "1.inner", "1", "Sequential"] * 3
    assert {row["depth"] for row in trace if row["module"] == "Sequential"} == {0}


def test_the_first_optimizer_to_finish_counts_the_steps(recorder: Recorder) -> None:
    generator, discriminator = nn.Linear(4, 4), nn.Linear(4, 1)
    # Of one class: only the object tells them apart.
    first = torch.optim.Adam(discriminator.parameters())
    second = torch.optim.Adam(generator.parameters())
    for _ in range(4):
        for optimizer in (first, second):
            discriminator(generator(torch.randn(2, 4))).sum().backward()
            optimizer.step()
    rows = recorder.take()
    assert len(rows["python.steps"]) == 4
    steps = [row for row in rows["python.torch_trace"] if row["stage"] == "step"]
    assert len(steps) == 8
    assert all(step["optimizer_time"] > 0 for step in rows["python.steps"])


def test_another_optimizer_takes_over_when_the_first_is_gone(recorder: Recorder) -> None:
    model, x = Net(), torch.randn(2, 32)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), x, 2)
    train(model, torch.optim.Adam(model.parameters()), x, 3)
    assert len(recorder.take()["python.steps"]) == 5


def test_inference_alone_records_forward(recorder: Recorder) -> None:
    model = Net().eval()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(2, 32))
    rows = recorder.take()
    assert len([row for row in rows["python.torch_trace"] if row["module"] == "Net"]) == 3
    assert rows["python.steps"] == []


@pytest.mark.timing
def test_autograd_grad_inside_a_forward_is_backward_work(recorder: Recorder) -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            (gradient,) = torch.autograd.grad(self.inner(x).square().sum(), x, create_graph=True)
            return gradient.square().sum()

    model = Penalty()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(7):
        model(torch.randn(64, 16)).backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = recorder.take()
    work = by_module(rows["python.torch_trace"], "backward")
    assert work["inner"] > 0
    steps, trace = rows["python.steps"], rows["python.torch_trace"]
    for column, stage in (("forward_time", "forward"), ("backward_time", "backward")):
        assert accounted(steps, trace, column, stage) == pytest.approx(1.0, abs=0.03), stage


def test_lbfgs_counts_nothing_twice(recorder: Recorder) -> None:
    model, x = Net(16, 1), torch.randn(8, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    rows = recorder.take()
    assert len(rows["python.steps"]) == 3
    parts = ["data_time", "forward_time", "backward_time", "optimizer_time", "comm_time", "other_time"]
    for step in rows["python.steps"]:
        assert step["forward_time"] > 0 and step["backward_time"] > 0
        assert sum(step[part] for part in parts) == pytest.approx(step["duration"], rel=1e-6)


def test_an_optimizer_stepping_inside_backward(recorder: Recorder) -> None:
    model = Net(16, 2)
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda p, o=optimizer: (o.step(), o.zero_grad()) and None)
    for _ in range(4):
        model(torch.randn(4, 16)).square().mean().backward()
    rows = recorder.take()
    assert len(rows["python.steps"]) == 4
    parts = ["data_time", "forward_time", "backward_time", "optimizer_time", "comm_time", "other_time"]
    for step in rows["python.steps"]:
        assert sum(step[part] for part in parts) == pytest.approx(step["duration"], rel=1e-6)


def test_data_time_includes_the_end_of_an_epoch_and_errors(recorder: Recorder) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(4.0).reshape(4, 1), batch_size=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x in loader:
            train(model, optimizer, x, 1)
    steps = recorder.take()["python.steps"]
    assert len(steps) == 4 and all(step["data_time"] > 0 for step in steps)


class Towers(nn.Module):
    """Two modules, of which the heavy one runs forward on another thread."""

    def __init__(self, elsewhere: Callable[[Callable[[], torch.Tensor]], torch.Tensor]) -> None:
        super().__init__()
        self.light, self.heavy = nn.Linear(8, 8), nn.Linear(400, 400)
        self.elsewhere = elsewhere

    def forward(self, few: torch.Tensor, many: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            few = self.light(few)
        return few.sum() + self.elsewhere(lambda: self.heavy(many).sum())


def on_a_thread_of_its_own(work: Callable[[], torch.Tensor]) -> torch.Tensor:
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("ends", [True, False])
def test_backward_belongs_to_the_module_that_was_called_on_another_thread(recorder: Recorder, ends: bool) -> None:
    with ThreadPoolExecutor(1) as pool:
        model = Towers(on_a_thread_of_its_own if ends else lambda work: pool.submit(work).result())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        taken: list[dict[str, Any]] = []
        for _ in range(21):
            loss = model(torch.ones(2, 8), torch.ones(500, 400))
            taken.append(recorder.take())  # A thread that is over is forgotten here.
            loss.backward()
            optimizer.step()
        taken.append(recorder.take())
    steps = [row for rows in taken for row in rows["python.steps"]][1:]
    trace = [row for rows in taken for row in rows["python.torch_trace"]]
    assert len(steps) == 20
    times = [by_module(of_step(trace, step), "backward") for step in steps]
    assert all("heavy" in modules for modules in times), times
    # A busy machine only adds time, so a module's shortest time is the nearest to what its work takes.
    shortest = {module: min(modules.get(module, 0.0) for modules in times) for module in times[0]}
    assert shortest["heavy"] > sum(shortest.values()) / 2, times
