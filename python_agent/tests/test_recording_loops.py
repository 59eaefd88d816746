"""Loops as people write them: mixed precision that skips a step, pauses, hooks and profilers of their own, many small
modules, compiled models."""

from __future__ import annotations

import copy
import sys
import time
from typing import Any

import pytest
import torch
from recording_support import Net, Recorder, in_process, train
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)


def test_a_step_that_the_scaler_skips_is_no_step(recorder: Recorder) -> None:
    model = Net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    for iteration in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(4, 32)).square().mean()
        scaler.scale(loss * (float("inf") if iteration == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    rows = recorder.take()
    # The work of the iteration without a step is the next step's.
    assert [(step["micro_steps"], step["samples"]) for step in rows["python.steps"]] == [(1, 4), (1, 4), (2, 8), (1, 4)]
    first = rows["python.steps"][0]["step"]
    calls = [0] * 4
    for row in rows["python.torch_trace"]:
        calls[row["step"] - first] += row["stage"] == "backward" and row["module"] == "layers.1.up"
    assert calls == [1, 1, 2, 1]
    assert [row["step"] - first for row in rows["python.torch_trace"] if row["stage"] == "step"] == [0, 1, 2, 3]
    assert rows["probe.drops"] == {} and recorder.native.problem() == ""


def two_loops(made_early: bool) -> dict[str, Any]:
    """One loop, and another one behind it with the first one's optimizer still alive. The second one's optimizer is made before
    the first loop or after it."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    x, first, second = torch.randn(4, 32), Net(), Net()
    before = torch.optim.SGD(first.parameters(), lr=0.1)
    after = torch.optim.AdamW(second.parameters()) if made_early else None
    train(first, before, x, 6)
    recorder.take()
    steps = recorder.native.step()
    after = after or torch.optim.AdamW(second.parameters())
    boundaries = []
    for _ in range(6):
        train(second, after, x, 1)
        boundaries.append(recorder.native.boundary_reached())
    made = [step["micro_steps"] for step in recorder.take()["python.steps"]]
    return {"boundaries": boundaries, "steps": recorder.native.step() - steps, "micro_steps": made}


def test_a_second_loop_has_steps_and_boundaries_while_the_first_ones_optimizer_lives() -> None:
    # Two of its steps are no proof yet: they are the third one's.
    boundaries = [False, False, True, True, True, True]
    expected = {"boundaries": boundaries, "steps": 4, "micro_steps": [3, 1, 1, 1]}
    assert in_process(two_loops, arguments=(True,)) == expected
    # Those that take turns are made before their loop.
    assert in_process(two_loops, arguments=(False,)) == {"boundaries": [True] * 6, "steps": 6, "micro_steps": [1] * 6}


def trials() -> list[int]:
    """Short trainings of two optimizers each, all of which stay alive, as in a sweep that keeps its models."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    kept: list[Any] = []
    x = torch.randn(4, 32)
    for _ in range(6):
        critic, actor = Net(), Net()
        optimizers = torch.optim.Adam(critic.parameters()), torch.optim.Adam(actor.parameters())
        kept.append((critic, actor, *optimizers))
        for _ in range(3):
            train(critic, optimizers[0], x, 1)
            train(actor, optimizers[1], x, 1)
    return [step["micro_steps"] for step in recorder.take()["python.steps"]]


def test_every_trial_of_a_sweep_has_its_steps() -> None:
    # The actor's last pass of a trial belongs to the first step of the next one.
    assert in_process(trials) == [1] + [2] * 17


def test_two_optimizers_in_turn_make_one_step(recorder: Recorder) -> None:
    x, one, other = torch.randn(4, 32), Net(), Net()
    primary = torch.optim.SGD(one.parameters(), lr=0.1)
    faster = torch.optim.SGD(other.parameters(), lr=0.1)
    steps = recorder.native.step()
    for _ in range(8):
        train(one, primary, x, 1)
        train(other, faster, x, 5)
    assert recorder.native.step() == steps + 8


def test_a_step_of_the_optimizer_for_each_group_of_parameters_is_one_step(recorder: Recorder) -> None:
    # As ZeRO of DeepSpeed steps the optimizer that it wraps.
    x, model = torch.randn(4, 32), Net()
    halves = [{"params": [p for p in model.parameters() if (p.dim() == 1) == flat]} for flat in (True, False)]
    optimizer = torch.optim.SGD(halves, lr=0.1)
    groups = optimizer.param_groups

    def step_each() -> None:
        for group in groups:
            optimizer.param_groups = [group]
            optimizer.step()

    before = recorder.native.step()
    for _ in range(10):
        optimizer.zero_grad()
        model(x).sum().backward()
        step_each()
    assert recorder.native.step() == before + 10
    rows = recorder.take()["python.steps"]
    assert [row["step"] for row in rows] == list(range(before, before + 10))
    assert all(row["forward_time"] > 0 and row["backward_time"] > 0 and row["micro_steps"] == 1 for row in rows)
    # A batch, a call or a backward pass makes the next one a step.
    next(iter(DataLoader([x])))  # type: ignore[arg-type]
    optimizer.step()
    assert recorder.native.step() == before + 11
    # And where nothing of that comes any more (the loop has become a graph of the device), each is one after a while.
    train(model, optimizer, x, 1)
    for _ in range(100):
        optimizer.step()
    assert recorder.native.step() == before + 12 + 100 - 64


@pytest.mark.parametrize("how", ["uninstall", "enable"])
@pytest.mark.parametrize("where", ["between steps", "within a step"])
def test_a_pause_belongs_to_no_step(recorder: Recorder, how: str, where: str) -> None:
    import probe_agent.torch as agent

    off, on = {
        "uninstall": (agent.uninstall, agent.install),
        "enable": (lambda: recorder.native.set_enabled(False), lambda: recorder.native.set_enabled(True)),
    }[how]
    model, clock = Net(), time.perf_counter
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32)
    train(model, optimizer, x, 3)
    if where == "within a step":
        model(x)
    off()
    train(model, optimizer, x, 100)
    on()
    back = clock()
    if where == "within a step":
        model(x).sum().backward()
        optimizer.step()
    train(model, optimizer, x, 3)
    back = clock() - back
    steps = recorder.take()["python.steps"]
    after = 4 if where == "within a step" else 3
    assert len(steps) == 3 + after
    assert [step["step"] for step in steps] == list(range(steps[0]["step"], steps[0]["step"] + 3 + after))
    # Whole steps of before, and nothing of the pause: what came after it lies within the clock that began there.
    assert sum(step["duration"] for step in steps[3:]) <= back
    for step in steps:
        assert step["micro_steps"] == 1 and step["forward_time"] > 0 and step["backward_time"] > 0
    parts = ["data_time", "forward_time", "backward_time", "optimizer_time", "comm_time", "other_time"]
    assert all(sum(step[part] for part in parts) == pytest.approx(step["duration"], rel=1e-6) for step in steps)


def test_modules_that_forward_adds_have_their_names_from_their_first_call(recorder: Recorder) -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleDict()
            self.body = Net(16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            number = len(self.experts)
            self.experts[f"of{number}"] = nn.Sequential(nn.Linear(16, 16), self.body.head)
            return self.body(self.experts[f"of{number}"](x))

    model = Growing()
    train(model, torch.optim.SGD(model.body.parameters(), lr=0.1), torch.ones(2, 16), 3)
    model.late = nn.Tanh()
    model.late(torch.ones(1))
    trace = recorder.take()["python.torch_trace"]
    for number in range(3):
        names = {
            row["module"] for row in trace if row["stage"] == "forward" and row["step"] == trace[0]["step"] + number
        }
        # A module with two parents has the name under the first one.
        new = {f"experts.of{number}", f"experts.of{number}.0"}
        body = ("layers.0", *(f"layers.0.{of}" for of in ("norm", "up", "down")), "head")
        assert names == {"Growing", "body", *(f"body.{of}" for of in body), *new}
    assert trace[-1]["module"] == "late"
    assert not [row for row in trace if row["module"] == "Linear"] and recorder.native.problem() == ""


def test_modules_called_outside_the_one_they_are_in_have_their_names(recorder: Recorder) -> None:
    class Policy(nn.Module):
        """Never called itself."""

        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
            self.critics = nn.ModuleList([nn.Sequential(nn.Linear(4, 1)) for _ in range(2)])
            self.loss = nn.MSELoss()

    def names_of(*modules: nn.Module) -> list[str]:
        for module in modules:
            module(torch.ones(2, 4))
        return [row["module"] for row in recorder.take()["python.torch_trace"]]

    policy = Policy()
    policy.loss(torch.ones(2), torch.ones(2))
    named = names_of(policy.actor, *policy.critics)
    assert named == ["loss", "actor.0", "actor.1", "actor", "critics.0.0", "critics.0", "critics.1.0", "critics.1"]
    # One that is put into a second module stays what it was. What can be called itself gives no name.
    around = nn.Sequential(torch.compile(policy.critics[0], backend="eager"), nn.Sequential(nn.Identity()))
    assert names_of(policy.critics[0]) == ["critics.0.0", "critics.0"]
    assert names_of(around[1]) == ["0", "Sequential"]
    # A module that replaces another one has its name. A module that is in no other one any more, or that nothing is known of,
    # has the name of its class.
    before, policy.actor = policy.actor, nn.Sequential(nn.Linear(4, 8))
    assert names_of(policy.actor) == ["actor.0", "actor"]
    copied = copy.deepcopy(before)
    assert names_of(copied) == ["0", "1", "Sequential"]

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("call student or teacher")

    pair = Pair()
    assert names_of(pair.student, pair.teacher) == (
        ["student", "teacher"] if sys.version_info >= (3, 10) else ["Linear"] * 2
    )
    assert recorder.native.problem() == ""


def test_what_modules_were_in_is_forgotten_with_them(recorder: Recorder) -> None:
    import probe_agent.torch.parents as parents

    kept = nn.ModuleList([nn.Identity() for _ in range(100)])
    for _ in range(3 * parents._MIN_LIMIT // 10):
        nn.Sequential(*(nn.Identity() for _ in range(10)))
    assert len(parents._links) <= parents._MIN_LIMIT + 1
    assert [name for _, name in parents.above(kept[99])] == ["99"]


def test_a_module_that_cannot_be_named_is_added_all_the_same(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch calls what names a module in the program's own statement: nothing may be raised there."""
    import probe_agent.torch.modules as modules

    model = Net(16, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 16), 1)

    def fail(*_: object) -> None:
        raise RuntimeError("no such walk")

    monkeypatch.setattr(modules, "_walk", fail)
    model.late = nn.Tanh()
    assert "no such walk" in recorder.native.problem()
    recorder.native.set_problem("")


def test_no_walk_goes_on_when_its_time_is_spent(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that puts a new module into its model in each step must not pay for a walk in each step."""
    import probe_agent.torch.modules as modules

    model = Net(16, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 16), 1)
    model.early = nn.Tanh()
    modules._walked[Net].seconds = float("inf")
    model.late = nn.Tanh()
    assert id(model.early) in modules._known and id(model.late) not in modules._known


def test_a_compiled_module_without_a_length_is_named(recorder: Recorder) -> None:
    """A compiled module has a length where its class has none: to ask whether it is true raises."""
    import probe_agent.torch.modules as modules

    model = torch.compile(Net(16, 1), backend="eager")
    assert modules.register(model, False)[0] and modules.register(model, True)[0]
    assert modules.name_below(model, model._orig_mod.head) == "head"


def test_many_small_modules_use_up_no_names(recorder: Recorder) -> None:
    import probe_agent.torch.modules as modules

    x = torch.ones(1)
    made = [nn.Identity() for _ in range(100)]
    for _ in range(modules._WALKS // 100 + 1):
        # All at once and then none, so that many addresses are met, and each again.
        for module in made:
            module(x)
        made = [nn.Identity() for _ in range(100)]
    assert modules._walks == modules._WALKS
    assert {row["module"] for row in recorder.take()["python.torch_trace"]} == {"Identity"}
    # Whatever comes now, also at an address where a small one was, has its names.
    for _ in range(50):
        model = Net(16, 1)
        model(torch.ones(1, 16))
        seen = {row["module"] for row in recorder.take()["python.torch_trace"]}
        assert seen == {"Net", "layers.0", "layers.0.norm", "layers.0.up", "layers.0.down", "head"}
        del model
        nn.Identity()(x)
        single = nn.Linear(4, 4)
        train(single, torch.optim.SGD(single.parameters(), lr=0.1), torch.ones(3, 4), 1)
        (step,) = recorder.take()["python.steps"]
        # The model's call and this one's, and no small one's. The larger batch of the two counts.
        assert (step["micro_steps"], step["samples"]) == (2, 3)


def test_models_made_anew_each_step_are_not_walked_for_ever(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import probe_agent.torch.modules as modules

    walk, roots = modules._walk, []

    def counted(module: Any, path: str, parent: Any, found: Any, seen: Any) -> Any:
        roots.extend([module] if parent is None else [])
        return walk(module, path, parent, found, seen)

    monkeypatch.setattr(modules, "_walk", counted)
    monkeypatch.setattr(modules, "_FREE", 0.0)
    monkeypatch.setattr(modules, "_SHARE", 0.0)
    x = torch.ones(2, 16)
    for number in range(4):
        model = Net(16, 1)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), x, 2)
        rows = recorder.take()
        seen = {row["module"] for row in rows["python.torch_trace"] if row["stage"] == "forward"}
        if number == 0:
            assert seen == {"Net", "layers.0", "layers.0.norm", "layers.0.up", "layers.0.down", "head"}
        else:
            assert seen == {"Net", "Block", "LayerNorm", "Linear"}
        assert {(step["micro_steps"], step["samples"]) for step in rows["python.steps"]} == {(1, 2)}
    # Nor is another class of roots the worse for it.
    nn.Sequential(Net(16, 1))(x)
    assert "0.layers.0.up" in {row["module"] for row in recorder.take()["python.torch_trace"]}
    assert [type(root).__name__ for root in roots] == ["Net", "Sequential"]


def test_modules_that_follow_each_other_at_one_address_are_told_apart(recorder: Recorder) -> None:
    x, before, again = torch.ones(1), set(), 0
    for _ in range(100):
        for make in (nn.ReLU, nn.Tanh, nn.Identity):
            module = make()
            module(x)
            again += id(module) in before
            before.add(id(module))
            del module
    assert again > 100
    names = [row["module"] for row in recorder.take()["python.torch_trace"]]
    assert names == ["ReLU", "Tanh", "Identity"] * 100


def test_hooks_profiler_and_ranges_of_the_users_own(recorder: Recorder) -> None:
    from torch.profiler import ProfilerActivity, profile, record_function

    model = Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32)
    hooked: list[str] = []
    model.head.register_forward_pre_hook(lambda *_: hooked.append("forward pre"))
    model.head.register_forward_hook(lambda *_: hooked.append("forward"))
    model.head.register_full_backward_hook(lambda *_: hooked.append("backward"))
    optimizer.register_step_pre_hook(lambda *_: hooked.append("step pre"))
    optimizer.register_step_post_hook(lambda *_: hooked.append("step"))
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU], with_modules=True, record_shapes=True) as profiler:
            for _ in range(2):
                with record_function("my range"):
                    train(model, optimizer, x, 1)
        counts = {event.key: event.count for event in profiler.key_averages()}
        assert counts["my range"] == 2 and counts["Optimizer.step#SGD.step"] == 2
    train(model, optimizer, x, 1)
    assert hooked == ["forward pre", "forward", "backward", "step pre", "step"] * 5
    rows = recorder.take()
    assert len(rows["python.steps"]) == 5
    forward = [row["module"] for row in rows["python.torch_trace"] if row["stage"] == "forward"]
    assert forward.count("head") == 5 and len(forward) == 5 * 14
    backward = [row["module"] for row in rows["python.torch_trace"] if row["stage"] == "backward"]
    assert backward.count("head") == 5 and backward.count("layers.2.down") == 5
    assert rows["probe.drops"] == {} and recorder.native.problem() == ""


def test_an_unrolled_network_counts_its_calls(recorder: Recorder) -> None:
    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(8, 8)
            self.out = nn.Linear(8, 8)
            self.out.weight = nn.Parameter(self.cell.weight_hh[:8])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = None
            for _ in range(5):
                state = self.cell(x, state)
                x = self.out(state[0])
            return x

    model = Unrolled()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 8), 2)
    rows = recorder.take()
    for module in ("cell", "out"):
        for stage in ("forward", "backward"):
            calls = [
                (row["step"] - rows["python.steps"][0]["step"], row["call_index"])
                for row in rows["python.torch_trace"]
                if row["module"] == module and row["stage"] == stage
            ]
            assert sorted(calls) == [(step, call) for step in (0, 1) for call in range(5)], (module, stage)


def compiled(agent: bool) -> dict[str, Any]:
    """What Dynamo counts while models are compiled, in part and as a whole, and trained with two batch sizes."""
    if agent:
        import probe_agent.torch

        probe_agent.torch.install()
    torch.set_num_threads(1)
    from torch import _dynamo
    from torch._dynamo.utils import counters

    found: dict[str, Any] = {}
    for name in ("whole", "in place", "part", "function"):
        _dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run: Any = model
        if name == "whole":
            run = torch.compile(model, backend="aot_eager", fullgraph=True)
        elif name == "in place":
            model.compile(backend="aot_eager", fullgraph=True)
        elif name == "part":
            model.layers[1] = torch.compile(model.layers[1], backend="aot_eager", fullgraph=True)
        else:

            def loss_of(x: torch.Tensor, model: nn.Module = model) -> torch.Tensor:
                return model(x)

            run = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
        losses = [loss.hex() for size in (4, 4, 4, 6, 8, 4) for loss in train(run, optimizer, torch.ones(size, 32), 1)]
        found[name] = {
            "losses": losses,
            "counters": {
                kind: dict(counters[kind]) for kind in ("frames", "stats", "graph_break", "recompiles", "unimplemented")
            },
        }
    if agent:
        from probe_agent import _native

        # Steps in which the function is compiled may have none: slots are reset, and it calls no module where steps before did.
        assert 4 * 6 - 2 <= len(_native.take_rows()["python.steps"]) <= 4 * 6 and _native.problem() == ""
    return found


@pytest.mark.extended
def test_what_is_compiled_is_compiled_as_without_us() -> None:
    with_agent, without = (in_process(compiled, arguments=(agent,)) for agent in (True, False))
    assert with_agent == without
    assert all(found["counters"]["graph_break"] == {} for found in with_agent.values())
    assert all(found["counters"]["stats"]["unique_graphs"] >= 1 for found in with_agent.values())
