"""What `probe diagnose` says of the corpus (`make diagnose-score`): a Markdown table, and exit status 1 where a healthy
program gets a warning.

    score.py DIRECTORY [--probe probe]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

from corpus import PLANTED


def ask(probe: str, run: pathlib.Path) -> dict:
    done = subprocess.run([probe, str(run), "diagnose", "--format", "json"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    rows = sum(row["typical_ms"] + row["excess_ms"] for row in answer["waterfall"])
    assert abs(rows - answer["step_ms"]) < 1e-6 * max(answer["step_ms"], 1), f"{run}: the waterfall does not close"
    return answer


def alarms(answers: dict[str, dict]) -> list[str]:
    return [
        f"{name}: {finding['rule']} ({finding['severity']})"
        for name, answer in answers.items()
        for finding in answer["findings"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--probe", default=str(pathlib.Path(sys.executable).parent / "probe"))
    given = parser.parse_args()
    answers = {
        path.name: ask(given.probe, path)
        for path in sorted(given.directory.iterdir())
        if path.name not in ("home", "live")
    }
    print("| plant | strength | said first | right | subject | promised (ms) | longer than its twin (ms) |")
    print("|---|---|---|---|---|---|---|")
    for planted in PLANTED:
        for name, answer in answers.items():
            if not name.startswith(f"{planted.name}-") or not name.removeprefix(f"{planted.name}-")[0].isdigit():
                continue
            first = answer["findings"][0] if answer["findings"] else None
            right = first is not None and first["rule"] in planted.rules
            subject = right and all(first["subject"].get(key) == value for key, value in planted.subject)
            promised = f"{first['saving']['ms']:.1f}" if right and "ms" in first["saving"] else ""
            twin = answers.get(f"twin-{planted.twin}")
            longer = f"{answer['step_ms'] - twin['step_ms']:.1f}" if twin else ""
            said = f"{first['rule']} ({first['severity']})" if first else "(nothing)"
            marks = ["yes" if of else "no" for of in (right, subject)]
            strength = name.rpartition("-")[2]
            print(f"| {planted.name} | {strength} | {said} | {' | '.join(marks)} | {promised} | {longer} |")
    healthy = {name: answer for name, answer in answers.items() if name.startswith(("healthy-", "twin-"))}
    live = {
        f"{name}, live after step {answer['window']['last']}": answer
        for name in healthy
        if (path := given.directory / "live" / f"{name}.json").exists()
        for answer in json.loads(path.read_text())
    }
    for said, of in (("healthy runs", healthy), ("answers of healthy runs while they ran", live)):
        found = alarms(of)
        worse = [alarm for alarm in found if "(note)" not in alarm]
        withheld = sum(not answer["fits"] for answer in of.values())
        print(
            f"\n{len(of)} {said}: {len(found)} findings, {len(worse)} of them more than a note; in {withheld} the replay does not fit."
        )
        print("".join(f"- {alarm}\n" for alarm in found), end="")
    sys.exit(any("(note)" not in alarm for alarm in alarms(healthy | live)))


if __name__ == "__main__":
    main()
