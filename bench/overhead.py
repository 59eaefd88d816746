"""What recording costs: `make bench-overhead`.

Two measurements, each for a GPT of 6 layers and for a hundred tiny layers, CPU time of the whole process (all threads):

- on/off: blocks of steps with detail off and every-step alternating in one process; the median of the ratios of
  neighbouring blocks with its 95 % bootstrap interval. The collector's CPU meanwhile, as a share of one core.
- against plain: whole processes, plain, off and every-step in turn; ratios of the medians. Two processes of the same
  kind differ by 3 to 5 % by themselves, which the row `plain again` shows.

Prints a table, and with --json FILE writes the figures.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
STEPS = {"gpt": 12, "tiny": 150}  # a block, about half a second
BOUNDS = {"gpt": 1.01, "tiny": 1.10}


def median_ratio(on: list[float], off: list[float]) -> tuple[float, float, float]:
    """The median of pairwise ratios with its 95 % bootstrap interval (2000 resamples, fixed seed)."""
    ratios = [a / b for a, b in zip(on, off)]
    draw = random.Random(0)
    resampled = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), resampled[50], resampled[1949]


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, user and system."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def worker_alternating(kind: str, blocks: int) -> None:
    """In the training process: alternate, and print the CPU seconds of every block as JSON."""
    import probe_agent
    from models import make

    step = make(kind)
    for _ in range(STEPS[kind]):
        step()
    seconds: dict[str, list[float]] = {"off": [], "every-step": []}
    collector = int(os.environ["BENCH_COLLECTOR_PID"])
    collector_before, wall_before, taken = cpu_of(collector), time.perf_counter(), 0
    for block in range(blocks):
        for detail in ("off", "every-step") if block % 2 else ("every-step", "off"):
            probe_agent.configure(detail=detail)
            step()  # the switch takes effect at a step boundary
            before = time.process_time()
            for _ in range(STEPS[kind]):
                step()
            seconds[detail].append(time.process_time() - before)
            taken += STEPS[kind] + 1
    wall = time.perf_counter() - wall_before
    share = (cpu_of(collector) - collector_before) / wall
    status = probe_agent.status()
    print(json.dumps({**seconds, "collector": share, "ms": 1000 * wall / taken, "layers": status["layers"]}))


def worker_whole(kind: str, blocks: int) -> None:
    """In a process of its own: the median CPU seconds of a block."""
    from models import make

    step = make(kind)
    for _ in range(STEPS[kind]):
        step()
    seconds = []
    for _ in range(blocks):
        before = time.process_time()
        for _ in range(STEPS[kind]):
            step()
        seconds.append(time.process_time() - before)
    print(json.dumps(statistics.median(seconds)))


class Collector:
    """A `probe serve` for this benchmark."""

    def __init__(self, probe: str) -> None:
        self.directory = tempfile.mkdtemp(prefix="probe-bench-")
        self.socket = f"{self.directory}/door/bench.sock"
        os.mkdir(f"{self.directory}/door", 0o700)
        self.environment = dict(os.environ, PROBE_HOME=self.directory, PROBE_RUNTIME_DIR=f"{self.directory}/run")
        self.process = subprocess.Popen(
            [probe, "serve", "--name", "bench-run", "--listen", f"unix:{self.socket}"], env=self.environment
        )
        deadline = time.monotonic() + 20
        while not os.path.exists(self.socket):
            if time.monotonic() > deadline or self.process.poll() is not None:
                sys.exit("the collector did not start")
            time.sleep(0.01)

    def agent_environment(self, **more: str) -> dict[str, str]:
        return dict(
            self.environment,
            PROBE="1",
            PROBE_COLLECTOR=f"unix:{self.socket}",
            PROBE_RUN="bench-run",
            BENCH_COLLECTOR_PID=str(self.process.pid),
            **more,
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        shutil.rmtree(self.directory, ignore_errors=True)


def run(mode: str, kind: str, blocks: int, environment: dict[str, str]):
    command = [sys.executable, str(HERE / "overhead.py"), "--worker", mode, "--kind", kind, "--blocks", str(blocks)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5, help="whole processes of each kind")
    parser.add_argument("--kind", choices=sorted(STEPS))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--worker", choices=["alternating", "whole"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        {"alternating": worker_alternating, "whole": worker_whole}[args.worker](args.kind, args.blocks)
        return

    figures: dict[str, dict] = {}
    collector = Collector(args.probe)
    try:
        for kind in [args.kind] if args.kind else ["gpt", "tiny"]:
            measured = run("alternating", kind, args.blocks, collector.agent_environment())
            ratio, low, high = median_ratio(measured["every-step"], measured["off"])
            plain = dict(os.environ, PROBE="0")
            variants = {
                "plain": plain,
                "plain again": plain,
                "off": collector.agent_environment(PROBE_DETAIL="off"),
                "every-step": collector.agent_environment(PROBE_DETAIL="every-step"),
            }
            whole: dict[str, list[float]] = {name: [] for name in variants}
            for _ in range(args.rounds):
                for name, environment in variants.items():
                    whole[name].append(run("whole", kind, max(args.blocks // 4, 4), environment))
            base = statistics.median(whole["plain"])
            against = {name: statistics.median(values) / base for name, values in whole.items() if name != "plain"}
            figures[kind] = {
                "step_ms": measured["ms"], "on_off": ratio, "low": low, "high": high, "bound": BOUNDS[kind],
                "collector_core_share": measured["collector"], "against_plain": against, "layers": measured["layers"],
            }  # fmt: skip
            print(f"{kind}: {measured['ms']:.1f} ms a step, layers {measured['layers']}")
            print(f"  every-step / off   {ratio:.4f}  [{low:.4f}, {high:.4f}]   bound {BOUNDS[kind]}")
            print(f"  collector          {100 * measured['collector']:.2f} % of a core   bound 3 %")
            for name, value in against.items():
                # Two processes differ by themselves: against a plain one 5 % more is allowed than within one.
                bound = f"{BOUNDS[kind] * 1.05:.3f}" if name == "every-step" else "-"
                print(f"  {name:12} / plain {value:.4f}   bound {bound}", flush=True)
    finally:
        collector.stop()
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
