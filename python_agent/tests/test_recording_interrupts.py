"""Exceptions that a signal's handler raises between any two lines of the program."""

from __future__ import annotations

import random
import signal
import sys
from typing import Any, Callable

import torch
import torch.distributed as dist
from recording_support import Net, Recorder, in_process
from torch.utils.data import DataLoader


class Stop(Exception):
    pass


def raises_after(number: int, work: Callable[[], None]) -> bool:
    """Run ``work``, and raise when it has called a function of ours for this time. False where there are not so many calls."""
    from probe_agent import _native

    calls = 0

    def profile(frame: Any, event: str, function: Any) -> None:
        nonlocal calls
        if event == "c_return" and getattr(_native, getattr(function, "__name__", ""), None) is function:
            calls += 1
            if calls == number:
                raise Stop

    sys.setprofile(profile)
    try:
        work()
    except Stop:
        pass
    finally:
        sys.setprofile(None)
    return calls >= number


def test_an_exception_after_any_call_of_ours_leaves_nothing_open(recorder: Recorder) -> None:
    import probe_agent

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(2, 32), batch_size=2)

    def step() -> None:
        for _ in probe_agent.watch([0]):
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()

    step()
    number = 1
    while raises_after(number, step):
        step()
        assert recorder.native.boundary_reached(), f"not between two steps any more after call {number}"
        number += 1
    assert number > 4
    recorder.native.set_problem("")
    recorder.take()
    step()
    rows = recorder.take()
    assert {row["stage"] for row in rows["python.torch_trace"]} == {"forward", "backward", "step"}
    (last,) = rows["python.steps"]
    assert all(last[part] > 0 for part in ("data_time", "forward_time", "backward_time", "optimizer_time"))


def deadlines(fired_at_least: int) -> list[int]:
    """Sets deadlines within steps that clip gradients and reduce them, as programs do whose steps must not take too long. Returns
    how many passed, and how many of them the program noticed."""
    import probe_agent.torch as agent

    fired = caught = 0

    def passed(*_: Any) -> None:
        nonlocal fired
        fired += 1
        raise Stop

    agent.install()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    x, gradient = torch.ones(4, 32), torch.ones(4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for _ in range(4):
            dist.all_reduce(gradient)
        optimizer.step()

    # Modules are imported in the first steps, and Python itself loses what is raised while it lets go of a module's lock.
    for _ in range(20):
        step()
    signal.signal(signal.SIGALRM, passed)
    while fired < fired_at_least:
        torch.set_grad_enabled(True)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
                step()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Stop:
            caught += 1
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    dist.destroy_process_group()
    agent.uninstall()
    return [fired, caught]


def test_a_deadline_that_passes_in_a_step_is_noticed_by_the_program() -> None:
    fired, caught = in_process(deadlines, arguments=(1000,))
    assert fired == caught >= 1000
