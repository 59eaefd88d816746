"""What is recorded and what `probe diagnose` ought to say of it; recording it (`make diagnose-corpus`).

corpus.py record DIRECTORY [NAME …] [--strength 1.0 0.6 0.3] [--probe probe] [--loaded] [--live] [--gpu]
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from healthy.variants import VARIANTS

HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Planted:
    """A program with something wrong in it, and its twin, the same program without."""

    name: str
    program: str
    plant: str
    #: Rules that name the cause; where none is written yet, nothing finds it.
    rules: tuple[str, ...]
    ranks: int = 1
    #: Values that the finding's `subject` must have: rank, module, part, line.
    subject: tuple[tuple[str, object], ...] = ()
    steps: int = 240
    #: Another program whose twin is the same, and is used instead.
    twin: str = ""
    #: The program trains on a GPU, and has one strength.
    gpu: bool = False
    #: What is wrong is there or is not there: it has one strength, too.
    once: bool = False
    #: Settings of the run.
    environment: tuple[tuple[str, str], ...] = ()
    #: What the program ends with.
    status: int = 0
    #: It is asked about beside its twin (--against), of which it is a later version.
    against_twin: bool = False


PLANTED = [
    Planted("inline", "loading.py", "inline", ("loads-in-loop",), twin="loading"),
    Planted("starved", "loading.py", "starved", ("loader-starved",), twin="loading"),
    Planted("restart", "loading.py", "restart", ("workers-restart", "periodic-stall"), twin="loading"),
    Planted("heavy", "loading.py", "heavy", ("irregular-stall", "bursts-of-batches"), subject=(("part", "data"),), twin="loading"),
    Planted("rank-data", "ranks.py", "data", ("rank-slow", "loads-in-loop"), 2, (("rank", 1), ("part", "data")), twin="ranks"),
    Planted("rank-forward", "ranks.py", "forward", ("module-slow-on-rank", "rank-slow"), 2, (("rank", 1), ("part", "forward")), twin="ranks"),
    Planted("rank-backward", "ranks.py", "backward", ("module-slow-on-rank", "rank-slow"), 2, (("rank", 1), ("part", "backward")), twin="ranks"),
    Planted("rank-other", "ranks.py", "other", ("rank-slow",), 2, (("rank", 1), ("part", "other")), twin="ranks"),
    Planted("crowd", "loading.py", "crowd", ("workers-beyond-cores",), twin="loading"),
    Planted("rank-more", "ranks.py", "more", ("rank-has-more-data",), 2, (("rank", 1),), twin="ranks"),
    Planted("lengths", "ranks.py", "lengths", ("uneven-inputs",), 2, twin="ranks"),
    Planted("norms", "ranks.py", "norms", ("gradient-norms-differ",), 2, twin="ranks"),
    Planted("work", "between.py", "work", ("work-between-parts",), twin="between"),
    Planted("items", "between.py", "items", ("reads-of-tensors", "small-operations-between-parts", "work-between-parts"), twin="between"),
    Planted("copies", "between.py", "copies", ("copies-of-tensors", "work-between-parts"), twin="between"),
    Planted("stall", "between.py", "stall", ("periodic-stall",), subject=(("part", "other"),), twin="between"),
    Planted("hiccup", "between.py", "hiccup", ("irregular-stall",), subject=(("part", "other"),), twin="between"),
    Planted("validation", "between.py", "validation", ("validation-in-steps",), twin="between"),
    Planted("generation", "between.py", "generation", ("calls-without-backward",), twin="between"),
    Planted("checkpoint", "between.py", "checkpoint", ("checkpoint-stalls",), twin="between"),
    Planted("gil", "between.py", "gil", ("gil-held-elsewhere",), twin="between"),
    Planted("garbage", "habits.py", "garbage", ("garbage-collection",), steps=160, twin="habits"),
    Planted("recompile", "habits.py", "recompile", ("compiles-again",), twin="habits"),
    Planted("anomaly", "habits.py", "anomaly", ("debug-switches",), twin="habits"),
    Planted("profiler", "habits.py", "profiler", ("debug-switches",), steps=480, twin="habits"),
    Planted("threads", "habits.py", "threads", ("threads-beyond-cores",), twin="habits"),
    Planted("lock", "habits.py", "lock", ("thread-blocked",), twin="habits"),
    Planted("double", "habits.py", "double", ("double-precision",), twin="habits"),
    Planted("nan", "habits.py", "nan", ("not-finite",), twin="habits"),
    Planted("odd", "modules.py", "odd", ("odd-sibling",), subject=(("module", "blocks.3"),), twin="modules"),
    Planted("denormal", "modules.py", "denormal", ("denormal-numbers",), subject=(("module", "blocks.3.up"),), twin="modules"),
    Planted("recompute", "modules.py", "recompute", ("recompute-not-needed",), twin="modules"),
    Planted("leak", "growth.py", "leak", ("host-leak",), steps=1600, twin="growth"),
    Planted("slower", "growth.py", "slower", ("slower-and-slower",), steps=480, twin="growth"),
    Planted("since", "growth.py", "since", ("slower-since",), steps=480, subject=(("part", "other"),), twin="growth"),
    Planted("rising", "growth.py", "rising", ("loss-rises",), steps=480, twin="growth"),
    Planted("spikes", "growth.py", "spikes", ("loss-spikes",), steps=480, twin="growth"),
    Planted("micro", "collectives.py", "micro", ("reduced-each-micro-step",), 2, twin="collectives"),
    Planted("small", "collectives.py", "small", ("many-small-collectives",), 2, twin="collectives"),
    Planted("barrier", "collectives.py", "barrier", ("barrier-in-steps",), 2, twin="collectives"),
    Planted("uneven", "collectives.py", "uneven", ("uneven-all-to-all",), 2, (("rank", 1),), twin="collectives"),
    # The other names the step of the rank that came late, and its line.
    Planted("stalled", "collectives.py", "stalled", ("stalled-collective", "long-step"), 2, (("rank", 1),), twin="collectives"),
    Planted("stages", "pipeline.py", "stages", ("uneven-stages",), 2, (("rank", 1),), twin="pipeline"),
    Planted("bubble", "pipeline.py", "bubble", ("pipeline-bubble",), 2, twin="pipeline"),
    Planted("unequal", "loading.py", "unequal", ("bursts-of-batches",), twin="loading"),
    Planted("hoard", "loading.py", "hoard", ("workers-leak",), steps=4000, twin="loading"),
    Planted("one-worker", "loading.py", "worker", ("one-slow-worker",), twin="loading"),
    Planted("operations", "calls.py", "operations", ("many-small-operations",), twin="calls"),
    Planted("python", "calls.py", "python", ("python-in-forward",), twin="calls"),
    Planted("average", "calls.py", "average", ("small-operations-between-parts",), twin="calls"),
    Planted("one-sample", "calls.py", "one", ("small-batches",), twin="calls"),
    Planted("quadratic", "calls.py", "quadratic", ("grows-beyond-input", "input-size"), twin="calls"),
    Planted("forgotten", "calls.py", "forgotten", ("parameters-not-optimized",), twin="calls"),
    Planted("new-optimizer", "calls.py", "anew", ("new-optimizer-each-step",), twin="calls"),
    Planted("losses", "calls.py", "losses", ("several-backward-passes",), twin="calls"),
    # The scale is halved until gradients are denormal, which takes most of a step.
    Planted("skipped", "calls.py", "skipped", ("skipped-steps", "not-finite", "denormal-in-backward"), twin="calls"),
    Planted("generate", "calls.py", "generate", ("inference-in-steps",), twin="calls"),
    Planted("unused", "settings.py", "unused", ("unused-parameters",), 2, twin="settings"),
    Planted("buffers", "settings.py", "buffers", ("broadcasts-in-steps",), 2, twin="settings"),
    Planted("differ", "settings.py", "threads", ("ranks-differ",), 2, twin="settings"),
    Planted("neighbour", "settings.py", "neighbour", ("rank-without-processor", "waits-for-a-processor"), 2, (("rank", 1),), twin="settings"),
    Planted("named", "between.py", "named", ("span-between-parts",), subject=(("subject", "histograms"),), twin="between"),
    Planted("once", "between.py", "once", ("long-step",), subject=(("part", "other"),), twin="between"),
    Planted("padding", "sequences.py", "padding", ("padding",), twin="sequences"),
    Planted("lengths-of-batches", "sequences.py", "lengths", ("input-size",), twin="sequences"),
    Planted("sampler", "sequences.py", "sampler", ("slow-sampler",), steps=600, subject=(("part", "data"),), twin="sequences"),
    Planted("embedding", "optimizers.py", "embedding", ("optimizer-bound",), twin="optimizers"),
    Planted("own-optimizer", "optimizers.py", "one-by-one", ("small-operations-in-optimizer",), twin="optimizers"),
    # The other names the same steps, and the part.
    Planted("while", "growth.py", "while", ("slow-for-a-while", "irregular-stall"), steps=480, twin="growth"),
    Planted("begin", "loading.py", "begin", ("workers-start-slowly",), twin="loading"),
    # Between what that rule allows and what work-between-parts does, which is said in its place where there is more of it.
    Planted("hashing", "calls.py", "hashing", ("python-between-parts", "work-between-parts"), twin="calls", once=True),
    Planted("vanishing", "modules.py", "vanishing", ("denormal-in-backward",), subject=(("module", "blocks.3.down"),), twin="modules"),
    Planted("wider", "modules.py", "wider", ("slower-than-reference",), twin="modules", against_twin=True),
    Planted("beside", "habits.py", "beside", ("waits-for-a-processor",), twin="habits"),
    Planted("paging", "files.py", "paging", ("paging",), steps=480, twin="files"),
    Planted("start", "endings.py", "start", ("slow-start",), twin="endings", once=True),
    Planted("exception", "endings.py", "exception", ("ended-badly",), twin="endings", once=True, status=1),
    Planted("stops", "endings.py", "hang", ("hangs",), twin="endings", once=True, environment=(("PROBE_HANG_AFTER", "3s"),)),
    *(Planted(f"gpu-{plant}", "device.py", plant, rules, steps=300, twin="device", gpu=True) for plant, rules in {
        "pageable": ("copies-of-tensors", "work-between-parts"),
        "launches": ("host-bound",),
        "items": ("reads-of-tensors", "work-between-parts", "waits-for-device"),
        "waits": ("waits-for-device",),
        "double": ("double-precision",),
        "foreach": ("optimizer-one-by-one",),
        "starved": ("loader-starved",),
        "cache": ("device-memory-churn",),
        "work": ("work-between-parts",),
        "host": ("copies-of-tensors", "waits-for-device"),
        "attention": (),
        "stall": ("periodic-stall",),
    }.items()),
]  # fmt: skip

#: Healthy programs on a GPU: how each trains.
GPU_LOOPS = ("quiet", "logged", "loader", "accumulated", "scaled", "compiled", "convolutions")

#: Twins by their name: program, ranks, steps.
TWINS = {
    planted.twin: (planted.program, planted.ranks, planted.steps) for planted in reversed(PLANTED) if not planted.gpu
}

#: Healthy programs by their name: the program with its arguments, and its ranks.
HEALTHY = {
    **{name: (["zoo.py", name], 2 if name == "two_ranks" else 1) for name in (
        "mlp", "cnn", "language", "lstm", "epochs", "accumulate", "autoencoder", "warming", "adversarial", "two_ranks")},
    **{name: (["variants.py", name], variant.ranks) for name, variant in VARIANTS.items()},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Run:
    """A program with its arguments, and how it is started and ends."""

    command: list[str]
    ranks: int = 1
    environment: tuple[tuple[str, str], ...] = ()
    status: int = 0


def runs(strengths: list[float]) -> dict[str, Run]:
    """Every run of the corpus by its name."""
    found: dict[str, Run] = {}
    for name, (program, ranks, steps) in TWINS.items():
        found[f"twin-{name}"] = Run([str(HERE / "plants" / program), "--steps", str(steps)], ranks)
    for name, ((program, *words), ranks) in HEALTHY.items():
        found[f"healthy-{name}"] = Run([str(HERE / "healthy" / program), *words], ranks)
    for planted in PLANTED:
        for strength in [] if planted.gpu else [1.0] if planted.once else strengths:
            words = ["--plant", planted.plant, "--strength", str(strength), "--steps", str(planted.steps)]
            command = [str(HERE / "plants" / planted.program), *words]
            found[f"{planted.name}-{strength:g}"] = Run(command, planted.ranks, planted.environment, planted.status)
    return found


def runs_on_gpu() -> dict[str, Run]:
    """The runs of the corpus that need a GPU, likewise."""
    program = str(HERE / "plants" / "device.py")
    found = {f"healthy-gpu-{loop}": Run([program, "--as", loop, "--batch", "32"]) for loop in GPU_LOOPS}
    for planted in PLANTED:
        if planted.gpu:
            found[f"twin-{planted.twin}"] = Run([program, "--steps", str(planted.steps)])
            found[f"{planted.name}-1"] = Run([program, "--plant", planted.plant, "--steps", str(planted.steps)])
    return found


class Failed(Exception):
    """A program of the corpus ended badly."""


def record(name: str, run: Run, directory: pathlib.Path, probe: str, live: bool = False) -> pathlib.Path:
    """Runs a program of the corpus under `probe run`, and returns the run's directory. The answers of `probe diagnose` while it
    runs are kept as a list in DIRECTORY/live."""
    kept = directory / name
    shutil.rmtree(kept, ignore_errors=True)
    python = [sys.executable]
    if run.ranks > 1:
        python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(run.ranks)]
    sockets = tempfile.mkdtemp(prefix="probe-")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PROBE")}
    environment |= {"PROBE_HOME": str(directory / "home"), "PROBE_RUNTIME_DIR": sockets, "OMP_NUM_THREADS": "1"}
    environment |= dict(run.environment)
    if "variants.py" in run.command[0]:
        # Some of these leave the number of threads to torch.
        del environment["OMP_NUM_THREADS"]
    try:
        with tempfile.TemporaryFile("w+") as said:
            command = [probe, "run", "--name", name, "--", *python, *run.command]
            process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
            answers = ask_live(process, [probe, name, "diagnose", "--json", "--no-ask"], environment) if live else []
            if process.wait() != run.status:
                said.seek(0)
                raise Failed(f"{name}: exit status {process.returncode}\n{said.read()}")
        if live:
            (directory / "live").mkdir(exist_ok=True)
            (directory / "live" / f"{name}.json").write_text(json.dumps(answers))
        newest = max((directory / "home/runs").glob(f"{name}@*"), key=lambda path: path.stat().st_mtime)
        newest.rename(kept)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    return kept


def ask_live(process: subprocess.Popen[bytes], command: list[str], environment: dict[str, str]) -> list[dict]:
    """Answers that are requested now and then while `process` runs: seldom, as an answer takes a processor for a while."""
    answers: list[dict] = []
    while process.poll() is None:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode == 0:
                answers.append(json.loads(done.stdout))
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["record"])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--strength", type=float, nargs="+", default=[1.0, 0.6, 0.3])
    parser.add_argument("--probe", default=str(pathlib.Path(sys.executable).parent / "probe"))
    parser.add_argument("--loaded", action="store_true", help="beside a neighbour that keeps half of the machine busy")
    parser.add_argument("--live", action="store_true", help="ask each run while it runs, too")
    parser.add_argument("--gpu", action="store_true", help="the programs that train on a GPU, in place of the others")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    failed = False
    neighbours: list[subprocess.Popen[bytes]] = []
    if given.loaded:
        busy = [sys.executable, "-c", "while True: sum(range(1000))"]
        neighbours = [subprocess.Popen(busy) for _ in range(max(1, (os.cpu_count() or 2) // 2))]
    try:
        for name, run in (runs_on_gpu() if given.gpu else runs(given.strength)).items():
            if given.names and not any(fnmatch.fnmatch(name, of) for of in given.names):
                continue
            began = time.monotonic()
            try:
                record(name, run, given.directory, given.probe, given.live)
            except Failed as failure:
                failed = True
                print(failure, flush=True)
                continue
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
    sys.exit(failed)


if __name__ == "__main__":
    main()
