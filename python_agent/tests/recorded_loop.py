"""The steps that the agent makes of a loop in this process."""

from __future__ import annotations

from typing import Any, Callable

import torch
from recording_support import Net, Recorder
from torch import nn


def recorded(loop: Callable[[nn.Module, torch.Tensor], None]) -> dict[str, Any]:
    """The steps of a loop."""
    import probe_agent.torch as agent

    agent.install()
    with Unmarked():
        recorder = Recorder()
    first = recorder.native.step()
    torch.manual_seed(0)
    loop(Net(), torch.randn(4, 32))
    boundary = recorder.native.boundary_reached()
    rows = recorder.take()
    steps, trace = rows["python.steps"], rows["python.torch_trace"]
    backward = [row["step"] - first for row in trace if row["stage"] == "backward" and row["module"] == "Net"]
    return {
        "steps": [[at["step"] - first, at["micro_steps"], at["samples"]] for at in steps],
        "kinds": sorted({at["kind"] for at in steps}),
        "warmup": [[at["kind"], at["warmup"]] for at in steps],
        "counted": recorder.native.step() - first,
        "backward": backward,
        "optimizers": [row["step"] - first for row in trace if row["stage"] == "step"],
        "whole": all(at["forward_time"] > 0 and at["backward_time"] > 0 for at in steps),
        "boundary": boundary,
        "problem": recorder.native.problem(),
        "drops": [list(key) for key in rows["probe.drops"]],
    }


class Unmarked:
    """No step is marked by hand, so that none has ended yet."""

    def __enter__(self) -> None:
        from probe_agent import _native

        self.mark, _native.mark_step = _native.mark_step, lambda: None

    def __exit__(self, *_: object) -> None:
        from probe_agent import _native

        _native.mark_step = self.mark
