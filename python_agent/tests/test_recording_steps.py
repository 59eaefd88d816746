"""Steps of loops as people write them: without an optimizer of torch, with several, and without training."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from recorded_loop import recorded
from recording_support import NO_PROBLEM, Net, in_process
from torch import nn

torch.set_num_threads(1)

#: Passes that are seen before it is known that each of them is a step.
UNTOLD = 8
#: Calls of the model before the same is known where nothing trains.
CALLS = 12


def by_hand() -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        for number in range(20):
            for parameter in model.parameters():
                parameter.grad = None
            if number == 15:  # Validation is no step.
                model.eval()
                with torch.no_grad():
                    [model(x) for _ in range(5)]
                model.train()
            model(x).square().mean().backward()
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.01)

    return recorded(loop)


def test_without_an_optimizer_a_step_is_a_backward_pass() -> None:
    found = in_process(by_hand)
    # The first passes are one step together, which has intervals and no row: what each took is not known.
    assert found["counted"] == 20 - UNTOLD + 1
    assert found["steps"] == [[number, 1, 4] for number in range(1, 20 - UNTOLD + 1)]
    assert found["kinds"] == ["backward"] and found["whole"] and found["boundary"]
    assert found["backward"] == [0] * UNTOLD + list(range(1, 20 - UNTOLD + 1))
    assert found["problem"] == NO_PROBLEM and found["drops"] == []


def functional() -> dict[str, Any]:
    from torch.func import functional_call, grad

    def loop(model: nn.Module, x: torch.Tensor) -> None:
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            return functional_call(model, parameters, (x,)).square().mean()

        for _ in range(20):
            slopes = grad(loss)(parameters)
            parameters = {name: parameters[name] - 0.01 * slopes[name] for name in parameters}

    return recorded(loop)


def test_functional_training_has_steps() -> None:
    found = in_process(functional)
    assert found["steps"] == [[number, 1, 4] for number in range(1, 20 - UNTOLD + 1)]
    assert found["kinds"] == ["backward"] and found["problem"] == NO_PROBLEM


def forward_mode(steps: int, marked: bool) -> dict[str, Any]:
    import probe_agent
    from torch.func import functional_call, jvp

    def loop(model: nn.Module, x: torch.Tensor) -> None:
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            return functional_call(model, parameters, (x,)).square().mean()

        for _ in range(steps):
            direction = {name: torch.randn_like(value) for name, value in parameters.items()}
            _, slope = jvp(loss, (parameters,), (direction,))
            parameters = {name: parameters[name] - 0.01 * slope * direction[name] for name in parameters}
            if marked:
                probe_agent.step()

    return recorded(loop)


def test_derivatives_in_forward_mode_alone_have_no_steps_and_the_agent_says_why() -> None:
    found = in_process(forward_mode, arguments=(40, False))
    assert found["steps"] == [] and found["counted"] == 0
    assert found["problem"].startswith("no step has ended: 32 calls of a module in training mode had no backward pass")
    assert "probe_agent.step()" in found["problem"]
    found = in_process(forward_mode, arguments=(40, True))
    assert found["steps"] == [[number, 1, 4] for number in range(40)] and found["kinds"] == ["marked"]
    assert found["problem"] == NO_PROBLEM


def late(optimizer: bool) -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        made = torch.optim.SGD(model.parameters(), lr=0.01) if optimizer else None
        for _ in range(40):
            loss = model(x).sum()
        loss.backward()
        made = made or torch.optim.SGD(model.parameters(), lr=0.01)
        made.step()

    return recorded(loop)


@pytest.mark.parametrize("optimizer", [True, False])
def test_forty_calls_before_the_first_step_are_no_problem_then(optimizer: bool) -> None:
    found = in_process(late, arguments=(optimizer,))
    assert found["kinds"] == ["optimizer"] and found["problem"] == NO_PROBLEM


def per_sample(one_at_a_time: bool) -> dict[str, Any]:
    from torch.func import functional_call, grad, vmap

    def loop(model: nn.Module, x: torch.Tensor) -> None:
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return functional_call(model, parameters, (x,)).square().mean()

        slopes = vmap(grad(loss), in_dims=(None, 0))
        for _ in range(20):
            found = slopes(parameters, x[:, None] if one_at_a_time else x)
            parameters = {name: parameters[name] - 0.01 * found[name].mean(0) for name in parameters}

    return recorded(loop)


@pytest.mark.parametrize("one_at_a_time, samples", [(True, 4), (False, None)])
def test_samples_under_vmap_are_those_of_all_calls_or_not_known(one_at_a_time: bool, samples: int | None) -> None:
    found = in_process(per_sample, arguments=(one_at_a_time,))
    assert found["steps"] == [[number, 1, samples] for number in range(1, 20 - UNTOLD + 1)]
    assert found["kinds"] == ["backward"] and found["problem"] == NO_PROBLEM


class Unbuilt(nn.Module):
    """Makes its layers in its first call, and takes its input as `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.net: nn.Module | None = None

    def forward(self, given: Any) -> torch.Tensor:
        if self.net is None:
            self.net = Net()
        return self.net(given["x"] if self.kind == "dictionary" else given[0] if self.kind == "list" else given)


def built_in_first_call(kind: str) -> dict[str, Any]:
    def loop(_: nn.Module, x: torch.Tensor) -> None:
        model, given = Unbuilt(kind), {"dictionary": {"name": "x", "x": x}, "list": [x, x]}.get(kind, x)
        with torch.no_grad():
            model(given)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            model(given).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                model.eval()(given)
            model.train()

    return recorded(loop)


@pytest.mark.parametrize("kind, samples", [("tensor", 4), ("dictionary", 4), ("list", None)])
def test_a_model_that_makes_its_layers_in_its_first_call_is_a_model(kind: str, samples: int | None) -> None:
    found = in_process(built_in_first_call, arguments=(kind,))
    # Calls for validation are not counted, and a list may be one of images.
    assert found["steps"] == [[number, 1, samples] for number in range(6)] and found["whole"]
    assert found["problem"] == NO_PROBLEM and found["drops"] == []


def accumulated() -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(120):
            model(x).square().mean().backward()
            if number % 40 == 39:
                optimizer.step()
                optimizer.zero_grad()

    return recorded(loop)


def test_gradients_that_are_accumulated_over_many_passes_wait_for_their_optimizer() -> None:
    found = in_process(accumulated)
    assert found["steps"] == [[number, 40, 160] for number in range(3)] and found["kinds"] == ["optimizer"]


def marked() -> dict[str, Any]:
    import probe_agent

    def loop(model: nn.Module, x: torch.Tensor) -> None:
        for number in range(42):
            model(x).square().mean().backward()
            if number % 7 == 6:  # Before it would be taken for granted that each pass is a step.
                probe_agent.step()

    return recorded(loop)


def test_the_programs_own_word_wins() -> None:
    found = in_process(marked)
    assert found["steps"] == [[number, 7, 28] for number in range(6)] and found["kinds"] == ["marked"]


def switched() -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        for _ in range(UNTOLD + 2):
            model(x).square().mean().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            for _ in range(2):
                model(x).square().mean().backward()
            optimizer.step()

    return recorded(loop)


def test_an_optimizer_that_comes_later_ends_the_steps_from_then_on() -> None:
    found = in_process(switched)
    # Before its first step this is not known.
    passes = [[number, 1, 4] for number in range(1, 5)]
    assert found["steps"] == [*passes, [5, 0, None], [6, 2, 8], [7, 2, 8]], found["steps"]
    assert found["kinds"] == ["backward", "optimizer"]


def evaluated_first() -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        model.eval()
        with torch.no_grad():
            for _ in range(CALLS + 100):
                model(x)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(200):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    return recorded(loop)


def test_a_program_that_evaluates_before_it_trains_warms_up_anew() -> None:
    found = in_process(evaluated_first)
    calls, steps = found["warmup"][:100], found["warmup"][100:]
    assert {kind for kind, _ in calls} == {"call"} and not calls[-1][1], calls
    assert len(steps) == 200 and {kind for kind, _ in steps} == {"optimizer"}
    assert all(warmup for _, warmup in steps[:16]) and not steps[-1][1], steps


def lbfgs() -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, max_eval=4)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    return recorded(loop)


def test_a_closure_is_part_of_its_optimizers_step() -> None:
    found = in_process(lbfgs)
    assert found["steps"] == [[number, 4, 16] for number in range(3)], found["steps"]
    assert found["kinds"] == ["optimizer"] and found["backward"] == [0] * 4 + [1] * 4 + [2] * 4
    assert found["whole"] and found["drops"] == []


def served() -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        softmax = nn.Softmax(-1)
        model.eval()
        with torch.inference_mode():
            for _ in range(20):
                softmax(model(x))

    return recorded(loop)


def test_a_program_that_only_infers_has_a_step_a_call() -> None:
    found = in_process(served)
    # As with passes, the first calls are one step together.
    assert found["steps"] == [[number, 1, 4] for number in range(1, 20 - CALLS + 1)] and found["kinds"] == ["call"]
    assert found["counted"] == 20 - CALLS + 1 and found["problem"] == NO_PROBLEM and found["drops"] == []


def served_first() -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        with torch.no_grad():
            for _ in range(CALLS + 2):
                model(x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            model(x).square().mean().backward()
            optimizer.step()

    return recorded(loop)


def test_who_evaluates_first_has_steps_of_the_optimizer_as_soon_as_it_steps() -> None:
    found = in_process(served_first)
    assert found["steps"] == [[number, 1, 4] for number in range(1, 6)] and found["kinds"] == ["call", "optimizer"]


def evaluated() -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            model.eval()
            with torch.no_grad():
                for _ in range(3 * CALLS):
                    model(x)
            model.train()
            model(x).square().mean().backward()
            optimizer.step()

    return recorded(loop)


def test_calls_before_an_optimizer_steps_that_is_there_are_no_steps() -> None:
    found = in_process(evaluated)
    assert found["steps"] == [[0, 1, 4], [1, 1, 4]] and found["kinds"] == ["optimizer"]


def evaluated_after_an_attach() -> dict[str, Any]:
    from probe_agent import _native

    def loop(model: nn.Module, x: torch.Tensor) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # Of the checkpoint, say.
        _native.skip_step()  # As an attach does.
        model.eval()
        with torch.no_grad():
            for _ in range(100):
                model(x)
        assert optimizer.param_groups

    return recorded(loop)


def test_a_server_that_keeps_an_optimizer_is_told_why_it_has_no_steps_after_an_attach() -> None:
    found = in_process(evaluated_after_an_attach)
    # It may be a training that validates.
    assert found["steps"] == []
    assert found["problem"].startswith(
        "no step has ended since the attach: there were 88 calls of a model that do not train"
    )


def updated_by_hand_beside_an_optimizer() -> list[Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(130):
            model(x).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
            if number in (126, 129):
                problems.append(_native.problem())
        optimizer.step()  # After all, so what was said is taken back.
        problems.append(_native.problem())

    from probe_agent import _native

    problems: list[str] = []
    found = recorded(loop)
    return [problems, found["kinds"], found["counted"]]


def test_backward_passes_beside_an_optimizer_that_never_steps_are_said() -> None:
    problems, kinds, counted = in_process(updated_by_hand_beside_an_optimizer)
    assert problems[0] == problems[2] == NO_PROBLEM
    assert problems[1].startswith("no step has ended: there were 128 backward passes")
    assert "probe_agent.step()" in problems[1]
    assert (kinds, counted) == (["optimizer"], 1)


def searches_for_optimizers() -> list[int]:
    """How often all objects were looked at: with an optimizer of before, with another one, and without any."""
    from probe_agent import live_objects
    from probe_agent.torch import optimizer as agent_s_own

    before: Any = torch.optim.SGD(Net().parameters(), lr=0.01)
    searched: list[int] = []
    all_objects = live_objects.live_objects

    def counted() -> list[Any]:
        searched.append(1)
        return all_objects()

    live_objects.live_objects = counted

    def loop(model: nn.Module, x: torch.Tensor) -> None:
        def rollout() -> None:
            with torch.inference_mode():
                for _ in range(8 * CALLS):
                    model(x)
            found.append(len(searched))

        nonlocal before
        rollout()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        before = None
        rollout()
        del optimizer
        gc.collect()
        assert not agent_s_own.is_any()
        found.append(len(searched))

    found: list[int] = []
    recorded(loop)
    return found


def test_all_objects_are_looked_at_once_where_an_optimizer_does_not_step_yet() -> None:
    # Each look takes a twentieth of a second in which training stands still.
    assert in_process(searches_for_optimizers) == [1, 1, 2]
