"""What snippets take, and what training pays: `python bench/console.py [PID_OR_RUN] [--lines N]`.

Beside the run that is named, or beside one of this benchmark's own, a GPT with steps of some 50 ms:

- `probe RUN eval 1+1` as a whole command (bound: p50 30 ms).
- `>>> 1+1` N times through the pipe of one open console (bounds: p50 2 ms, p99 20 ms), as fast as it answers.
- A name of the process completed on a terminal (bound 50 ms; what takes longer is given up, and counted).
- Training's speed during `time.sleep(5)` in a snippet, over that of the five seconds before it (bound 0.97); the median of
  the rounds, each of the median step's duration.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "e2e"))
from terminal import CTRL_C, CTRL_D, TAB, Terminal

HERE = pathlib.Path(__file__).resolve().parent


def show(name: str, samples: list[float]) -> None:
    if not samples:
        print(f"{name:40} none")
        return
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
    """Seconds from the key to the completed word, and how often none came."""
    console = Terminal([probe, endpoint], {**os.environ, "NO_COLOR": "1"})
    console.until("> ")
    samples: list[float] = []
    given_up = 0
    for number in range(count):
        # Two names in turn, since a late answer is kept for the next press of the key at the same name.
        begun, whole = (("named_par", "named_parameters"), ("named_mod", "named_modules"))[number % 2]
        console.type(f">>> print(model.{begun}")
        console.until(begun)
        began = time.perf_counter()
        console.type(TAB)
        while whole not in console.seen and time.perf_counter() < began + 0.1:
            console.read(0.01)
        if whole in console.seen:
            samples.append(time.perf_counter() - began)
        else:
            given_up += 1
        console.type(CTRL_C)
        console.until(lambda seen: re.search(r"> $", seen))
    console.type(CTRL_D)
    console.end()
    return samples, given_up


def commands(probe: str, endpoint: str, count: int) -> list[float]:
    """Measures whole commands."""
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        done = subprocess.run([probe, endpoint, "eval", "1+1"], capture_output=True, text=True, check=True)
        samples.append(time.perf_counter() - began)
        assert done.stdout == "2\n"
    return samples


def query(probe: str, endpoint: str, sql: str) -> list[dict]:
    done = subprocess.run([probe, endpoint, "query", "--format", "json", sql], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else []


def newest(probe: str, endpoint: str) -> int:
    rows = query(probe, endpoint, "SELECT MAX(step) AS step FROM python.steps")
    return -1 if not rows or rows[0]["step"] is None else int(rows[0]["step"])


def speed_beside_a_snippet(probe: str, endpoint: str, rounds: int) -> list[float]:
    """The ratios of training's speed with the snippet to that without, one a round."""
    ratios = []
    for _ in range(rounds):
        first = newest(probe, endpoint)
        time.sleep(5)
        second = newest(probe, endpoint)
        subprocess.run([probe, endpoint, "eval", "import time; time.sleep(5)"], check=True, capture_output=True)
        third = newest(probe, endpoint)
        # The steps in which the phases meet are left out.
        spans = ((first + 1, second - 1), (second + 2, third - 1))
        medians = [
            query(probe, endpoint, f"SELECT median(duration) AS m FROM python.steps WHERE step BETWEEN {a} AND {b}")
            for a, b in spans
        ]
        ratios.append(medians[0][0]["m"] / medians[1][0]["m"])
    return ratios


TRAINING = """
import sys
sys.path.insert(0, sys.argv[1])
from models import make_model
model, step = make_model("gpt")
while True:
    step()
"""


@contextmanager
def own_training(probe: str) -> Iterator[str]:
    """Starts a training run for this benchmark; returns its name."""
    with tempfile.TemporaryDirectory(prefix="probe-bench-") as home:
        os.environ.update(PROBE_HOME=home, PROBE_RUNTIME_DIR=f"{home}/run")
        command = [probe, "run", "--name", "bench-run", "--", sys.executable, "-c", TRAINING, str(HERE)]
        run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 120
            while newest(probe, "bench-run") < 20:
                if time.monotonic() > deadline or run.poll() is not None:
                    sys.exit("the training did not start")
                time.sleep(0.2)
            yield "bench-run"
        finally:
            run.terminate()
            run.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint", nargs="?")
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.endpoint:
        measure(args, args.endpoint)
    else:
        with own_training(args.probe) as endpoint:
            measure(args, endpoint)


def measure(args: argparse.Namespace, endpoint: str) -> None:
    since = newest(args.probe, endpoint)
    show("probe RUN eval 1+1   (bound 30)", commands(args.probe, endpoint, args.runs))
    show(">>> 1+1   (bounds 2 and 20)", lines(args.probe, endpoint, args.lines))
    samples, given_up = completions(args.probe, endpoint, 100)
    show("completion of a name   (bound 50)", samples)
    print(f"given up: {given_up} of {len(samples) + given_up}")
    steps = query(args.probe, endpoint, f"SELECT median(duration) AS m FROM python.steps WHERE step > {since}")
    print(f"training's median step meanwhile: {1000 * steps[0]['m']:.1f} ms")
    ratios = speed_beside_a_snippet(args.probe, endpoint, args.rounds)
    print(
        f"training's speed during time.sleep(5) over without   (bound 0.97): {statistics.median(ratios):.3f}"
        f"   [{min(ratios):.3f}, {max(ratios):.3f}]"
    )


if __name__ == "__main__":
    main()
