"""Validation is told from training, in loops as people write them, and programs that only infer have forward passes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from recording_support import NO_PROBLEM, Net, Recorder, Row, in_process, of_step, train
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)

BATCH, BLOCKS = 4, 1
#: Intervals of a call of `Net(32, BLOCKS)`.
CALLS = 6


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    # A process that has trained: what it calls without is validation.
    model = nn.Linear(1, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(1, 1), 1)
    recorder.take()
    yield recorder
    agent.uninstall()


def loader(batches: int, batch: int = BATCH) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(batches * batch, 32)), batch_size=batch)


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Net(32, BLOCKS)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def stages(rows: dict[str, Any]) -> list[dict[str, int]]:
    """By step: how many intervals of modules each stage has."""
    counted = []
    for step in rows["python.steps"]:
        of: dict[str, int] = {}
        for row in of_step(rows["python.torch_trace"], step):
            if row["stage"] in ("forward", "validation"):
                of[row["stage"]] = of.get(row["stage"], 0) + 1
        counted.append(of)
    return counted


def counts(steps: list[Row]) -> list[tuple[int, int]]:
    return [(step["micro_steps"], step["samples"]) for step in steps]


def assert_whole(steps: list[Row]) -> None:
    parts = [f"{part}_time" for part in ("data", "forward", "backward", "optimizer", "comm", "validation", "other")]
    for step in steps:
        assert sum(step[part] for part in parts) == pytest.approx(step["duration"], rel=1e-9)
        assert all(step[part] >= 0 for part in parts)


NO_GRADIENTS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "gradients": torch.enable_grad}


@pytest.mark.parametrize("context", NO_GRADIENTS.values(), ids=NO_GRADIENTS)
def test_a_validation_loop_between_two_steps_is_no_part_of_the_next(
    recorder: Recorder, context: type[AbstractContextManager[None]]
) -> None:
    model, optimizer = model_and_optimizer()
    criterion = nn.MSELoss()
    for number, (x,) in enumerate(loader(6)):
        if number == 3:
            model.eval()
            with context():
                for (held_out,) in loader(8, 5):
                    criterion(model(held_out), held_out).item()
            model.train()
        criterion(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = recorder.take()
    steps = rows["python.steps"]
    assert counts(steps) == [(1, BATCH)] * 6
    own, validated = CALLS + 1, 8 * (CALLS + 1)
    assert stages(rows) == [{"forward": own}] * 3 + [{"forward": own, "validation": validated}] + [{"forward": own}] * 2
    assert_whole(steps)
    at = steps[3]
    assert [step["validation_time"] > 0 for step in steps] == [False, False, False, True, False, False]
    of = [row for row in of_step(rows["python.torch_trace"], at) if row["stage"] == "validation"]
    # The batches too, and what lies between, but of the training batch nothing.
    waited = sorted(row["wait"] for row in of_step(rows["python.data_trace"], at) if row["samples"] == 5)
    assert len(waited) == 8 and at["validation_time"] >= sum(row["duration"] for row in of) + sum(waited)
    asked = sum(row["wait"] for row in of_step(rows["python.data_trace"], at) if row["samples"] == BATCH)
    assert at["data_time"] == pytest.approx(asked, rel=1e-9)
    roots = [row["micro_step"] for row in of if row["module"] == "Net"]
    assert roots == list(range(8))
    assert {row["micro_step"] for row in of_step(rows["python.torch_trace"], at) if row["stage"] == "backward"} == {0}
    assert rows["probe.drops"] == {} and recorder.native.problem() == NO_PROBLEM


def test_a_loop_without_a_loader_is_validated_where_its_model_was_in_eval_mode(recorder: Recorder) -> None:
    model, optimizer = model_and_optimizer()
    x = torch.randn(BATCH, 32)
    for number in range(4):
        if number % 2 == 0:  # Also before anything was trained.
            model.eval()
            with torch.no_grad():
                for _ in range(5):
                    model(x).sum().item()
            model.train()
        for _ in range(2):
            model(x).sum().backward()
        optimizer.step()
    rows = recorder.take()
    assert counts(rows["python.steps"]) == [(2, 2 * BATCH)] * 4
    assert stages(rows) == [{"forward": 2 * CALLS, "validation": 5 * CALLS}, {"forward": 2 * CALLS}] * 2
    assert_whole(rows["python.steps"])


def test_what_is_called_without_gradients_to_train_is_training(recorder: Recorder) -> None:
    generator, of_generator = model_and_optimizer()
    discriminator, of_discriminator = model_and_optimizer()
    teacher = Net(32, BLOCKS).eval()
    for (x,) in loader(3):
        with torch.no_grad():
            made = generator(torch.randn(BATCH, 32))
            wanted = teacher(x)
        (discriminator(made).sum() + (discriminator(x) - wanted).square().sum()).backward()
        with torch.no_grad():
            generator.head(x)  # Whatever that is good for: nothing ends between it and the optimizer's step.
        of_discriminator.step()
        discriminator(generator(torch.randn(BATCH, 32))).sum().backward()
        of_generator.step()
    rows = recorder.take()
    assert [step["validation_time"] for step in rows["python.steps"]] == [0.0] * 3
    # The generator's part of the last round is no step any more.
    first, later = 4 * CALLS + 1, 6 * CALLS + 1
    assert stages(rows) == [{"forward": first}, {"forward": later}, {"forward": later}]
    # Several models were called, and each step was given one batch.
    assert counts(rows["python.steps"]) == [(5, BATCH), (7, BATCH), (7, BATCH)]


class Scaled(nn.Module):
    """What prepares a batch: it has no parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5


@pytest.mark.parametrize("has_loader", [False, True])
def test_what_prepares_a_batch_is_validation_where_the_model_is(recorder: Recorder, has_loader: bool) -> None:
    model, optimizer = model_and_optimizer()
    prepare = Scaled()

    def batches() -> Any:
        return loader(2) if has_loader else [(torch.randn(BATCH, 32),)] * 2

    for _ in range(2):
        for (x,) in batches():
            model(prepare(x)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                prepare(x)  # As a metric that is kept over the epoch.
        model.eval()
        with torch.no_grad():
            for (x,) in batches():
                model(prepare(x))
        model.train()
    model(prepare(x)).sum().backward()
    optimizer.step()
    rows = recorder.take()
    of = [
        [row["stage"] for row in of_step(rows["python.torch_trace"], step) if row["module"] == "Scaled"]
        for step in rows["python.steps"]
    ]
    training, later, validated = ["forward"], ["forward"] * 2, ["validation"] * 2
    assert [sorted(stages) for stages in of[:2]] == [training, later]
    # Without a loader nothing divides validation from what comes before and after it without parameters.
    around = later if has_loader else validated
    assert sorted(of[2]) == sorted(around + validated) and of[3] == later, of
    assert counts(rows["python.steps"]) == [(1, BATCH)] * 5
    assert_whole(rows["python.steps"])


def test_what_is_cached_without_gradients_to_be_called_with_them_is_training(recorder: Recorder) -> None:
    model, optimizer = model_and_optimizer()
    waiting: list[torch.Tensor] = []
    for (x,) in loader(8):
        with torch.no_grad():
            model(x)
        waiting.append(x)
        if len(waiting) == 2:
            for x in waiting:
                model(x).sum().backward()
            optimizer.step()
            waiting.clear()
    model.train()
    with torch.no_grad():
        for (x,) in loader(3):  # Validation by somebody who forgot eval().
            model(x)
    model(x).sum().backward()
    optimizer.step()
    rows = recorder.take()
    cached = {"forward": 4 * CALLS}
    # That the first batches are trained with is known afterwards.
    first = {"forward": 3 * CALLS, "validation": CALLS}
    assert stages(rows) == [first, cached, cached, cached, {"forward": CALLS, "validation": 3 * CALLS}]
    # Calls count, also where a batch has two.
    assert [step["samples"] for step in rows["python.steps"]] == [3 * BATCH] + [4 * BATCH] * 3 + [BATCH]


def test_metrics_within_a_forward_pass_and_models_that_train_in_eval_mode_are_training(recorder: Recorder) -> None:
    class Measured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net(32, BLOCKS)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            with torch.no_grad():
                self.inner.head(y)
            return y

    model = Measured().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(3):
        if number == 2:
            with torch.no_grad():
                model(torch.randn(BATCH, 32))
        model(torch.randn(BATCH, 32)).sum().backward()
        optimizer.step()
    rows = recorder.take()
    calls = CALLS + 2
    assert stages(rows) == [{"forward": calls}, {"forward": calls}, {"forward": calls, "validation": calls}]
    assert counts(rows["python.steps"]) == [(1, BATCH)] * 3


def test_averaged_weights_are_validated_with_batches_of_their_own_within_accumulation(recorder: Recorder) -> None:
    model, optimizer = model_and_optimizer()
    averaged = copy.deepcopy(model)
    for number, (x,) in enumerate(loader(8)):
        model(x).sum().backward()
        if number == 4:
            averaged.eval()
            with torch.no_grad():
                for (held_out,) in loader(3):
                    averaged(held_out)
        if number % 4 == 3:
            optimizer.step()
    rows = recorder.take()
    assert counts(rows["python.steps"]) == [(4, 4 * BATCH)] * 2
    assert stages(rows) == [{"forward": 4 * CALLS}, {"forward": 4 * CALLS, "validation": 3 * CALLS}]
    of = [
        row["micro_step"] for row in rows["python.torch_trace"] if row["stage"] == "backward" and row["module"] == "Net"
    ]
    assert of == [0, 1, 2, 3] * 2
    assert_whole(rows["python.steps"])


def infers(marks: bool) -> dict[str, Any]:
    """A program that only infers, with a lazy first batch and a loader."""
    import probe_agent
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model = Net(32, BLOCKS).eval()
    with torch.inference_mode():
        for (x,) in loader(4):
            model(x)
            if marks:
                probe_agent.step()
    rows = recorder.take()
    return {
        "stages": sorted({row["stage"] for row in rows["python.torch_trace"]}),
        "intervals": len(rows["python.torch_trace"]),
        "steps": [[step["micro_steps"], step["samples"], step["validation_time"]] for step in rows["python.steps"]],
        "forward": all(step["forward_time"] > 0 and step["data_time"] > 0 for step in rows["python.steps"]),
    }


@pytest.mark.parametrize("marks", [False, True], ids=["by itself", "with steps of its own"])
def test_who_only_infers_has_forward_passes(marks: bool) -> None:
    found = in_process(infers, arguments=(marks,))
    assert found["stages"] == ["forward"] and found["intervals"] == 4 * CALLS
    if marks:
        assert found["steps"] == [[1, BATCH, 0.0]] * 4 and found["forward"]


def checks_first() -> dict[str, Any]:
    """Validates two batches before it has trained any, as Lightning does."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model, optimizer = model_and_optimizer()
    model.eval()
    with torch.no_grad():
        for (x,) in loader(2):
            model(x)
    model.train()
    for (x,) in loader(2):
        model(x).sum().backward()
        optimizer.step()
    rows = recorder.take()
    return {"stages": stages(rows), "counts": counts(rows["python.steps"])}


def test_a_check_before_the_first_step_is_validation() -> None:
    found = in_process(checks_first)
    assert found["stages"] == [{"forward": CALLS, "validation": 2 * CALLS}, {"forward": CALLS}]
    assert found["counts"] == [[1, BATCH]] * 2


def tries_layers_first() -> dict[str, Any]:
    """Calls each layer when the model is made, as YOLO's does to learn its strides, and then trains."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(20)).eval()
    x = torch.zeros(BATCH, 32)
    with torch.no_grad():
        for layer in layers:
            x = layer(x)
    model, optimizer = model_and_optimizer()
    train(model, optimizer, torch.ones(BATCH, 32), 3)
    return {"kinds": [step["kind"] for step in recorder.take()["python.steps"]]}


def test_a_model_that_tries_its_layers_when_it_is_made_has_no_steps() -> None:
    assert in_process(tries_layers_first)["kinds"] == ["optimizer"] * 3


def forces(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """What gradients of the inputs say, of a model whose output depends on no parameter's gradient."""
    batch = batch.clone().requires_grad_()
    return torch.autograd.grad(model(batch).sum(), batch)[0]


def test_validation_that_asks_for_gradients_of_its_inputs_is_validation(recorder: Recorder) -> None:
    model, optimizer = model_and_optimizer()
    for number, (x,) in enumerate(loader(4)):
        if number == 2:
            model.eval()
            for (held_out,) in loader(3, 5):
                forces(model, held_out)
                forces(model, held_out)
            model.train()
        model(x).sum().backward()
        optimizer.step()
    rows = recorder.take()
    steps = rows["python.steps"]
    assert counts(steps) == [(1, BATCH)] * 4
    assert stages(rows) == [{"forward": CALLS}] * 2 + [{"forward": CALLS, "validation": 6 * CALLS}, {"forward": CALLS}]
    assert_whole(steps)
    assert [step["validation_time"] > 0 for step in steps] == [False, False, True, False]
    own = [row for row in of_step(rows["python.torch_trace"], steps[2]) if row["stage"] == "backward"]
    of_model = [row for row in own if row["module"] == "Net"]
    # The passes over the batches held out keep their stage, and the number of the call that they differentiate.
    assert [row["micro_step"] for row in of_model] == [0, 1, 2, 3, 4, 5, 0]
    assert steps[2]["backward_time"] == pytest.approx(steps[1]["backward_time"], rel=20)
    assert steps[2]["backward_time"] < sum(row["duration"] for row in own)
    assert rows["probe.drops"] == {} and recorder.native.problem() == NO_PROBLEM


def test_an_attack_on_the_batch_that_is_trained_with_is_training(recorder: Recorder) -> None:
    model, optimizer = model_and_optimizer()
    for (x,) in loader(3):
        model.eval()
        attacked = x + forces(model, x).sign()
        attacked = attacked + forces(model, attacked).sign()
        model.train()
        model(attacked).sum().backward()
        optimizer.step()
    rows = recorder.take()
    assert stages(rows) == [{"forward": 3 * CALLS}] * 3
    assert counts(rows["python.steps"]) == [(3, 3 * BATCH)] * 3
    assert {step["validation_time"] for step in rows["python.steps"]} == {0}
    assert_whole(rows["python.steps"])


class Forces(nn.Module):
    """A model whose own forward pass has a derivative in it."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = Net(32, BLOCKS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return forces(self.energy, x)


def infers_forces() -> dict[str, Any]:
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model = Forces().eval()
    for (x,) in loader(40):
        with torch.no_grad():
            model(x)
    rows = recorder.take()
    return {"stages": sorted({row["stage"] for row in rows["python.torch_trace"]})}


def test_who_only_infers_with_derivatives_in_the_model_has_forward_passes() -> None:
    found = in_process(infers_forces)
    assert found["stages"] == ["backward", "forward"]
