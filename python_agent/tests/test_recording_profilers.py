"""What a program's own profilers and tracers of Python see of the agent: its wrappers, and nothing that they call."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

import pytest
import torch
from recording_support import Net, in_process

torch.set_num_threads(1)

#: The functions of the agent that Python or torch calls in place of others, or beside them. What they call is native.
WRAPPERS = {
    "torch/environment.py:optimizer_stepped",
    "torch/layers.py:skipped_by_dynamo",
    "torch/memory.py:_after_step",
    "torch/memory.py:sample",
    "torch/modules.py:_registered",
    "torch/numerics.py:clip_grad_norm_",
    "torch/optimizer.py:_pre",
    "torch/optimizer.py:patch_step_function",
    "torch/optimizer.py:profile_hook_step",
    "torch/optimizer.py:step",
    "torch/parents.py:note",
    "torch/unseen.py:called",
}


def functions(how: str) -> list[list[str]]:
    """The agent's functions that were seen in each step."""
    import probe_agent.torch

    package = os.path.dirname(probe_agent.__file__)
    found: list[str] = []

    def note(filename: str, name: str) -> None:
        if filename.startswith(package):
            found.append(f"{os.path.relpath(filename, package)}:{name}")

    def profile(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call":
            note(frame.f_code.co_filename, frame.f_code.co_name)
        return None

    if how == "monitoring":
        monitoring = sys.monitoring  # type: ignore[attr-defined]  # of Python 3.12
        monitoring.use_tool_id(4, "test")
        monitoring.register_callback(
            4, monitoring.events.PY_START, lambda code, _: note(code.co_filename, code.co_name)
        )
        monitoring.set_events(4, monitoring.events.PY_START)
    else:
        {"profile": sys.setprofile, "trace": sys.settrace}[how](profile)
    probe_agent.torch.install()
    model = Net(16, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 16)), batch_size=8)
    steps = []
    for _ in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps.append(found[:])
            found.clear()
    return steps


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no switch for it before")
@pytest.mark.parametrize("how", ["profile", "trace", "monitoring"])
def test_profilers_of_the_program_see_wrappers_only(how: str) -> None:
    if how == "monitoring" and sys.version_info < (3, 12):
        pytest.skip("sys.monitoring came with Python 3.12")
    steps = in_process(functions, arguments=(how,))
    seen = {name for step in steps for name in step if not name.startswith("torch/__init__.py")}
    assert "torch/optimizer.py:step" in seen and seen <= WRAPPERS, seen - WRAPPERS
    # A step in the middle of an epoch.
    assert len(steps[2]) <= 5, steps[2]
