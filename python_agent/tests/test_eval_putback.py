"""Modes that snippets switch between two steps are put back before training goes on."""

from __future__ import annotations

import torch
from eval_support import Collector, train_until_done
from probe_agent.eval.putback import put_back
from torch import nn


def between_steps(collector: Collector, code: str) -> tuple[str, str, str, str]:
    collector.send("arm", code)
    collector.armed()
    return train_until_done(collector)


def test_evaluation_mode_is_put_back_and_said(collector: Collector) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    model[2].eval()  # frozen on purpose
    train = nn.Module.train
    out, err, outcome, _ = between_steps(collector, "model.eval()\nprint(model.training, model[1].training)")
    assert (out, outcome) == ("False False\n", "ok")
    assert err == "probe: put back: Sequential and 2 modules with it in training mode, which the snippet had left\n"
    assert [part.training for part in model.modules()] == [True, True, True, False]
    assert nn.Module.train is train
    # A snippet that restores the mode itself gets no message, and an assignment stays.
    assert between_steps(collector, "model.eval()\nmodel.train()\nmodel[2].eval()")[1] == ""
    assert between_steps(collector, "model[1].training = False")[1] == ""
    assert not model[1].training


def test_it_is_put_back_after_an_error_too(collector: Collector) -> None:
    model = nn.Linear(2, 2)
    _, err, outcome, error = between_steps(collector, "model.eval()\n1 / 0")
    assert outcome == "error" and "ZeroDivisionError" in error and "put back: Linear in training mode" in err
    assert model.training


def test_the_threads_own_switches_are_put_back(collector: Collector) -> None:
    _, err, *_ = between_steps(
        collector, "import torch\ntorch.set_grad_enabled(False)\ntorch.set_default_dtype(torch.float64)"
    )
    assert "gradients are on on the training thread" in err and "default dtype is torch.float32" in err
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32


def test_a_method_that_was_replaced_meanwhile_stays() -> None:
    before = nn.Module.train

    def other(self: nn.Module, mode: bool = True) -> nn.Module:
        return before(self, mode)

    try:
        with put_back(lambda line: None):
            nn.Module.train = other  # type: ignore[method-assign]
        assert nn.Module.train is other
    finally:
        nn.Module.train = before  # type: ignore[method-assign]
