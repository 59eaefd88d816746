"""Functions and operators that a program's own modes of torch see: the same with the agent as without it."""

from __future__ import annotations

import difflib
import io
from typing import Any

import torch
from recording_support import Net, in_process
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)


class Functions(TorchFunctionMode):
    """Notes every function of torch that is called."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(f"function {resolve_name(func) or func}")
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Notes every operator that runs."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(f"operator {func}")
        return func(*args, **(kwargs or {}))


class Part(nn.Module):
    """Computes its block again in backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


def seen(agent: bool, layers: str = "all") -> list[str]:
    """What modes see of a training that does everything at which the agent looks."""
    import probe_agent

    noted: list[str] = []
    torch.manual_seed(3)
    with Functions(noted), Operators(noted):
        if agent:
            import probe_agent.torch
            from probe_agent import _native

            probe_agent.torch.install()
            assert _native.set_policy(1, 1, layers, False)
        noted.append("training begins")
        model = nn.Sequential(Net(16, 2), Part(16), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        data = torch.utils.data.TensorDataset(torch.randn(32, 16))
        for epoch in range(2):
            for (x,) in probe_agent.watch(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)):
                with probe_agent.span("step"):
                    optimizer.zero_grad()
                    loss = model(x).square().mean()
                    scaler.scale(loss).backward()
                    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                probe_agent.log(loss=loss.detach(), norm=norm)
                noted.append("a step is over")
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
            torch.save(model.state_dict(), io.BytesIO())
            if epoch == 0:
                model[1].other = nn.Linear(16, 16)
        # A graph without an optimizer, a module alone, a grad, and a second optimizer.
        nn.ReLU()(x)
        x = x.requires_grad_()
        torch.autograd.grad(nn.Linear(16, 1)(x).sum(), x)
        other = torch.optim.SGD(model.parameters(), lr=1e-2)
        model(x).sum().backward()
        other.step()
        noted.append("training ends")
        if agent:
            rows = _native.take_rows()
            assert len(rows["python.steps"]) >= 8 and rows["python.torch_trace"], rows
            problem = _native.problem()
            probe_agent.torch.uninstall()
            assert problem == "", problem
    return noted


def different(layers: str) -> list[str]:
    plain, recorded = in_process(seen, arguments=(False,)), in_process(seen, layers, (True,))
    return list(difflib.unified_diff(plain, recorded, "plain", "recorded", lineterm="", n=2))


def test_modes_of_the_program_see_nothing_of_the_agent() -> None:
    lines = different("")
    assert not lines, "\n".join(lines)
