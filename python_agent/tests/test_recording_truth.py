"""Recorded times against others' clocks: torch.profiler on the same calls, and a loop that times its own parts."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict

import pytest
import torch
from recording_support import Net, PassClock, Recorder, least_difference, median_ratio, train
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.timing

torch.set_num_threads(1)

STEPS = 12


def module_calls(profiler: profile) -> list[tuple[str, float]]:
    """Class and seconds of every module call that the profiler saw, in the order in which they began."""
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    # In the tree, since before 2.9 the flat list has nothing of Python's; and without names, of which 2.5 has broken ones.
    left, events = list(profiler.profiler.kineto_results.experimental_event_tree()), []
    while left:
        event = left.pop()
        left += event.children
        kind, said = event.typed
        if kind == _EventType.PyCall and said.module is not None:
            events.append((event.start_time_ns, -event.duration_time_ns, said.module.cls_name))
    # A call and the first one within it may begin in the same nanosecond: the longer one is the outer.
    events.sort()
    return [(name, -duration * 1e-9) for _, duration, name in events]


def test_modules_take_what_torch_profiler_says(recorder: Recorder) -> None:
    model = Net(256, 4)
    optimizer, x = torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(512, 256)
    train(model, optimizer, x, 3)
    recorder.take()
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        train(model, optimizer, x, STEPS)
    rows = [row for row in recorder.take()["python.torch_trace"] if row["stage"] == "forward"]
    rows.sort(key=lambda row: (row["ts"], row["depth"]))
    theirs = module_calls(profiler)
    # The same calls in the same order.
    assert [row["module_type"] for row in rows] == [kind for kind, _ in theirs]
    ours, profiled = defaultdict(list), defaultdict(list)
    for row, (_, seconds) in zip(rows, theirs):
        ours[row["module"]].append(row["total_duration"])
        profiled[row["module"]].append(seconds)
    large = [module for module, seconds in profiled.items() if statistics.median(seconds) > 200e-6]
    assert {"Net", "layers.0", "layers.3.up"} <= set(large)
    for module in large:
        assert len(ours[module]) == STEPS
        assert median_ratio(ours[module], profiled[module]) == pytest.approx(1.0, abs=0.05), module


def test_parts_are_what_the_loop_itself_timed(recorder: Recorder) -> None:
    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, item: int) -> torch.Tensor:
            # Tens of milliseconds: the loader's own Python beside what is recorded takes 0.06 ms in cold caches, and half a
            # millisecond where neighbours of a virtual machine share its memory.
            x = torch.full((256, 512), float(item))
            for _ in range(800):
                x = x.sin()
            return x

    model, clock = Net(512, 6), time.perf_counter
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    loader = iter(torch.utils.data.DataLoader(Slow(), batch_size=None))
    for _ in range(5):
        train(model, optimizer, next(loader), 1)
    backward = PassClock(*model.layers[0].parameters())
    recorder.native.mark_step()
    last = clock()
    hand = defaultdict(list)
    for _ in range(12):
        t0 = clock()
        x = next(loader)
        t1 = clock()
        output = model(x)
        t2 = clock()
        loss = backward.watch(output.square().mean())
        loss.backward()
        t4 = clock()
        optimizer.step()
        t5 = clock()
        optimizer.zero_grad()
        hand["data_time"].append(t1 - t0)
        hand["forward_time"].append(t2 - t1)
        hand["backward_time"].append(backward.end - backward.begin)
        hand["optimizer_time"].append(t5 - t4)
        hand["duration"].append(t5 - last)
        last = t5
        # Freed here, because assigning the next ones would free these between two clocks.
        del x, output, loss
    steps = recorder.take()["python.steps"][-12:]
    for column, times in hand.items():
        # Only for parts of which two per cent are more than two reads of the clock and a call.
        assert statistics.median(times) > 0.5e-3, column
        recorded = [step[column] for step in steps]
        assert least_difference(recorded, times) < 0.02, column
        assert median_ratio(recorded, times) == pytest.approx(1.0, abs=0.05), column
