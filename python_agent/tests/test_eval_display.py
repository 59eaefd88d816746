"""How a snippet's last value is shown."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from probe_agent.eval import display
from torch import nn


def shown(value: object, beside: bool = True) -> str:
    return display.text(value, beside)


def test_a_tensor_is_its_numbers_in_words() -> None:
    value = torch.tensor([[1.0, 2.0, float("nan")], [4.0, float("inf"), -5.0]])
    assert shown(value) == (
        "tensor shape=(2, 3) dtype=float32 device=cpu\n"
        "  min -5  mean 0.5  max 4 (of the finite ones)  nan 1  inf 1\n"
        "  values [1, 2, nan, 4, inf, -5]"
    )
    assert shown(torch.arange(10)) == (
        "tensor shape=(10,) dtype=int64 device=cpu\n  min 0  mean 4.5  max 9\n  values [0, 1, 2, 3, 4, 5, ...]"
    )
    weight = nn.Parameter(torch.full((2,), 0.5, dtype=torch.bfloat16))
    assert shown(weight).startswith("Parameter shape=(2,) dtype=bfloat16 device=cpu requires_grad\n  min 0.5  mean 0.5")
    loss = (weight.float() * 2).sum()
    assert shown(loss) == "tensor shape=() dtype=float32 device=cpu grad_fn=SumBackward0\n  value 2"
    assert "true 3 of 4" in shown(torch.tensor([True, True, False, True]))
    assert shown(torch.empty(0)).endswith("no values")
    assert shown(torch.full((3,), float("nan"))).splitlines()[1] == "  nan 3  inf 0"
    assert "values [(1+2j)" in shown(torch.tensor([1 + 2j, 0j]))


@pytest.mark.parametrize("shape", [(3, 1 << 20), (1 << 21,), (1 << 20, 3), (2, 2, 1 << 19)])
def test_a_large_tensor_is_reduced_in_parts_and_shown_shortly(shape: tuple[int, ...]) -> None:
    value = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
    text = shown(value)
    last = value.numel() - 1
    assert f"min 0  mean {last / 2:.6g}  max {last:.6g}  nan 0  inf 0" in text
    assert "values [0, 1, 2" in text and len(text) < 300
    assert shown(value.t() if value.dim() == 2 else value).count("\n") == 2


def test_what_is_too_large_or_has_no_values_is_said() -> None:
    huge = torch.empty(1).expand(display.MAX_REDUCED + 1)
    assert "min, mean, max not computed: 16,777,217 elements" in shown(huge)
    assert "no values on the meta device" in shown(torch.empty(3, 4, device="meta"))
    assert "layout=sparse_coo" in shown(torch.eye(2).to_sparse()) and "values not read" in shown(
        torch.eye(2).to_sparse()
    )


class OnDevice:
    """A stand-in for a tensor on a device that fails if its values are read."""

    def __init__(self, count: int) -> None:
        self.count = count

    def numel(self) -> int:
        return self.count

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"read {name}")


def test_beside_training_a_large_tensor_on_a_device_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    value = OnDevice(display.MAX_COPIED + 1)
    value.layout, value.is_quantized, value.device = torch.strided, False, torch.device("cuda:0")  # type: ignore[attr-defined]
    fake = type("Torch", (), {"Tensor": OnDevice, "nn": nn, "strided": torch.strided})
    (line,) = display._numbers(fake, value, beside=True)
    assert "values not read: of a tensor of 65,537 elements on a device" in line and "--at step" in line
    with pytest.raises(AssertionError, match="read detach"):
        display._numbers(type("Torch", (fake,), {"no_grad": torch.no_grad}), value, beside=False)


def test_no_gradient_is_recorded() -> None:
    weight = torch.ones(3, requires_grad=True)
    before = weight.grad_fn
    shown(weight)
    assert weight.grad is None and weight.grad_fn is before and torch.is_grad_enabled()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = nn.BatchNorm1d(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(100)])
        self.head.weight.requires_grad = True
        self.norm.eval()

    def named_parameters(self, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("ran")


def test_a_module_is_its_parameters() -> None:
    text = shown(Tied())
    lines = text.splitlines()
    assert lines[0] == "Tied, in training mode (1 of its 105 modules not)"
    # Shared parameters count once: 40 of the embedding, 8 of the norm, 100 layers of 20.
    assert lines[1] == "  2,048 parameters (all trained), float32, cpu, 9 in buffers"
    assert "  embedding: Embedding(10, 4)  40 parameters" in lines
    assert "    0: Linear(in_features=4, out_features=4, bias=True)  20 parameters" in lines
    assert len(lines) <= display.MAX_LINES + 1 and "more modules" in lines[-1]
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert "6 parameters (0 of them trained)" in shown(frozen.eval()) and "in evaluation mode" in shown(frozen)
    assert "no parameters" in shown(nn.ReLU())
    assert "LazyLinear" in shown(nn.LazyLinear(3))


def test_containers_are_cut_and_their_tensors_short() -> None:
    assert shown({1: "x"}) == "{1: 'x'}"
    assert (shown([]), shown((1,)), shown(set()), shown({3})) == ("[]", "(1,)", "set()", "{3}")
    assert shown(list(range(1000))) == f"[{', '.join(map(str, range(20)))}, ... (980 more)]"
    assert shown({"w": torch.ones(3)}) == "{'w': <tensor shape=(3,) dtype=float32 device=cpu>}"
    assert shown((nn.Linear(2, 2),)) == "(<Linear, 6 parameters>,)"
    assert shown([[[[1, 2]]]]) == "[[[[... 2 elements]]]]"
    assert shown(["x" * 10_000]).count("x") < 600
    assert shown(OrderedDict(a=1)) == "OrderedDict('a': 1)"
    assert shown(defaultdict(int, a=1)) == "defaultdict('a': 1)"
    again: list[Any] = [1]
    again.append(again)
    assert "..." in shown(again)


def test_everything_else_speaks_for_itself() -> None:
    class Mine:
        def __repr__(self) -> str:
            return "mine" * 10_000

    assert len(shown(Mine())) < 11_000 and "30000 more characters" in shown(Mine())
    assert (shown("a\nb"), shown(1.5), shown(None)) == ("'a\\nb'", "1.5", "None")
