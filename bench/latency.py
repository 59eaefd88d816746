"""How long a person waits: `make bench-latency`.

Whole processes, median of --runs with the least and the most: `probe bench query "SELECT 1"` against a live collector
(bound 50 ms), `probe PID stack` of a process of two threads (bound 150 ms) and how long --pause stops it (bound 5 ms, by
its own word), `probe attach PID` into a live run until the agent records (bound 100 ms from Python 3.14 on, 50 before),
each with a `probe detach` after it, and what an activated agent adds to the start of Python before torch is imported (bound
10 ms; a plain start is measured in turn with it, and the difference of the medians is what counts).
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from overhead import Collector


def seconds(command: list[str], environment: dict[str, str], stderr: int | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=stderr)
    return time.perf_counter() - began


def show(name: str, samples: list[float]) -> None:
    ordered = sorted(1000 * s for s in samples)
    print(f"{name:44} {statistics.median(ordered):7.1f} ms   [{ordered[0]:.1f}, {ordered[-1]:.1f}]", flush=True)


TWO_THREADS = """
import threading, time
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
print("ready", flush=True)
time.sleep(3600)
"""


def stacks(probe: str, runs: int) -> None:
    """Measures whole commands that read one process, each of which finds the interpreter anew."""
    child = subprocess.Popen(
        [sys.executable, "-c", TWO_THREADS], env=dict(os.environ, PROBE="0"), stdout=subprocess.PIPE
    )
    try:
        assert child.stdout and child.stdout.readline()
        command = [probe, str(child.pid), "stack"]
        whole = [seconds(command, dict(os.environ)) for _ in range(runs)]
        pages = [subprocess.run([*command, "--pause"], capture_output=True, text=True).stdout for _ in range(runs)]
        stopped = [float(re.findall(r"stopped for ([\d.]+) ms", page)[0]) / 1000 for page in pages]
        show("probe PID stack   (bound 150)", whole)
        show("probe PID stack --pause, stopped   (bound 5)", stopped)
    finally:
        child.kill()
        child.wait()


TRAINING = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(64, 256)
step = 0
while True:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 100:
        print("ready", flush=True)
"""


def attaches(probe: str, runs: int, environment: dict[str, str]) -> None:
    """Measures whole commands that put the agent into a training process without one."""
    unaware = {key: value for key, value in os.environ.items() if not key.startswith("PROBE")}
    child = subprocess.Popen([sys.executable, "-c", TRAINING], env=unaware, stdout=subprocess.PIPE)
    try:
        assert child.stdout and child.stdout.readline()
        attach = [probe, "attach", str(child.pid), "--name", "bench-run"]
        samples: dict[str, list[float]] = {"attach": [], "detach": []}
        for _ in range(runs):
            for name, command in (("attach", attach), ("detach", [probe, "detach", str(child.pid)])):
                samples[name].append(seconds(command, environment, subprocess.DEVNULL))
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        bound = 100 if sys.version_info >= (3, 14) else 50
        show(f"probe attach PID, Python {version}   (bound {bound})", samples["attach"])
        show("  the first, which imports the agent", samples["attach"][:1])
        show("probe detach PID", samples["detach"])
    finally:
        child.kill()
        child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--runs", type=int, default=40)
    args = parser.parse_args()
    collector = Collector(args.probe)
    try:
        query = [args.probe, f"unix:{collector.socket}", "query", "SELECT 1"]
        version = [args.probe, "--version"]
        samples: dict[str, list[float]] = {"query": [], "version": []}
        for _ in range(args.runs):
            samples["query"].append(seconds(query, collector.environment))
            samples["version"].append(seconds(version, collector.environment))
        show('probe bench query "SELECT 1"   (bound 50)', samples["query"])
        show("probe --version", samples["version"])

        stacks(args.probe, args.runs)
        attaches(args.probe, args.runs, collector.environment)

        nothing = [sys.executable, "-c", "pass"]
        package = [sys.executable, "-c", "import probe_agent"]
        plain = dict(os.environ, PROBE="0")
        active = collector.agent_environment()
        starts: dict[str, list[float]] = {"plain": [], "active": [], "import": []}
        for _ in range(args.runs):
            starts["plain"].append(seconds(nothing, plain))
            starts["active"].append(seconds(nothing, active))
            starts["import"].append(seconds(package, active))
        show("python -c pass", starts["plain"])
        show("python -c pass, PROBE=1", starts["active"])
        show("python -c 'import probe_agent', PROBE=1", starts["import"])
        base = statistics.median(starts["plain"])
        for name in ("active", "import"):
            more = 1000 * (statistics.median(starts[name]) - base)
            print(f"{name + ' - plain':44} {more:7.1f} ms   (bound 10)")
    finally:
        collector.stop()


if __name__ == "__main__":
    main()
