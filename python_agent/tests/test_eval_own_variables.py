"""Assignments to names of the program, which change nothing there."""

from __future__ import annotations

import ast

import pytest
from eval_support import Collector
from probe_agent.eval.own_variables import assignments, in_vain

RATE = 0.1
NAMES = {"step": 1, "lr": 0.1, "weights": [1], "loss": 2.0}


@pytest.mark.parametrize(
    "code, names",
    [
        ("step += 100", "step"),
        ("step += 1; print(step)", "step"),
        ("lr = 0.1", "lr"),
        ("lr: float = 2", "lr"),
        ("for i in range(3):\n  lr = i\nstep -= 1", "step, lr"),
        # A list is changed in place.
        ("weights += [2]", None),
        ("weights[0] = 3; model.training = False", None),
        # The snippet uses a name for something of its own.
        ("loss = 1; print(loss)", None),
        ("def f():\n  lr = 3\nf()", None),
        ("other = 1", None),
    ],
)
def test_what_is_assigned_in_vain_is_named(code: str, names: str | None) -> None:
    said = in_vain(assignments(ast.parse(code)), NAMES)
    assert (said and said.split(" of the program")[0]) == names


def test_the_snippet_says_so_when_it_has_run(collector: Collector) -> None:
    assert collector.run("RATE = 5")[1] == (
        "probe: RATE of the program stays as it was: an assignment in a snippet makes a variable of its own "
        "(attributes and items of the program's objects can be set)\n"
    )
    assert collector.run("RATE = 5; 1 / 0")[1] == ""
