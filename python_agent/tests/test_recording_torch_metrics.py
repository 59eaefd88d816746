"""Numbers that are read where torch has them anyway: the loss, the norm of the gradients, skipped steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from recording_support import Net, Recorder, in_process

torch.set_num_threads(1)


class _Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """The operations that are dispatched while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def losses_without_a_log() -> dict[str, Any]:
    """What backward() began from in each step, what was recorded of it, and the operations of those passes."""
    import probe_agent.torch as agent

    agent.install()
    recorder, model, seen = Recorder(), Net(), _Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    losses = []
    for step in range(80):
        model.to((torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)[step // 16])
        x = torch.randn(4, 32, dtype=model.head.weight.dtype)
        # Neither begins from a loss: one from many numbers, and one keeps its gradients for itself.
        model(x).backward(torch.ones_like(x))
        torch.autograd.grad(model(x).sum(), list(model.parameters()))
        loss = model(x).sum() + (float("inf") if 20 <= step < 32 else 0.0)
        losses.append(loss.item())
        with seen:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = recorder.take()
    first = rows["python.steps"][0]["step"]
    found = [(row["step"], row["name"], row["value"]) for row in rows["python.metrics"]]
    return {"first": first, "rows": found, "losses": losses, "seen": seen.names}


def test_the_number_that_backward_begins_from_is_noted_in_one_step_of_16() -> None:
    found = in_process(losses_without_a_log)
    # Numbers of half precision are left alone.
    losses = {step: loss for step, loss in enumerate(found["losses"], found["first"])}
    assert found["rows"] == [[step, "torch.loss", losses[step]] for step in (8, 24, 40, 56)]
    assert not np.isfinite(losses[24]) and np.isfinite(losses[8])
    # It is read without an operation, which a mode of the program's would see.
    assert found["seen"] and not any("item" in name or "scalar" in name for name in found["seen"])


def test_numbers_that_torch_computes_anyway(recorder: Recorder) -> None:
    ours = torch.nn.utils.clip_grad_norm_
    model, x = Net(), torch.randn(4, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    norms = []
    for factor in (1.0, float("inf")):
        scaler.scale(model(x).sum() * factor).backward()
        scaler.unscale_(optimizer)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    rows = [(row["name"], row["value"]) for row in recorder.take()["python.metrics"] if row["name"] != "torch.loss"]
    assert [value for name, value in rows if name == "torch.amp.skipped_step"] == [0.0, 1.0]
    found = [value for name, value in rows if name == "torch.clip_grad_norm_"]
    assert found[0] == norms[0] and not np.isfinite(found[1]) and len(rows) == 4
    # Where optimizers scale by themselves, a skipped step can't be told from one that is not.
    fused = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(x).sum()).backward()
    scaler.step(fused)
    assert all(row["name"] == "torch.loss" for row in recorder.take()["python.metrics"])

    # No break of the graph where the program has none.
    clip = torch.compile(
        lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), backend="eager", fullgraph=True
    )
    clip()

    import probe_agent.torch as agent

    agent.uninstall()
    assert (
        torch.nn.utils.clip_grad_norm_ is not ours and torch.amp.GradScaler.step.__module__ == "torch.amp.grad_scaler"
    )
