"""Models that torch.compile and torch.fx take apart are compiled as without us, and their calls are recorded."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch
from recording_support import Net, Recorder, in_process, train
from torch import nn

torch.set_num_threads(1)


def compiled() -> dict[str, Any]:
    """Graph breaks of compiled models, and the rows of a compiled region."""
    import probe_agent.torch

    probe_agent.torch.install()
    from probe_agent import _native
    from torch._dynamo.utils import counters

    found: dict[str, Any] = {}
    x = torch.randn(4, 32)
    for name in ("whole", "in place", "part"):
        torch._dynamo.reset()
        counters.clear()
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if name == "whole":
            run = torch.compile(model, backend="aot_eager", fullgraph=True)
        elif name == "in place":
            model.compile(backend="aot_eager", fullgraph=True)
            run = model
        else:
            model.layers[1] = torch.compile(model.layers[1], backend="aot_eager", fullgraph=True)
            run = model
        train(run, optimizer, x, 3)
        _native.take_rows()
        train(run, optimizer, x, 1)
        rows = _native.take_rows()
        forward = {row["module"]: row["compiled"] for row in rows["python.torch_trace"] if row["stage"] == "forward"}
        backward = sum(
            row["duration"] for row in rows["python.torch_trace"] if row["stage"] == "backward" and row["module"]
        )
        found[name] = {
            "breaks": sum(counters["graph_break"].values()),
            "forward": forward,
            "backward": backward > 0,
            "steps": len(rows["python.steps"]),
        }
    return found


def compiled_optimizer(agent: bool) -> dict[str, int]:
    """Graphs of a compiled optimizer's step, and the operations in them."""
    if agent:
        import probe_agent.torch

        probe_agent.torch.install()
    from torch._dynamo.utils import counters

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 32)).sum().backward()
    counters.clear()
    step = torch.compile(optimizer.step, backend="eager")
    step(), step()
    return dict(counters["stats"])


@pytest.mark.extended
def test_a_compiled_optimizer_has_the_graphs_it_has_without_us() -> None:
    assert in_process(compiled_optimizer, arguments=(True,)) == in_process(compiled_optimizer, arguments=(False,))


def two_optimizers(compiled: tuple[bool, bool]) -> list[int]:
    """The steps of six rounds in which each of two optimizers steps once."""
    import probe_agent.torch

    probe_agent.torch.install()
    recorder = Recorder()
    models = Net(), Net()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    steps: list[Any] = [
        torch.compile(optimizer.step, backend="eager") if wanted else optimizer.step
        for optimizer, wanted in zip(optimizers, compiled)
    ]
    for _ in range(6):
        for model, step in zip(models, steps):
            model(torch.randn(4, 32)).sum().backward()
            step()
    return [row["step"] for row in recorder.take()["python.steps"]]


@pytest.mark.extended
@pytest.mark.parametrize("compiled", [(True, True), (False, True)])
def test_optimizers_with_compiled_steps_take_turns_like_others(compiled: tuple[bool, bool]) -> None:
    assert len(in_process(two_optimizers, arguments=(compiled,))) == 6


def test_steps_without_hooks_take_turns_like_others(recorder: Recorder) -> None:
    """As torch calls none in a step that is compiled."""
    model = Net()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    for _ in range(6):
        model(torch.randn(4, 32)).sum().backward()
        for optimizer in optimizers:
            recorder.native.run_optimizer_step(lambda: None, optimizer, (), {})
    assert len(recorder.take()["python.steps"]) == 6


def test_dynamo_compiles_no_function_of_ours() -> None:
    from probe_agent.torch.layers import skipped_by_dynamo

    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def ours(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch.compile(skipped_by_dynamo(ours), backend=count)(torch.ones(1))
    assert not graphs
    torch.compile(theirs, backend=count)(torch.ones(1))
    assert len(graphs) == 1


def test_compile_breaks_no_graphs() -> None:
    found = in_process(compiled)
    with_parts = {"layers.0": False, "layers.1": True, "layers.2": False, "Net": False, "head": False}
    assert found["whole"]["forward"] == {"OptimizedModule": True}
    assert found["in place"]["forward"] == {"Net": True}
    assert {name: found["part"]["forward"][name] for name in with_parts} == with_parts
    assert "layers.1.up" not in found["part"]["forward"]
    for name in ("whole", "in place", "part"):
        assert (found[name]["breaks"], found[name]["backward"], found[name]["steps"]) == (0, True, 1), name


def test_slots_come_back_after_fx(recorder: Recorder) -> None:
    model = Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 32)
    train(model, optimizer, x, 1)
    traced = torch.fx.symbolic_trace(Net())
    assert not recorder.native.is_patched(nn.Linear)
    train(model, optimizer, x, 2)
    assert recorder.native.is_patched(nn.Linear)
    recorder.take()
    train(model, optimizer, x, 1)
    rows = recorder.take()["python.torch_trace"]
    assert len([row for row in rows if row["stage"] == "forward"]) == 14
    traced(x)
    assert "head" in {row["module"] for row in recorder.take()["python.torch_trace"]}


def forward_rows(recorder: Recorder) -> int:
    return len([row for row in recorder.take()["python.torch_trace"] if row["stage"] == "forward"])


def test_slots_come_back_after_fx_where_no_optimizer_of_torch_steps(recorder: Recorder) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4)
    for _ in range(2):
        model(x)
        recorder.native.mark_step()
    recorder.take()
    for has_backward in (False, True):
        torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4)))
        loss = model(x).sum()  # Not seen: this step gets no row that says its forward took no time.
        if has_backward:
            loss.backward()
        recorder.native.mark_step()
        model(x)
        recorder.native.mark_step()
        rows = recorder.take()
        assert len([row for row in rows["python.torch_trace"] if row["stage"] == "forward"]) == 3
        assert [row["forward_time"] > 0 for row in rows["python.steps"]] == [True]


class Tracing(nn.Linear):
    """Traces while it is called, as torch.compile does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4)))
        return super().forward(x)


def test_a_step_that_traces_within_a_call_keeps_its_row(recorder: Recorder) -> None:
    model = Tracing(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, torch.ones(2, 4), 3)
    assert recorder.native.is_patched(nn.Linear)
    rows = recorder.take()
    assert [row["forward_time"] > 0 for row in rows["python.steps"]] == [True] * 3
    assert [row["module"] for row in rows["python.torch_trace"] if row["stage"] == "forward"] == ["Tracing"] * 3


def test_slots_come_back_after_fx_in_inference(recorder: Recorder) -> None:
    torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4)))
    assert not recorder.native.is_patched(nn.Linear)
    model = nn.Linear(4, 4)
    for batch in torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2):
        model(batch)
    assert forward_rows(recorder) == 2


def test_slots_come_back_after_fx_in_a_loop_that_only_calls(recorder: Recorder) -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    model(x)
    recorder.take()
    torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4)))
    deadline = time.monotonic() + 60
    while not recorder.native.is_patched(nn.Linear):
        assert time.monotonic() < deadline
        model(x)
        time.sleep(0.05)
        assert forward_rows(recorder) == 0  # As the background thread does, this drains and looks.
    model(x)
    assert forward_rows(recorder) == 1
    assert not recorder.native.problem()


def test_an_assignment_to_one_class_is_seen_and_said(recorder: Recorder) -> None:
    # Does the look at all classes that comes once a minute, so that none is due below.
    recorder.native.mark_step()

    class Assigned(nn.Linear):
        pass

    model, x = Assigned(4, 4), torch.ones(2, 4)
    Assigned.__call__ = lambda self, x: nn.Module.__call__(self, 2 * x)  # type: ignore[assignment]
    model(x)
    recorder.native.mark_step()
    assert forward_rows(recorder) == 0
    assert not recorder.native.problem()

    class Unpatched(nn.Module):  # Nothing has been assigned here.
        @classmethod
        def __init_subclass__(cls) -> None:
            pass

    class BelowUnpatched(Unpatched):
        pass

    recorder.native.keep_slots(True)  # As the background thread does once a minute.
    recorder.native.mark_step()
    assert "Assigned.__call__" in recorder.native.problem()
    assert recorder.native.is_patched(BelowUnpatched)
    recorder.native.set_problem("")
    recorder.take()
    torch.testing.assert_close(model(x), nn.functional.linear(2 * x, model.weight, model.bias))
    recorder.native.mark_step()
    assert forward_rows(recorder) == 1


def test_a_program_that_assigns_the_call_of_all_modules_in_each_step_is_told(recorder: Recorder) -> None:
    model, x, call = nn.Linear(4, 4), torch.ones(2, 4), nn.Module.__call__
    for _ in range(70):
        assert not forward_rows(recorder)
        nn.Module.__call__ = call  # type: ignore[method-assign]  # As a profiler of FLOPs that wraps it during each step.
        model(x)
        recorder.native.mark_step()
    assert "again and again" in recorder.native.problem()
    recorder.native.set_problem("")


def test_a_new_class_where_one_lay_that_has_gone_is_nobodys_assignment(recorder: Recorder) -> None:
    class Unpatched(nn.Module):
        @classmethod
        def __init_subclass__(cls) -> None:
            pass

    gone = {id(type(f"Gone{number}", (nn.Module,), {})) for number in range(200)}
    gc.collect()
    kept = []
    while id(new := type("New", (Unpatched,), {})) not in gone:
        kept.append(new)
        assert len(kept) < 20_000, "no class came to lie where one had lain"
    recorder.native.keep_slots(True)
    recorder.native.mark_step()
    assert recorder.native.problem() == "" and recorder.native.is_patched(new)


def test_classes_that_torch_fx_makes_are_nobodys_assignment(recorder: Recorder) -> None:
    model = nn.Linear(4, 4)
    traced = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    recorder.native.keep_slots(True)
    model(torch.ones(2, 4))
    recorder.native.mark_step()
    assert recorder.native.problem() == "" and recorder.native.is_patched(type(traced))
    assert len(recorder.take()["python.steps"]) == 1, "the step has its row"


def compiled_part(backend: str) -> dict[str, Any]:
    """A model of which a part is compiled whose input needs a gradient."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model = Net()
    model.layers[1].compile(backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    took = []
    for _ in range(2):
        begin = time.perf_counter()
        loss = model(torch.randn(4, 32, requires_grad=True)).sum()
        forward = time.perf_counter() - begin
        loss.backward()
        took.append([forward, time.perf_counter() - begin - forward])
        optimizer.step()
    rows = recorder.take()
    return {
        "took": took,
        "steps": [[step["forward_time"], step["backward_time"]] for step in rows["python.steps"]],
        "roots": [row["stage"] for row in rows["python.torch_trace"] if row["module"] == "Net"],
        "parts": sorted({row["part"] for row in rows["python.pauses"] if row["kind"] == "compilation"}),
    }


def compiled_with_backward() -> list[str]:
    """Warnings of a compiled function that calls backward(): torch copies its graph, for which it makes a class of modules."""
    import warnings

    import probe_agent.torch

    probe_agent.torch.install()
    model = nn.Linear(4, 4)

    @torch.compile(backend="aot_eager")
    def loss_of(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loss_of(torch.ones(2, 4))
    return [str(warning.message) for warning in warned if "probe" in str(warning.message)]


def test_dynamo_does_not_trace_the_agent_where_it_makes_classes_of_modules() -> None:
    assert in_process(compiled_with_backward) == []


#: A graph of a backward pass is compiled within the first one.
PARTS = {"eager": ["forward"], "aot_eager": ["backward", "forward"]}


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.extended)])
def test_compiling_a_part_of_a_model_is_no_backward_pass(backend: str) -> None:
    found = in_process(compiled_part, arguments=(backend,))
    for (forward, backward), (recorded, recorded_backward) in zip(found["took"], found["steps"]):
        assert recorded == pytest.approx(forward, rel=0.2, abs=0.002)
        assert recorded_backward <= backward
    assert found["roots"] == ["forward", "backward"] * 2 and found["parts"] == PARTS[backend]
