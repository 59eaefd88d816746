"""What a capture costs the steps that it captures, and the others: `make bench-capture`.

One process trains a small GPT under `probe run`. In turn, blocks of steps are captured by `probe capture --with none`, captured with
modules, and profiled by torch.profiler in the loop itself; between them are steps that nothing looks at. The figures are CPU time of
a step (`python.steps.cpu_time`), medians with 95 % intervals by order statistics, and the same over the median of the plain steps.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

STEPS = 5
LOOP = """
import pathlib, sys, torch
sys.path.insert(0, sys.argv[1])
from train_gpt import GPT, Config
from torch.profiler import ProfilerActivity, profile, record_function
torch.set_num_threads(1)
order, said = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
config = Config()
model = GPT(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
ids = torch.randint(0, config.vocab_size, (4, config.max_position_embeddings))
step, own, until = 0, None, -1
while (text := order.read_text()) != "end":
    if own is None and text == "profile":
        order.write_text("")
        own, until = profile(activities=[ProfilerActivity.CPU]), step + 5
        own.start()
    with record_function(f"ProfilerStep#{step}"):
        loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    step += 1
    if step == until:
        own.stop()
        own = None
        with said.open("a") as file:
            print(step, file=file)
"""


def interval(values: list[float]) -> str:
    ordered = sorted(values)
    outside = max(1, int((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2))
    return (
        f"{statistics.median(ordered):7.2f} ms [{ordered[outside - 1]:.2f}, {ordered[-outside]:.2f}] of {len(ordered)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=str(pathlib.Path(sys.executable).parent / "probe"))
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    examples = pathlib.Path(__file__).resolve().parents[1] / "examples"
    with tempfile.TemporaryDirectory(prefix="probe-bench") as made:
        home = pathlib.Path(made)
        order, said = home / "order", home / "said"
        order.write_text("")
        said.write_text("")
        (home / "run").mkdir(mode=0o700)
        environment = dict(os.environ, PROBE_HOME=str(home / "state"), PROBE_RUNTIME_DIR=str(home / "run"))
        command = [
            args.probe,
            "run",
            "--name",
            "measured",
            "--",
            sys.executable,
            "-c",
            LOOP,
            str(examples),
            str(order),
            str(said),
        ]
        training = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

        def probe(*words: str) -> str:
            done = subprocess.run([args.probe, "measured", *words], env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout

        def rows(sql: str) -> list[dict]:
            return json.loads(probe("query", "--format", "json", sql))

        try:
            time.sleep(15)
            for round_ in range(args.rounds):
                for what in ("none", "modules"):
                    probe("capture", "--steps", str(STEPS), "--with", what)
                    time.sleep(0.5)
                order.write_text("profile")
                while len(said.read_text().split()) <= round_:
                    time.sleep(0.05)
                time.sleep(0.5)
            captures = rows("SELECT first_step, last_step, waited FROM python.captures ORDER BY first_step")
        finally:
            order.write_text("end")
            training.wait()
        said_steps = said.read_text().split()
        steps = rows("SELECT step, cpu_time * 1e3 AS cpu FROM python.steps WHERE NOT warmup AND cpu_time IS NOT NULL")
    cpu = {row["step"]: row["cpu"] for row in steps}
    # The first step of each capture is left out: the profiler starts in it.
    kinds = {
        "captured": [step for one in captures[::2] for step in range(one["first_step"] + 1, one["last_step"] + 1)],
        "captured with modules": [
            step for one in captures[1::2] for step in range(one["first_step"] + 1, one["last_step"] + 1)
        ],
        "torch.profiler by hand": [step for end in map(int, said_steps) for step in range(end - STEPS + 1, end)],
        "the five steps after a capture": [
            step for one in captures for step in range(one["last_step"] + 2, one["last_step"] + 7)
        ],
    }
    ends = {int(end) - each for end in said_steps for each in (0, STEPS)}
    touched = ends.union(*kinds.values())
    plain = [milliseconds for step, milliseconds in cpu.items() if step not in touched]
    print(f"{'plain':32} {interval(plain)}")
    for kind, captured in kinds.items():
        values = [cpu[step] for step in captured if step in cpu]
        print(f"{kind:32} {interval(values)}: {statistics.median(values) / statistics.median(plain):.3f}")
    print(f"{'training stood still':32} {interval([1000 * one['waited'] for one in captures])}")


if __name__ == "__main__":
    main()
