"""Completion of names that are being typed."""

from __future__ import annotations

from typing import Any

import torch
from probe_agent.eval import complete
from torch import nn


class Loud:
    """An object that fails the test if any of its code runs."""

    kind = "loud"
    __slots__ = ("__dict__", "slotted")

    def __init__(self) -> None:
        self.plain = [nn.Linear(2, 3)]
        self.table = {3: self.plain}
        self.slotted = self.plain

    @property
    def answer(self) -> int:
        raise AssertionError("a property ran")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"__getattr__ ran for {name}")

    def __dir__(self) -> list[str]:
        raise AssertionError("__dir__ ran")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU())])
        self.register_buffer("seen", torch.zeros(1))

    @property
    def device(self) -> str:
        raise AssertionError("a property ran")


KNOWN = {"model": Model(), "loud": Loud(), "batch_size": 4, "torch": torch, "Model": Model, "_private": 1}


def test_names_become_what_lies_in_objects() -> None:
    assert complete.names("batch_s", KNOWN) == ["batch_size"]
    assert "print" in complete.names("prin", KNOWN) and "_private" not in complete.names("", KNOWN)
    assert complete.names("model.lay", KNOWN) == ["layers"] and complete.names("model.see", KNOWN) == ["seen"]
    assert complete.names("model.layers[0][0].wei", KNOWN) == ["weight"]
    assert complete.names("model.layers[0][0].in_f", KNOWN) == ["in_features"]
    assert complete.names("loud.plain[0].out_f", KNOWN) == ["out_features"]
    assert complete.names("loud.table[3][0].out_f", KNOWN) == ["out_features"]
    assert complete.names("loud.slotted[0].out_f", KNOWN) == ["out_features"]
    assert complete.names("torch.nn.functional.cross_e", KNOWN) == ["cross_entropy"]
    assert "named_parameters" in complete.names("Model.named", KNOWN)


def test_nothing_runs_and_nothing_is_made_up() -> None:
    # A property is completed, and its value is not read.
    assert "answer" in complete.names("loud.", KNOWN) and complete.names("model.dev", KNOWN) == ["device"]
    for chain in ("loud.answer.", "loud.nothing.x", "model.device.x", "nobody.", "model.layers[9].", "loud.plain[7].",
                  "model..x", ".x"):  # fmt: skip
        assert complete.names(chain, KNOWN) == [], chain


def test_many_names_are_cut() -> None:
    known = {f"name_{number}": number for number in range(2 * complete.MAX_NAMES)}
    assert len(complete.names("name_", known)) == complete.MAX_NAMES
