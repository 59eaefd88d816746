"""What `probe diagnose` says of the corpus (`make diagnose-score`): Markdown tables of plants and of rules, and exit status 1 where a
healthy program gets a warning.

    score.py DIRECTORY … [--probe probe]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys
from collections import defaultdict

from corpus import PLANTED

#: Of one-sided intervals.
CONFIDENCE = 0.95
#: The twin beside which a run is asked about, by the plant.
TWIN_OF = {planted.name: f"twin-{planted.twin}" for planted in PLANTED if planted.against_twin}


@dataclasses.dataclass(frozen=True)
class Said:
    """What was said first of a run with a planted cause."""

    plant: str
    strength: str
    #: The rules that are right for it, the one that is meant first.
    rules: tuple[str, ...]
    first: str
    right: bool
    subject: bool
    #: Milliseconds of a step; None where nothing was promised, or there is no twin.
    promised: float | None
    longer: float | None


def ticks(ms: float, steps: int) -> int:
    """The sum over all steps, of which this is the mean, in units of 2^-30 s: a whole number."""
    return round(ms * steps / 1000 * 2**30)


def ask(probe: str, run: pathlib.Path) -> dict:
    twin = TWIN_OF.get(run.name.rpartition("-")[0])
    against = ["--against", str(run.with_name(twin))] if twin and run.with_name(twin).is_dir() else []
    done = subprocess.run(
        [probe, str(run), "diagnose", *against, "--format", "json"], capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    steps = answer["window"]["steps"]
    rows = [ticks(row[key], steps) for row in answer["waterfall"] for key in ("typical_ms", "excess_ms")]
    # The rows are made of the parts of steps, and step_ms of their recorded durations.
    assert sum(rows) == ticks(answer["step_ms"], steps), f"{run}: the waterfall does not close"
    return answer


def alarms(answers: dict[str, dict]) -> list[tuple[str, str, str]]:
    """Run, rule and severity of each finding."""
    return [
        (name, finding["rule"], finding["severity"])
        for name, answer in answers.items()
        for finding in answer["findings"]
    ]


def judge(answers: dict[str, dict]) -> list[Said]:
    said = []
    for planted in PLANTED:
        for name, answer in answers.items():
            if not name.startswith(f"{planted.name}-") or not name.removeprefix(f"{planted.name}-")[0].isdigit():
                continue
            first = answer["findings"][0] if answer["findings"] else None
            right = first is not None and first["rule"] in planted.rules
            subject = right and all(first["subject"].get(key) == value for key, value in planted.subject)
            twin = answers.get(f"twin-{planted.twin}")
            said.append(
                Said(
                    planted.name,
                    name.rpartition("-")[2],
                    tuple(planted.rules),
                    f"{first['rule']} ({first['severity']})" if first else "(nothing)",
                    right,
                    subject,
                    first["saving"].get("ms") if right else None,
                    answer["step_ms"] - twin["step_ms"] if twin else None,
                )
            )
    return said


def upper_bound(count: int, runs: int) -> float:
    """The upper bound of the probability of something that happened `count` times in `runs` (Clopper and Pearson)."""
    if count >= runs:
        return 1.0
    low, high = count / runs, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        as_few = sum(math.comb(runs, k) * middle**k * (1 - middle) ** (runs - k) for k in range(count + 1))
        low, high = (middle, high) if as_few > 1 - CONFIDENCE else (low, middle)
    return high


def of_plants(said: list[Said]) -> None:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    print("| plant | strength | said first | right | subject | promised (ms) | longer than its twin (ms) |")
    print("|---|---|---|---|---|---|---|")
    for one in said:
        marks = " | ".join("yes" if of else "no" for of in (one.right, one.subject))
        row = (one.plant, one.strength, one.first, marks, number(one.promised), number(one.longer))
        print(f"| {' | '.join(row)} |")


def of_rules(said: list[Said], healthy: dict[str, dict]) -> None:
    plants, speaks = defaultdict(list), defaultdict(set)
    for one in said:
        plants[one.rules[0]].append(one)
    for name, rule, _ in alarms(healthy):
        speaks[rule].add(name)
    print(
        "\n| rule | right first | right subject | median of abs(promised - longer) / longer | healthy runs and twins it speaks of "
        "| at most (95 %) |"
    )
    print("|---|---|---|---|---|---|")
    for rule in sorted(plants | speaks):
        of = plants[rule]
        errors = [
            abs(one.promised - one.longer) / one.longer
            for one in of
            if one.promised is not None and one.longer is not None and one.longer > 0
        ]
        error = f"{100 * statistics.median(errors):.0f} % of {len(errors)}" if errors else ""
        right, subject = (sum(getattr(one, key) for one in of) for key in ("right", "subject"))
        shares = [f"{count} of {len(of)}" if of else "" for count in (right, subject)]
        bound = f"{100 * upper_bound(len(speaks[rule]), len(healthy)):.1f} %" if healthy else ""
        print(f"| {rule} | {shares[0]} | {shares[1]} | {error} | {len(speaks[rule])} of {len(healthy)} | {bound} |")


def score(directory: pathlib.Path, probe: str) -> bool:
    """Prints what is said of a directory of recordings; whether a healthy program has a warning."""
    answers = {path.name: ask(probe, path) for path in sorted(directory.iterdir()) if path.name not in ("home", "live")}
    said = judge(answers)
    of_plants(said)
    healthy = {name: answer for name, answer in answers.items() if name.startswith(("healthy-", "twin-"))}
    of_rules(said, healthy)
    live = {
        f"{name}, live after step {answer['window']['last']}": answer
        for name in healthy
        if (path := directory / "live" / f"{name}.json").exists()
        for answer in json.loads(path.read_text())
    }
    for words, of in (("healthy runs", healthy), ("answers of healthy runs while they ran", live)):
        found = alarms(of)
        worse = [alarm for alarm in found if alarm[2] != "note"]
        withheld = sum(not answer["fits"] for answer in of.values())
        bound = (
            f" (at most {100 * upper_bound(len({alarm[0] for alarm in worse}), len(of)):.1f} % of runs, 95 %)"
            if of
            else ""
        )
        print(
            f"\n{len(of)} {words}: {len(found)} findings, {len(worse)} of them more than a note{bound}; "
            f"in {withheld} the replay does not fit."
        )
        print("".join(f"- {name}: {rule} ({severity})\n" for name, rule, severity in found), end="")
    return any(severity != "note" for _, _, severity in alarms(healthy | live))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", type=pathlib.Path, nargs="+")
    parser.add_argument("--probe", default=str(pathlib.Path(sys.executable).parent / "probe"))
    given = parser.parse_args()
    is_wrong = False
    for directory in given.directories:
        print(f"\n## {directory.name}\n")
        is_wrong |= score(directory, given.probe)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
