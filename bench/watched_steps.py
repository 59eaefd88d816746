"""What it costs to watch the operators of a step: part of `make bench-overhead`.

Steps with and without it alternate in one process, CPU time of all its threads, with detail in each step. For a GPT, a hundred
tiny layers and a ResNet-18: the median of the ratios of neighbouring steps with its 95 % bootstrap interval, and what is left of
it where one of 16 steps is watched (the first steps of a run) and one of 64.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time

from overhead import Collector, median_ratio

HERE = pathlib.Path(__file__).resolve().parent
KINDS = ["gpt", "tiny", "resnet"]
STRIDES = (16, 64)


def worker(kind: str, pairs: int) -> None:
    """In the training process: prints the CPU seconds of the steps as JSON."""
    from models import make
    from probe_agent import _native

    step = make(kind)
    for _ in range(20):
        step()
    seconds: dict[str, list[float]] = {"watched": [], "not": []}
    for pair in range(pairs):
        for watched in (False, True) if pair % 2 else (True, False):
            _native.watch_operators(watched)
            before = time.process_time()
            step()
            seconds["watched" if watched else "not"].append(time.process_time() - before)
    _native.watch_operators(False)
    print(json.dumps(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.kind, args.pairs)
        return
    collector = Collector(args.probe)
    try:
        for kind in [args.kind] if args.kind else KINDS:
            command = [sys.executable, str(HERE / "watched_steps.py"), "--worker", "--kind", kind]
            environment = dict(collector.agent_environment(PROBE_DETAIL="every-step"), OMP_NUM_THREADS="1")
            done = subprocess.run(
                [*command, "--pairs", str(args.pairs)], env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            measured = json.loads(done.stdout.splitlines()[-1])
            ratio, low, high = median_ratio(measured["watched"], measured["not"])
            spread = ", ".join(f"one of {stride}: {100 * (ratio - 1) / stride:.2f} %" for stride in STRIDES)
            print(f"{kind}: a watched step / another {ratio:.3f} [{low:.3f}, {high:.3f}]; {spread}", flush=True)
    finally:
        collector.stop()


if __name__ == "__main__":
    main()
