"""Objects that the program has frozen are found, wherever they are referred to."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from probe_agent.benchmark.kept_state import training_objects
from probe_agent.live_objects import live_objects
from torch import nn


@pytest.fixture
def freeze() -> Iterator[Any]:
    yield gc.freeze
    gc.unfreeze()


def is_in(found: list[Any], wanted: Any) -> bool:
    return any(each is wanted for each in found)


def generated(value: Any) -> Iterator[Any]:
    yield value


def test_a_variable_of_a_function_that_runs_is_found(freeze: Any) -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters())
    freeze()
    assert not is_in(gc.get_objects(), model)
    found = training_objects(torch)
    assert all(is_in(found, each) for each in (model, model[0], optimizer))


def test_what_another_thread_a_generator_and_a_module_refer_to_is_found(
    freeze: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [nn.Linear(1, 1) for _ in range(3)]
    addresses = list(map(id, models))
    begun, end = threading.Event(), threading.Event()

    def holds(model: nn.Module) -> None:
        begun.set()
        end.wait()
        model.eval()

    monkeypatch.setitem(sys.modules, "a_program", ModuleType("a_program"))
    sys.modules["a_program"].model = models.pop()  # type: ignore[attr-defined]
    generator = generated(models.pop())
    thread = threading.Thread(target=holds, args=(models.pop(),))
    thread.start()
    begun.wait()
    freeze()
    try:
        assert set(addresses) <= set(map(id, training_objects(torch)))
    finally:
        end.set()
        thread.join()
        generator.close()


def test_where_nothing_is_frozen_the_collector_is_asked_alone() -> None:
    model = nn.Linear(1, 1)
    assert is_in(live_objects(), model)
