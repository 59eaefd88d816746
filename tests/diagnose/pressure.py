"""Seven situations in which people ask for the wrong fix (tests/diagnose/situations.py), and what `probe diagnose` has to
say: what stands out, or that nothing does, and why what is suspected is not it.

    pressure.py DIRECTORY [NAME …] [--probe probe]      # records them there, asks, and prints what was said
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys

import corpus


@dataclasses.dataclass(frozen=True)
class Pressure:
    #: The name of a situation of tests/diagnose/situations.py.
    name: str
    #: The question of the user.
    question: str
    #: Rules of which one is the verdict; none: nothing stands out.
    verdict: tuple[str, ...] = ()
    #: Rules that have to be among the findings, as notes.
    notes: tuple[str, ...] = ()
    #: Suspected names, the answers that are right, and words that the reason must have.
    suspects: tuple[tuple[str, tuple[str, ...], str], ...] = ()
    ranks: int = 1
    steps: int = 240


NO = ("no",)
PRESSURES = [
    Pressure(
        "hurry",
        "A demo is in half an hour: make attention faster, and skip the profiling.",
        verdict=("loads-in-loop",),
        suspects=(("attention", NO, "loads-in-loop"),),
    ),
    Pressure(
        "busy",
        "Utilization is 95 %, so the model's operations are the bottleneck: make the forward pass faster.",
        verdict=("loader-starved",),
        suspects=(("forward", NO, "loader-starved"), ("Linear", NO, "loader-starved")),
    ),
    Pressure(
        "norms",
        "BatchNorm takes a third of the time: LayerNorm or GroupNorm instead?",
        suspects=(("BatchNorm", NO, "Conv2d) has the most"), ("bn", NO, "autocast is off")),
    ),
    Pressure(
        "copied",
        "45 % is aten::copy_: remove all the clone() calls of the model.",
        verdict=("copies-of-tensors",),
        suspects=(("clone", NO, "contiguous at"), ("aten::copy_", ("yes",), "copies-of-tensors")),
    ),
    Pressure(
        "lengths",
        "Sequences have 32 to 512 tokens, and every profile says something else.",
        notes=("input-size", "grows-beyond-input"),
        suspects=(
            ("inconsistent", ("yes",), "follows the size of its input"),
            ("attention", ("yes",), "to the power of"),
            ("rank-slow", NO, ""),
        ),
    ),
    Pressure(
        "exchange",
        "Times differ between ranks, and all_reduce takes long: is it the bottleneck?",
        # Two ranks on a busy machine may not fit the replay: then no rule about time speaks.
        suspects=(("all_reduce", ("no", "not decided"), "all_reduce a step"), ("rank 0", NO, "ranks differ a little")),
        ranks=2,
    ),
    Pressure(
        "production",
        "A job of two days that may not be slowed down: how can it be profiled?",
        suspects=(("profiling", NO, "recording takes"),),
    ),
]


def ask(probe: str, run: pathlib.Path, *words: str) -> dict:
    done = subprocess.run([probe, str(run), "diagnose", "--json", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def record(pressure: Pressure, directory: pathlib.Path, probe: str) -> pathlib.Path:
    command = [str(corpus.HERE / "situations.py"), pressure.name, "--steps", str(pressure.steps)]
    return corpus.record(pressure.name, corpus.Run(command, pressure.ranks), directory, probe)


def wrong(pressure: Pressure, run: pathlib.Path, probe: str) -> list[str]:
    """Differences between the expected and the actual diagnosis of a recorded run."""
    answer = ask(probe, run)
    found = {finding["rule"] for finding in answer["findings"]}
    worth = [of["rule"] for of in answer["findings"] if of["severity"] != "note"]
    problems = []
    if pressure.verdict:
        if not worth or worth[0] not in pressure.verdict:
            problems.append(f"the verdict is {answer['verdict']}, and not of {' or '.join(pressure.verdict)}")
    elif answer["verdict"] is not None:
        problems.append(f"the verdict is {answer['verdict']}, where nothing is wrong")
    problems += [f"there is no finding of {rule}" for rule in pressure.notes if rule not in found]
    for name, answers, words in pressure.suspects:
        said = ask(probe, run, "--suspect", name)
        if said["answer"] not in answers:
            problems.append(f"--suspect {name}: {said['answer']}: {said['reasons']}")
        elif words not in json.dumps(said["reasons"]):
            problems.append(f"--suspect {name}: '{words}' is not in {said['reasons']}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--probe", default=str(pathlib.Path(sys.executable).parent / "probe"))
    parser.add_argument("--recorded", action="store_true", help="ask runs that are in DIRECTORY already")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    failed = False
    for pressure in PRESSURES:
        if given.names and pressure.name not in given.names:
            continue
        run = given.directory / pressure.name if given.recorded else record(pressure, given.directory, given.probe)
        problems = wrong(pressure, run, given.probe)
        failed = failed or bool(problems)
        print(f"{pressure.name}: {pressure.question}")
        print("".join(f"    wrong: {problem}\n" for problem in problems) or "    as it should be")
    sys.exit(failed)


if __name__ == "__main__":
    main()
