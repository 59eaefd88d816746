"""Each layer's safer mechanisms, forced by ``PROBE_LAYERS``, and each layer switched off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recording_support import Net, accounted, by_module, in_process, of_step, train


def trained(steps: int = 8) -> dict[str, Any]:
    """Rows of a small training, with whatever layers the environment asks for."""
    torch.set_num_threads(1)
    import probe_agent.torch

    probe_agent.torch.install()
    from probe_agent import _native

    torch.manual_seed(0)
    model = Net(64, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.randn(64 * steps, 64), batch_size=64)
    for x in loader:
        train(model, optimizer, x, 1)
    rows = _native.take_rows()
    return {
        "layers": _native.layers(),
        "problem": _native.problem(),
        "steps": rows["python.steps"],
        "trace": rows["python.torch_trace"],
    }


def recorded(found: dict[str, Any], stage: str) -> float:
    """The share of a stage's time that its rows account for."""
    return accounted(found["steps"], found["trace"], f"{stage}_time", stage)


@pytest.mark.timing
def test_python_hooks_instead_of_the_slot() -> None:
    found = in_process(trained, "forward=python-hooks")
    assert found["layers"]["forward"] == "python-hooks" and found["layers"]["backward"] == "record_function"
    forward = [row for row in found["trace"] if row["stage"] == "forward"]
    assert len(forward) == 8 * 14 and forward[-1]["module"] == "Net" and forward[-1]["input_shape"] == "[64, 64]"
    assert recorded(found, "forward") == pytest.approx(1.0, abs=0.03)
    assert recorded(found, "backward") == pytest.approx(1.0, abs=0.1)
    assert by_module(found["trace"], "backward")["layers.1.up"] > 0


@pytest.mark.timing
def test_gradient_hooks_instead_of_nodes() -> None:
    found = in_process(trained, "backward=grad-hooks")
    assert found["layers"]["backward"] == "grad-hooks" and found["layers"]["forward"] == "tp_call"
    assert len(found["steps"]) == 8
    # Hooks are put in when the model is first called, so the first backward already has them.
    for step in found["steps"]:
        assert step["backward_time"] > 0
        work = by_module(of_step(found["trace"], step), "backward")
        assert {f"layers.{i}.{part}" for i in range(3) for part in ("norm", "up", "down")} | {"head"} <= set(work)
    assert recorded(found, "backward") == pytest.approx(1.0, abs=0.1)


def test_step_hooks_instead_of_the_range() -> None:
    found = in_process(trained, "optimizer=step-hooks")
    assert found["layers"]["optimizer"] == "step-hooks"
    assert len(found["steps"]) == 8 and all(step["optimizer_time"] > 0 for step in found["steps"])
    assert [row["module"] for row in found["trace"] if row["stage"] == "step"] == ["SGD"] * 8


class Failing(torch.optim.SGD):
    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise RuntimeError("out of memory")
        return super().step(closure)


def after_a_step_that_raises() -> list[Any]:
    """Steps counted, and whether a boundary is reached, after each step but the second one, which raises."""
    import probe_agent.torch as agent
    from probe_agent import _native

    agent.install()
    model = Net()
    optimizer = Failing(model.parameters(), lr=0.1)
    found = []
    for number in range(4):
        optimizer.fails = number == 1
        try:
            train(model, optimizer, torch.randn(2, 32), 1)
        except RuntimeError:
            continue
        found.append([_native.step(), _native.boundary_reached()])
    return found


@pytest.mark.parametrize("layers", ["optimizer=step-hooks", ""])
def test_steps_end_after_one_that_raised(layers: str) -> None:
    (first, first_reached), *others = in_process(after_a_step_that_raises, layers)
    assert first_reached and all(reached for _, reached in others)
    assert others[0][0] > first and others[1][0] == others[0][0] + 1


def test_all_public_mechanisms_together() -> None:
    layers = "forward=python-hooks,backward=grad-hooks,optimizer=step-hooks,collectives=patched-functions,spans=own"
    found = in_process(trained, layers)
    assert found["problem"] == ""
    assert found["layers"] == {
        "forward": "python-hooks",
        "backward": "grad-hooks",
        "optimizer": "step-hooks",
        "data": "next-patch",
        "collectives": "patched-functions",
        "memory": "statistics",
        "process": "proc",
        "spans": "own",
        "metrics": "log",
        "environment": "torch",
        "copies": "record_function",
        "sync_points": "record_function",
        "device_time": "cuda_events",
        "exceptions": "hooks",
        "checkpoints": "wrappers",
        "pauses": "callbacks",
    }
    parts = ["data_time", "forward_time", "backward_time", "optimizer_time", "comm_time", "other_time"]
    for step in found["steps"]:
        assert all(step[part] > 0 for part in parts[:4])
        assert sum(step[part] for part in parts) == pytest.approx(step["duration"], rel=1e-6)


@pytest.mark.parametrize(
    ("layer", "part", "stage"),
    [
        ("forward", "forward_time", "forward"),
        ("backward", "backward_time", "backward"),
        ("optimizer", None, "step"),
        ("data", "data_time", None),
    ],
)
def test_a_layer_switched_off_records_nothing(layer: str, part: str | None, stage: str | None) -> None:
    found = in_process(trained, f"-{layer}")
    assert found["layers"][layer] == "off" and found["problem"] == ""
    assert all(mechanism != "off" for other, mechanism in found["layers"].items() if other != layer)
    if part is not None:
        assert found["steps"] and all(step[part] == 0 for step in found["steps"])
    else:
        assert found["steps"] == []
    assert stage is None or stage not in {row["stage"] for row in found["trace"]}


def unknown_version(version: str) -> dict[str, Any]:
    torch.__version__ = version
    return trained(2)


@pytest.mark.parametrize("version", ["2.4.1", "2.16.0a0+git"])
def test_an_unknown_torch_gets_the_safer_layer(version: str) -> None:
    found = in_process(unknown_version, arguments=(version,))
    assert (found["layers"]["backward"], found["layers"]["optimizer"]) == ("grad-hooks", "step-hooks")
    assert f"not verified with torch {version}" in found["problem"]
    assert len(found["steps"]) == 2


def silent() -> dict[str, Any]:
    """Removes the callback without the agent: as if torch no longer called it for nodes."""
    import probe_agent.torch
    from probe_agent import _native

    probe_agent.torch.install()
    _native.remove_record_function()
    torch.set_num_threads(1)
    model = Net(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, torch.randn(4, 16), 6)
    rows = _native.take_rows()
    last = max(row["step"] for row in rows["python.steps"])
    return {
        "layers": _native.layers(),
        "problem": _native.problem(),
        "last": by_module([row for row in rows["python.torch_trace"] if row["step"] == last], "backward"),
    }


def test_a_callback_that_shows_no_nodes_is_replaced() -> None:
    found = in_process(silent, "optimizer=step-hooks")
    assert found["layers"]["backward"] == "grad-hooks"
    assert "no autograd node" in found["problem"]
    assert found["last"]["head"] > 0


def test_what_makes_no_sense_is_said() -> None:
    found = in_process(trained, "forwards,backward=magic,optimizer", arguments=(1,))
    assert "there is no layer 'forwards'" in found["problem"] and "backward can't be 'magic'" in found["problem"]
    assert found["layers"]["optimizer"] == "record_function" and found["layers"]["data"] == "off"


def test_every_layer_that_can_be_named_is_one() -> None:
    import probe_agent.torch as agent
    from probe_agent import _native

    assert sorted(agent._LAYERS) == sorted(_native.LAYERS)


def test_parse_reads_names_mechanisms_and_off() -> None:
    from probe_agent.torch.layers import parse

    layers = {
        "forward": ["tp_call", "python-hooks"],
        "backward": ["record_function", "grad-hooks"],
        "data": ["next-patch"],
    }
    assert parse(None, layers).mechanisms == layers
    assert parse("all", layers).mechanisms == layers
    assert parse("-data", layers).mechanisms == {**layers, "data": []}
    assert parse("forward", layers).mechanisms == {**layers, "backward": [], "data": []}
    assert parse("backward=grad_hooks", layers).mechanisms == {**layers, "backward": ["grad-hooks"]}
    assert parse("forward=off, all", layers).mechanisms == {**layers, "forward": []}
    assert parse("forward=tp-call", layers).is_explicit("forward")
