"""What recording costs in instructions, where it is too little to see in time: `make bench-instructions`.

Runs training loops under valgrind's callgrind (Debian: valgrind), which counts the instructions of all threads of the
process: the recording itself, and the background thread that analyses and sends the rows. Blocks of steps with detail
off and every-step alternate in one process; the ratio of neighbouring blocks, its least, median and greatest. Steps of a
process without the agent show what steps without detail cost; what the agent does once a second counts there too, for more steps
than it does otherwise. A step takes some fifty times as long as without valgrind;
BLAS and the like see a processor without AVX-512, which makes the steps' own work more, and the ratio less, than on one.
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

from overhead import Collector

HERE = pathlib.Path(__file__).resolve().parent
STEPS = {"gpt": 4, "tiny": 20, "ddp": 20}  # a block
BOUNDS = {"gpt": 1.005, "tiny": 1.08, "ddp": 1.08}


def worker(kind: str, blocks: int, plain: bool) -> None:
    """In the training process: prints when a block begins and when it has ended, and waits for the answer each time."""
    import torch
    from models import make

    torch.set_num_threads(1)
    if kind == "ddp":  # One rank: its operations do all that those of several ranks do, but wait for no other rank.
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    step = make(kind)
    if not plain:
        import probe_agent

    def say(word: str) -> None:
        print(word, flush=True)
        sys.stdin.readline()

    for _ in range(3):
        step()
    for block in range(blocks):
        for detail in ("off",) if plain else ("off", "every-step") if block % 2 else ("every-step", "off"):
            if not plain:
                probe_agent.configure(detail=detail)
            for _ in range(2):  # the switch takes effect at a step boundary
                step()
            say("begin")
            for _ in range(STEPS[kind]):
                step()
            say(detail)
    print(json.dumps({} if plain else probe_agent.status()["layers"]), flush=True)


class Counted:
    """A worker under callgrind."""

    def __init__(self, kind: str, blocks: int, environment: dict[str, str], directory: str, plain: bool) -> None:
        self.directory = pathlib.Path(directory)
        callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--vgdb=yes", "--error-limit=no", "-q"]
        files = [f"--callgrind-out-file={directory}/counts", f"--log-file={directory}/valgrind.log"]
        script = [sys.executable, str(HERE / "instructions.py"), "--worker", "--kind", kind, "--blocks", str(blocks)]
        script += ["--plain"] if plain else []
        environment = dict(environment, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        self.process = subprocess.Popen(
            [*callgrind, *files, *script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.dumps = 0

    def control(self, *arguments: str) -> None:
        command = ["callgrind_control", *arguments, str(self.process.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")

    def counted(self) -> int:
        """Instructions since the last call."""
        # Callgrind is not switched off and on: its sums are wrong after that.
        self.control("--dump")
        self.dumps += 1
        text = (self.directory / f"counts.{self.dumps}").read_text()
        found = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
        if found is None:
            sys.exit("callgrind's file has no sum")
        return int(found[1])

    def run(self) -> tuple[dict[str, list[int]], dict[str, str]]:
        """Instructions of each block, by detail; and the agent's layers."""
        counts: dict[str, list[int]] = {"off": [], "every-step": []}
        counting = False
        assert self.process.stdin and self.process.stdout
        for line in self.process.stdout:
            word = line.strip()
            if word == "begin" and not counting:
                counting = True
                self.control("--instr=on")
            elif word == "begin":
                self.control("--zero")
            elif word in counts:
                counts[word].append(self.counted())
            else:
                return counts, json.loads(word)
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        sys.exit(f"the training ended with {self.process.wait()}")


def count(
    kind: str, blocks: int, environment: dict[str, str], plain: bool
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Runs a worker of its own as `Counted.run` does."""
    with tempfile.TemporaryDirectory() as directory:
        counted = Counted(kind, blocks, environment, directory, plain)
        try:
            return counted.run()
        finally:
            counted.process.kill()
            counted.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--kind", choices=sorted(STEPS))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.kind, args.blocks, args.plain)
        return
    if not shutil.which("callgrind_control"):
        sys.exit("callgrind is not here; hint: apt install valgrind")
    collector = Collector(args.probe)
    try:
        for kind in [args.kind] if args.kind else ["gpt", "tiny", "ddp"]:
            counts, layers = count(kind, args.blocks, collector.agent_environment(), plain=False)
            alone, _ = count(kind, 2, {key: value for key, value in os.environ.items() if key != "PROBE"}, plain=True)
            ratios = [on / off for on, off in zip(counts["every-step"], counts["off"])]
            off = statistics.median(counts["off"]) / STEPS[kind]
            more = statistics.median(counts["every-step"]) / STEPS[kind] - off
            print(f"{kind}: {off / 1e6:.1f} M instructions a step, {more / 1e6:+.3f} M at every-step, layers {layers}")
            middle, least, most = statistics.median(ratios), min(ratios), max(ratios)
            print(f"  every-step / off   {middle:.4f}  [{least:.4f}, {most:.4f}]   bound {BOUNDS[kind]}")
            without = statistics.median(alone["off"]) / STEPS[kind]
            print(f"  off / no agent     {off / without:.4f}  ({(off - without) / 1e6:+.3f} M a step)", flush=True)
    finally:
        collector.stop()


if __name__ == "__main__":
    main()
