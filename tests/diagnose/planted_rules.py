"""Holds the plants of the corpus (PLANTED in corpus.py) and the rules of `probe diagnose` together: each rule is the first one of a
plant, or UNPLANTED says why there is none; and plants name rules that exist and are what their programs have. `make check` runs it."""

from __future__ import annotations

import ast
import pathlib
import sys

from corpus import HERE, PLANTED

RULES = HERE.parents[1] / "src/diagnose/rules"

GPU = "looks at a GPU, and no plant for GPUs (device.py) has it"
CAPTURE = "looks at operators and kernels of captures, and the corpus captures nothing"
NCCL = "needs operations of NCCL, and so several GPUs"
#: Rules without a plant, and why.
UNPLANTED = {
    "communication-bound": NCCL,
    "cudnn-benchmark-off": GPU,
    "device-behind-others": CAPTURE,
    "device-idle": CAPTURE,
    "device-leak": GPU,
    "device-memory-fragmented": GPU,
    "device-memory-full": GPU,
    "exposed-communication": CAPTURE,
    "exposed-copies": CAPTURE,
    "float32-matmul": GPU,
    "gloo-for-gpu": GPU,
    "gpu-errors": "needs a GPU that is broken",
    "gpu-slowed-down": "needs a GPU that is too hot",
    "host-memory-full": "needs a control group with a limit of memory, which takes rights that a program does not have",
    "loader-in-captures": CAPTURE,
    "memory-bound-modules": GPU,
    "one-thread": "needs four processors for each rank; where a machine has them, all programs of the corpus with one thread have it",
    "processor-quota": "needs a control group with a quota of processors, which takes rights that a program does not have",
    "recording-too-costly": "1500 modules that are recorded in each step took 0.3 % of it; the rule begins at 2 %",
    "rows-lost": "rows are lost where the collector can't keep up, which a program can't bring about on each machine",
    "slower-collectives": NCCL,
    "tensor-cores-unused": CAPTURE,
    "uneven-memory": NCCL,
}  # fmt: skip


def plants_of(program: pathlib.Path) -> set[str]:
    """What a program can be told to plant: the words of its `common.arguments(...)`, or its PLANTS."""
    for node in ast.walk(ast.parse(program.read_text())):
        is_call = isinstance(node, ast.Call) and ast.unparse(node.func) == "common.arguments"
        is_list = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PLANTS"
        if is_call or is_list:
            words = node.args if is_call else node.value.elts
            return {ast.literal_eval(word) for word in words}
    return set()


def wrong() -> list[str]:
    """What does not fit together."""
    rules = {path.stem for path in RULES.glob("*.sql")}
    named = {rule for planted in PLANTED for rule in planted.rules}
    meant = {planted.rules[0] for planted in PLANTED if planted.rules}
    found = [f"{rule}: a plant names it, and there is no such rule" for rule in named - rules]
    found += [f"{rule}: UNPLANTED names it, and there is no such rule" for rule in UNPLANTED.keys() - rules]
    found += [
        f"{rule}: it is no plant's first rule, and UNPLANTED does not say why"
        for rule in rules - meant - UNPLANTED.keys()
    ]
    found += [f"{rule}: a plant has it, and UNPLANTED says that none does" for rule in meant & UNPLANTED.keys()]
    names = [planted.name for planted in PLANTED]
    found += [f"{name}: several plants have this name" for name in set(names) if names.count(name) > 1]
    programs = {path.name: plants_of(path) for path in (HERE / "plants").glob("*.py")}
    listed = {(planted.program, planted.plant) for planted in PLANTED}
    there = {(program, plant) for program, plants in programs.items() for plant in plants}
    found += [f"{program}: {plant} is not in PLANTED" for program, plant in there - listed]
    found += [f"{program}: it has no plant {plant}, which PLANTED names" for program, plant in listed - there]
    return found


if __name__ == "__main__":
    found = wrong()
    print("".join(f"tests/diagnose: {one}\n" for one in sorted(found)), end="")
    sys.exit(bool(found))
