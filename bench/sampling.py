"""What being sampled costs training: part of `make bench-latency`.

A training process without an agent runs blocks of steps, in turn alone and under `probe PID stack --duration … --rate 100`,
which reads its memory from outside while it runs on. Printed is the median of the ratios of neighbouring blocks with its
95 % bootstrap interval, of the time that passed and of the CPU time of all threads (bound 1.02), and how many samples a
second were really taken. The sampler wants a core of its own: on a machine without an idle one it competes for it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time

from overhead import HERE, STEPS, median_ratio

BOUND, RATE = 1.02, 100
BLOCKS_OF = 4  # blocks of half a second, as overhead.py takes them


def worker(kind: str) -> None:
    """Runs a block for each line it reads, and prints the seconds that passed and those of the processor."""
    import torch
    from models import make

    torch.set_num_threads(1)
    step = make(kind)
    for _ in range(STEPS[kind]):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(BLOCKS_OF * STEPS[kind]):
            step()
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


class Training:
    """A worker of its own."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, str(HERE / "sampling.py"), "--worker", kind]
        environment = dict(os.environ, PROBE="0", OMP_NUM_THREADS="1")
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def block(self) -> list[float]:
        assert self.process.stdin and self.process.stdout
        print(file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def sampled(probe: str, training: Training, seconds: float) -> tuple[list[float], float]:
    """A block under the sampler, which is at work before it begins and until after it has ended; samples a second."""
    command = [probe, str(training.process.pid), "stack", "--duration", f"{seconds:.0f}s", "--rate", str(RATE)]
    sampler = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(0.5)
    block = training.block()
    if sampler.poll() is not None:
        sys.exit("the sampler ended before the block did")
    page = sampler.communicate()[0]
    taken = re.search(r"(\d+) samples", page)
    if taken is None:
        sys.exit(f"the sampler does not say how many samples it took:\n{page}")
    return block, int(taken[1]) / seconds


def measure(probe: str, kind: str, pairs: int) -> None:
    training = Training(kind)
    try:
        seconds = 2 * training.block()[0] + 2
        on: list[list[float]] = []
        off: list[list[float]] = []
        rates: list[float] = []
        for pair in range(pairs):
            for with_sampler in (False, True) if pair % 2 else (True, False):
                if with_sampler:
                    block, rate = sampled(probe, training, seconds)
                    on.append(block)
                    rates.append(rate)
                else:
                    off.append(training.block())
        for place, what in enumerate(("time", "CPU time")):
            ratio, low, high = median_ratio([block[place] for block in on], [block[place] for block in off])
            print(f"{kind}, {what:8} sampled / alone   {ratio:.4f}  [{low:.4f}, {high:.4f}]   bound {BOUND}")
        print(f"{kind}, samples a second   {sum(rates) / len(rates):.1f} of {RATE}", flush=True)
    finally:
        training.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--worker", choices=sorted(STEPS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return
    for kind in STEPS:
        measure(args.probe, kind, args.pairs)


if __name__ == "__main__":
    main()
