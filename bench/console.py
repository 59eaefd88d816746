"""What a line of an open console takes: `python bench/console.py PID_OR_RUN [--lines N]`, beside a run that trains.

Two doors of one console each: a pipe, through which `>>> 1+1` goes N times (bounds: p50 2 ms, p99 20 ms, beside steps of
50 ms), and a terminal, on which names of the process are completed (bound 50 ms; what takes longer is given up).
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "e2e"))
from terminal import CTRL_C, CTRL_D, TAB, Terminal


def show(name: str, samples: list[float]) -> None:
    ordered = sorted(1000 * sample for sample in samples)
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.9, 0.99)]
    print(f"{name:40} p50 {at[0]:6.2f}  p90 {at[1]:6.2f}  p99 {at[2]:6.2f}  most {ordered[-1]:6.2f} ms", flush=True)


def lines(probe: str, endpoint: str, count: int) -> list[float]:
    console = subprocess.Popen([probe, endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert console.stdin and console.stdout
    samples = []
    for _ in range(count + 10):
        began = time.perf_counter()
        console.stdin.write(">>> 1+1\n")
        console.stdin.flush()
        assert console.stdout.readline() == "2\n"
        samples.append(time.perf_counter() - began)
    console.stdin.close()
    assert console.wait() == 0
    return samples[10:]


def completions(probe: str, endpoint: str, count: int) -> tuple[list[float], int]:
    """From the key to the completed word, and how often there was none."""
    console = Terminal([probe, endpoint], {**os.environ, "NO_COLOR": "1"})
    console.until("> ")
    samples, given_up = [], 0
    for _ in range(count):
        console.type(">>> print(model.named_par")
        console.until("named_par")
        began = time.perf_counter()
        console.type(TAB)
        while "named_parameters" not in console.seen and time.perf_counter() < began + 0.1:
            console.read(0.01)
        if "named_parameters" in console.seen:
            samples.append(time.perf_counter() - began)
        else:
            given_up += 1
        console.type(CTRL_C)
        console.until(lambda seen: re.search(r"> $", seen))
    console.type(CTRL_D)
    console.end()
    return samples, given_up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint")
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--lines", type=int, default=1000)
    args = parser.parse_args()
    show(">>> 1+1   (bounds 2 and 20)", lines(args.probe, args.endpoint, args.lines))
    samples, given_up = completions(args.probe, args.endpoint, 100)
    show("completion of a name   (bound 50)", samples)
    print(f"given up: {given_up} of {len(samples) + given_up}")


if __name__ == "__main__":
    main()
