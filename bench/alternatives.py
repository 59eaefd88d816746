"""What recording costs beside the alternatives: part of `make bench-overhead`.

Blocks of steps alternate in one process, CPU time of all its threads: without anything, the agent at every step, the same
with modules called directly (PROBE_LAYERS=forward=fast_call, for those who ask for it), the agent at the stride that its
governor chose for this model (auto), torch.profiler on the CPU, full backward hooks with forward hooks on every module.
Each block is divided by the mean of the two plain ones around it; medians with their 95 % bootstrap intervals. Blocks of
auto, and the plain ones around them, are so long that what is done in few steps only is in each once. On a GPT, a
hundred tiny layers, a ResNet-18 on 64x64 pictures, and the tiny layers on two ranks (DDP over gloo; rank 0's time).

Then what one event costs in a tight loop, what the agent takes of memory, and `import torch` with and without it. Bounds
are those of the project; a figure above its bound is marked. Prints a table, and with --json FILE writes the figures.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
STEPS = {"gpt": 8, "tiny": 100, "resnet": 4, "ddp": 60}  # a block, about a quarter of a second
VARIANTS = ["every-step", "fast-call", "auto", "profiler", "backward-hooks"]
BOUNDS = {
    ("gpt", "every-step"): 1.005, ("tiny", "every-step"): 1.08, ("tiny", "fast-call"): 1.02,
    ("gpt", "auto"): 1.01, ("tiny", "auto"): 1.01, ("resnet", "auto"): 1.01, ("ddp", "auto"): 1.01,
}  # fmt: skip
EVENT_NS, MEMORY_MIB, IMPORT = 40, 32, 1.02
THINNER = 64  # operators are watched in one of this many steps with detail (recording/sampled_steps.rs)
GOVERNED = 200  # looks at the governor, of about a tenth of a second


class Plain:
    """Nothing is recorded, and torch's callback of autograd nodes is off."""

    def __init__(self, step) -> None:
        from probe_agent import _native

        self.native = _native
        self.step = step
        self.__exit__()

    def set(self, stride: int) -> None:
        self.native.enable(True)
        self.native.set_policy(self.native.step() + 1, stride, "all", False)
        self.step()  # it takes effect at a step boundary

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.set(0)
        self.native.enable(False)
        self.step()


class Agent(Plain):
    """The agent, with detail in each `stride`-th step."""

    def __init__(self, step, stride: int) -> None:
        super().__init__(step)
        self.stride = stride

    def __enter__(self) -> None:
        self.set(self.stride)


class Fast(Agent):
    """The agent, and modules are called directly where that has the same effect."""

    def __enter__(self) -> None:
        self.native.use_fast_calls(True)
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        self.native.use_fast_calls(False)
        super().__exit__()


class Hooks:
    """What people write by hand: hooks around forward and backward of every module that read a clock."""

    def __init__(self, model) -> None:
        self.model, self.handles, self.times = model, [], []

    def note(self, *_: object) -> None:
        self.times.append(time.perf_counter())

    def __enter__(self) -> None:
        for module in self.model.modules():
            self.handles.append(module.register_forward_pre_hook(self.note))
            self.handles.append(module.register_forward_hook(self.note))
            self.handles.append(module.register_full_backward_pre_hook(self.note))
            self.handles.append(module.register_full_backward_hook(self.note))

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.times.clear()


def governed_stride(step, steps: int) -> int:
    """The stride at which the governor leaves this model, once it has not changed for about three seconds. A look at it takes this
    many steps. Ranks look equally often: rank 0 says when it is enough."""
    import probe_agent
    import torch
    from probe_agent import _native

    _native.enable(True)
    probe_agent.configure(detail="auto")
    stride = _native.stride()
    same = 0
    for _ in range(GOVERNED):
        for _ in range(steps):
            step()
        now = _native.stride()
        same = same + 1 if now == stride else 0
        found = torch.tensor([same >= 30, now])
        if torch.distributed.is_initialized():
            torch.distributed.broadcast(found, 0)
        stride = int(found[1])
        if found[0]:
            break
    probe_agent.configure(detail="every-step")
    return stride


def worker(kind: str, rounds: int) -> None:
    """In the training process: alternate, and print the CPU seconds of every block as JSON."""
    import torch
    from models import make_model
    from probe_agent import _native
    from torch.profiler import ProfilerActivity, profile

    if kind == "ddp":
        torch.distributed.init_process_group("gloo")
    _native.use_fast_calls(False)  # On only while it is measured.
    model, step = make_model(kind)
    steps = STEPS[kind]

    def block(count: int = steps) -> float:
        before = time.process_time()
        for _ in range(count):
            step()
        return time.process_time() - before

    block()
    stride = governed_stride(step, steps // 2)
    plain = Plain(step)
    variants = {
        "every-step": Agent(step, 1),
        "fast-call": Fast(step, 1),
        "auto": Agent(step, stride),
        "backward-hooks": Hooks(model),
    }
    ratios: dict[str, list[float]] = {name: [] for name in [*VARIANTS, "plain again"]}
    # These blocks come before torch.profiler has run in this process.
    long = max(steps, stride * THINNER)
    with plain:
        before = block(long)
    for _ in range(rounds // 2):
        with variants["auto"]:
            seconds = block(long)
        with plain:
            after = block(long)
        ratios["auto"].append(2 * seconds / (before + after))
        before = after
    with plain:
        before = block()
    for _ in range(rounds):
        for name, values in ratios.items():
            if name == "auto":
                continue
            if name == "profiler":
                begun = time.process_time()
                with profile(activities=[ProfilerActivity.CPU]):
                    for _ in range(steps):
                        step()
                seconds = time.process_time() - begun
            else:
                with variants.get(name, plain):
                    seconds = block()
            with plain:
                after = block()
            values.append(2 * seconds / (before + after))
            before = after
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        print(json.dumps({"ratios": ratios, "stride": stride, "ms": 1000 * before / steps}))
    if kind == "ddp":
        torch.distributed.destroy_process_group()


def worker_event() -> None:
    """Prints the cost of an event in a tight loop, in ns: half of what a call of a module takes longer with detail."""
    import torch
    from probe_agent import _native

    class Nothing(torch.nn.Module):
        def forward(self, x):
            return x

    class Root(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Nothing()

        def forward(self, x):
            inner = self.inner
            begun = time.perf_counter_ns()
            for _ in range(2000):
                inner(x)
            self.took = time.perf_counter_ns() - begun
            return x

    root = Root()
    differences = []
    for _ in range(100):
        took = []
        for stride in (1, 0):
            _native.set_policy(_native.step() + 1, stride, "all", False)
            _native.mark_step()
            root(None)
            took.append(root.took)
        differences.append((took[0] - took[1]) / 4000)
        time.sleep(0.02)  # the rings are read meanwhile
    print(json.dumps(statistics.median(differences)))


def memory_mib(probe: str, collector) -> float:
    """The most that any agent of this collector has used: rings, buffers, names."""
    sql = "SELECT MAX(ring_bytes + buffer_bytes + string_bytes) AS bytes FROM probe.overhead"
    command = [probe, f"unix:{collector.socket}", "query", "--format", "json", sql]
    done = subprocess.run(command, env=collector.environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)[0]["bytes"] / (1 << 20)


def import_ratio(environment: dict[str, str], rounds: int) -> list[float]:
    """Pairwise ratios of the CPU time of `import torch` with the agent to that without."""

    def seconds(environment: dict[str, str]) -> float:
        before = os.times()
        subprocess.run([sys.executable, "-c", "import torch"], env=environment, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    plain = dict(environment, PROBE="0")
    pairs = []
    for number in range(rounds):
        first, second = (environment, plain) if number % 2 else (plain, environment)
        a, b = seconds(first), seconds(second)
        pairs.append(a / b if number % 2 else b / a)
    return pairs


def run(arguments: list[str], environment: dict[str, str], ranks: int = 1):
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*launcher, str(HERE / "alternatives.py"), *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(
        next(line for line in reversed(done.stdout.splitlines()) if line.startswith(("{", "-")) or line[:1].isdigit())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kind", choices=sorted(STEPS), action="append")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--worker", choices=["blocks", "event"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker_event() if args.worker == "event" else worker(args.kind[0], args.rounds)
        return

    from overhead import Collector, median_ratio

    figures: dict[str, object] = {}
    collector = Collector(args.probe)
    environment = collector.agent_environment(OMP_NUM_THREADS="1", KINETO_LOG_LEVEL="99")
    missed = "   MISSED"
    try:
        for kind in args.kind or STEPS:
            ranks = 2 if kind == "ddp" else 1
            more = dict(environment, PROBE_LAYERS="all,forward=fast_call")
            measured = run(["--worker", "blocks", "--kind", kind, "--rounds", str(args.rounds)], more, ranks)
            print(f"{kind}: {measured['ms']:.1f} ms of CPU a step; auto records one step of {measured['stride']}")
            rows = {name: median_ratio(ratios, [1.0] * len(ratios)) for name, ratios in measured["ratios"].items()}
            for name, (ratio, low, high) in rows.items():
                bound = BOUNDS.get((kind, name))
                note = "" if bound is None else f"   bound {bound}{missed if ratio > bound else ''}"
                print(f"  {name:15} {ratio:.4f}  [{low:.4f}, {high:.4f}]{note}", flush=True)
            figures[kind] = {"ms": measured["ms"], "stride": measured["stride"], **rows}
        event = run(["--worker", "event"], environment)
        print(f"an event in a tight loop  {event:.1f} ns   bound {EVENT_NS}{missed if event > EVENT_NS else ''}")
        memory = memory_mib(args.probe, collector)
        print(f"memory of an agent        {memory:.1f} MiB   bound {MEMORY_MIB}{missed if memory > MEMORY_MIB else ''}")
        pairs = import_ratio(environment, args.rounds)
        ratio, low, high = median_ratio(pairs, [1.0] * len(pairs))
        note = missed if ratio > IMPORT else ""
        print(f"import torch              {ratio:.4f}  [{low:.4f}, {high:.4f}]   bound {IMPORT}{note}")
        figures |= {"event_ns": event, "memory_mib": memory, "import": (ratio, low, high)}
    finally:
        collector.stop()
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
