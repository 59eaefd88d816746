"""What being sampled costs training: part of `make bench-latency`.

A training process without an agent runs blocks of steps, in turn alone and under `probe PID stack --duration … --rate 100`,
which reads its memory from outside while it runs on, and is made to stand still (SIGSTOP) for the other blocks. Printed
is the median of the ratios of neighbouring blocks with its 95 % bootstrap interval, of the time that passed and of the CPU
time of all threads (bound 1.02), and how many samples a second were really taken. The sampler wants a core of its own: on
a machine without an idle one it competes for it.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from overhead import HERE, STEPS, median_ratio

BOUND, RATE = 1.02, 100


def worker(kind: str) -> None:
    """Runs a block for each line it reads, and prints the seconds that passed and those of the processor."""
    from models import make

    step = make(kind)
    for _ in range(STEPS[kind]):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(STEPS[kind]):
            step()
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


class Training:
    """A training process without an agent."""

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


class Sampler:
    """`probe PID stack --duration`, made to stand still in between."""

    def __init__(self, probe: str, pid: int, seconds: int) -> None:
        command = [probe, str(pid), "stack", "--duration", f"{seconds}s", "--rate", str(RATE)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.began = time.monotonic()
        self.ends = self.began + seconds
        self.running = 0.0

    def stand_still(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.running += time.monotonic() - self.began

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.began = time.monotonic()

    def rate(self) -> float:
        """Samples a second of the time in which the sampler ran, once it has ended."""
        self.go_on()
        page = self.process.communicate()[0]
        self.running += self.ends - self.began
        taken = re.search(r"(\d+) samples", page)
        if taken is None:
            sys.exit(f"the sampler does not say how many samples it took:\n{page}")
        return int(taken[1]) / self.running

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(probe: str, kind: str, seconds: int) -> None:
    training = Training(kind)
    sampler = Sampler(probe, training.process.pid, seconds)
    try:
        training.block()  # Meanwhile the sampler finds the interpreter.
        sampler.stand_still()
        on: list[list[float]] = []
        off: list[list[float]] = []
        while time.monotonic() < sampler.ends - 5:
            for with_sampler in (False, True) if len(on) % 2 else (True, False):
                if not with_sampler:
                    off.append(training.block())
                    continue
                sampler.go_on()
                on.append(training.block())
                sampler.stand_still()
        rate = sampler.rate()
        for index, what in enumerate(("time", "CPU time")):
            ratio, low, high = median_ratio([block[index] for block in on], [block[index] for block in off])
            missed = "   MISSED" if ratio > BOUND else ""
            print(f"{kind}, {what:8} sampled / alone   {ratio:.4f}  [{low:.4f}, {high:.4f}]   bound {BOUND}{missed}")
        print(f"{kind}, samples a second   {rate:.1f} of {RATE}; {len(on)} pairs of blocks", flush=True)
    finally:
        sampler.stop()
        training.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--seconds", type=int, default=100, help="of each model")
    parser.add_argument("--worker", choices=sorted(STEPS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return
    for kind in STEPS:
        measure(args.probe, kind, args.seconds)


if __name__ == "__main__":
    main()
