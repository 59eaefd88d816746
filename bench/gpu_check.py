"""Device times on a real GPU, against torch.profiler: `make gpu-check`. Without one it says so and measures nothing.

A GPT step (batch 8 x 512 tokens, 6 layers of 1024) runs with the agent, and under torch.profiler with a range around every
module's call. Compared is each module's total device time in forward, mean of the same steps: within 5 % for modules above
50 µs that hold no others. Of those that do, the profiler says what their kernels took and the agent also what lay between
these, so both are only shown. What each module's forward keeps allocated is compared with what hooks of our own see: it must be the
same. Of NCCL's synchronous operations (a group of one rank that copies 256 MiB) the agent's times are compared with those of
events around them, within 5 %. Last, blocks of steps without the agent, with it, and under torch.profiler in turn give what
each costs, for this step and for a small one, whose kernels the device finishes faster than the host launches them.
The exit status is 1 where a bound is missed.
"""

import argparse
import statistics
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import GPT
from overhead import median_ratio
from torch import nn

STEPS = 20
WITHIN, ABOVE = 0.05, 50e-6
#: Cycles for which the device is kept busy, some 100 ms.
QUEUED = 2 * 10**8


def training(hidden: int, batch: int, length: int) -> tuple[nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = GPT(hidden=hidden, length=length)
        ids = torch.randint(0, 1000, (batch, length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.device("cuda"):
            F.cross_entropy(model(ids).view(-1, 1000), ids.view(-1)).backward()
        optimizer.step()

    return model, step


@contextmanager
def around_modules(model: nn.Module, before: Callable[[str], None], after: Callable[[str], None]) -> Iterator[None]:
    """Calls `before` and `after` with a module's name around each of its calls."""
    handles = []
    for name, module in model.named_modules():
        name = name or type(model).__name__
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: before(name)))
        handles.append(module.register_forward_hook(lambda *_, name=name: after(name)))
    yield
    for handle in handles:
        handle.remove()


def forward_times(model: nn.Module, step: Callable[[], None]) -> tuple[dict[str, float], dict[str, float]]:
    """Mean total device time in forward by module, in seconds: the agent's, and torch.profiler's of the same steps, by ranges
    that hooks put around modules."""
    from probe_agent import _native as native
    from torch.profiler import ProfilerActivity, profile, record_function

    open_ranges: list[record_function] = []

    def before(name: str) -> None:
        open_ranges.append(record_function("module:" + name))
        open_ranges[-1].__enter__()

    def after(_name: str) -> None:
        open_ranges.pop().__exit__(None, None, None)

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    native.take_rows()
    with around_modules(model, before, after), profile(activities=activities) as profiler:
        for _ in range(STEPS):
            # The device is busy until the step is queued, so that the times have no wait for the host.
            torch.cuda.synchronize()
            torch.cuda._sleep(QUEUED)
            step()
            native.analyse()
        torch.cuda.synchronize()
    native.analyse()
    rows = native.take_rows()["python.torch_trace"]
    times = defaultdict(list)
    for row in rows:
        if row["stage"] == "forward" and row["total_duration"] is not None:
            times[row["module"]].append(row["total_duration"])
    known = sum(row["total_duration"] is not None for row in rows)
    print(f"{known} of {len(rows)} rows have a device time")
    on_device = [e for e in profiler.key_averages() if e.key.startswith("module:") and e.device_time_total > 0]
    theirs = {e.key.removeprefix("module:"): e.device_time_total / e.count * 1e-6 for e in on_device}
    return {module: statistics.mean(durations) for module, durations in times.items()}, theirs


def differently_allocated(model: nn.Module, step: Callable[[], None]) -> list[str]:
    """Modules whose `allocated_delta` differs from `torch.cuda.memory_allocated` after less before them, without the modules
    within. One of 64 steps has the column."""
    from probe_agent import _native as native

    by_hooks: dict[str, list[int]] = defaultdict(list)
    within: list[int] = [0]
    began: list[int] = []

    def before(_name: str) -> None:
        within.append(0)
        began.append(torch.cuda.memory_allocated())

    def after(name: str) -> None:
        delta, inner = torch.cuda.memory_allocated() - began.pop(), within.pop()
        within[-1] += delta
        by_hooks[name].append(delta - inner)

    native.take_rows()
    rows: list[dict[str, Any]] = []
    with around_modules(model, before, after):
        for _ in range(65):
            by_hooks.clear()
            step()
            native.analyse()
            taken = [row for row in native.take_rows()["python.torch_trace"] if row["stage"] == "forward"]
            rows = [row for row in taken if row["allocated_delta"] is not None]
            if rows:
                break
    mine: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        mine[row["module"]].append(round(row["allocated_delta"] * 1e6))
    print(f"{len(rows)} forward rows of a step have allocated_delta, of {sum(map(len, by_hooks.values()))} calls")
    differing = ((name, sizes) for name, sizes in by_hooks.items() if mine.get(name) != sizes)
    return [f"{name}: {mine.get(name)} bytes, hooks say {sizes}" for name, sizes in differing]


def nccl_times() -> tuple[float | None, float]:
    """Median time of a synchronous all_gather, in ms: the agent's, and that of events around the call."""
    from probe_agent import _native as native

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    native.take_rows()
    given = torch.ones(64 << 20, device="cuda")
    gathered = torch.empty_like(given)
    theirs = []
    for _ in range(STEPS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(10**7)  # The device is busy until all is queued, so that the times have no wait for the host.
        begin.record()
        dist.all_gather_into_tensor(gathered, given)
        end.record()
        end.synchronize()
        theirs.append(begin.elapsed_time(end))
    native.analyse()
    rows = [row for row in native.take_rows()["python.nccl_trace"] if row["bytes"] == given.nbytes]
    mine = [row["duration_ms"] for row in rows if row["duration_ms"] is not None]
    print(f"{len(mine)} of {len(rows)} rows of NCCL have a duration")
    dist.destroy_process_group()
    return statistics.median(mine) if mine else None, statistics.median(theirs)


def analyse_until(over: threading.Event) -> None:
    """Analyses as often as the agent's own thread does."""
    from probe_agent import _native as native

    while not over.wait(0.1):
        native.analyse()


def costs(step: Callable[[], None], blocks: int) -> dict[str, tuple[float, float, float]]:
    """Ratios of blocks of steps on the device's clock to plain ones of the same round: with the agent at each detail and, in
    every fifth round, under torch.profiler, which people would otherwise leave on. A block's first step is not timed."""
    import probe_agent.torch as agent
    from probe_agent import _native as native
    from torch.profiler import ProfilerActivity, profile

    def timed() -> float:
        step()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(STEPS):
            step()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def block(kind: str) -> float:
        if kind in ("plain", "plain again"):
            return timed()
        if kind == "torch.profiler":
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
                return timed()
        agent.install()
        native.set_detail(kind == "every-step")
        over = threading.Event()
        thread = threading.Thread(target=analyse_until, args=(over,))
        thread.start()
        taken = timed()
        over.set()
        thread.join()
        native.take_rows()
        native.set_detail(True)
        agent.uninstall()
        return taken

    kinds = ["plain", "plain again", "off", "every-step"]
    pairs_by_kind: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(blocks):
        among = kinds if number % 5 else [*kinds, "torch.profiler"]
        turn = number % len(among)
        took = {kind: block(kind) for kind in among[turn:] + among[:turn]}
        for kind in among[1:]:
            pairs_by_kind[kind].append((took[kind], took["plain"]))
    plain = statistics.median(took for _, took in pairs_by_kind["plain again"]) / STEPS
    print(f"a plain step takes {plain:.2f} ms")
    return {kind: median_ratio([a for a, _ in pairs], [b for _, b in pairs]) for kind, pairs in pairs_by_kind.items()}


def compare(model: nn.Module, mine: dict[str, float], theirs: dict[str, float]) -> int:
    """Prints both times of every module, and says how many without others in them differ by more than the bound."""
    missed = 0
    leaves = {name for name, module in model.named_modules() if not any(module.children())}
    print(f"{'module':24} {'agent, µs':>10} {'profiler, µs':>13}   difference")
    for module, theirs_seconds in sorted(theirs.items(), key=lambda item: -item[1]):
        if theirs_seconds <= ABOVE:
            continue
        mine_seconds = mine.get(module)
        difference = None if mine_seconds is None else mine_seconds / theirs_seconds - 1
        wrong = module in leaves and (difference is None or abs(difference) > WITHIN)
        missed += wrong
        shown = "missing" if mine_seconds is None else f"{mine_seconds * 1e6:10.1f}"
        percent = "" if difference is None else f"{difference:+.1%}"
        print(f"{module:24} {shown:>10} {theirs_seconds * 1e6:13.1f}   {percent}{' MISSED' if wrong else ''}")
    print(f"{missed} modules differ by more than {WITHIN:.0%}" if missed else "all within 5 %", flush=True)
    return missed


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here: nothing was checked")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    torch.set_float32_matmul_precision("high")
    model, step = training(1024, 8, 512)
    for _ in range(5):
        step()
    import probe_agent.torch as agent
    from probe_agent import _native as native

    agent.install()
    native.analyse()  # Finds the driver and makes events.
    step()
    missed = compare(model, *forward_times(model, step))
    different = differently_allocated(model, step)
    print("\n".join(different) or "allocated_delta is what hooks see")
    gathering, around = nccl_times()
    same = gathering is not None and abs(gathering / around - 1) <= WITHIN
    print(
        f"NCCL, a synchronous all_gather: {gathering} ms, events {around:.3f} ms{'' if same else ' MISSED'}", flush=True
    )
    agent.uninstall()
    small = training(256, 1, 32)[1]
    for _ in range(5):
        small()
    for what, measured_step, blocks in (
        ("8 x 512 tokens, 6 layers of 1024", step, 20),
        ("1 x 32 tokens, 6 layers of 256", small, 40),
    ):
        print(f"time of a step over that of a plain one, {what}:")
        for kind, (ratio, low, high) in costs(measured_step, blocks).items():
            print(f"  {kind:15} {ratio:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    return 1 if missed or different or not same else 0


if __name__ == "__main__":
    sys.exit(main())
