"""Numbers that are compared, and the imported run that ours are asked of."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

#: Figures that we mean to count otherwise, and why.
OTHERWISE = {
    "same name": "the plugin takes an operator directly within one of the same name for one call; we keep both",
    "by id": "the plugin links by external id; we link by the launch, and it lies in the other operator",
    "memset": "TraceLens leaves out the five sets of this ROCm trace, which its own definition counts",
    "whole": "HTA rounds both ends of each activity to whole microseconds, so every gap is longer; the view does not round",
}

checked: list[tuple[bool, str]] = []


def check(figure: str, ours, theirs, whose: str, within: float = 0.0, otherwise: str | None = None) -> None:
    """One number. `within` is the difference that rounding of the source allows."""
    if isinstance(ours, float) or isinstance(theirs, float):
        equal = ours is not None and theirs is not None and abs(ours - theirs) <= within + 1e-9 * abs(theirs)
    else:
        equal = ours == theirs
    why = OTHERWISE.get(otherwise or "")
    state = "equal" if equal else "otherwise" if why else "DIFFERS"
    shown = f"{ours:.6g}" if isinstance(ours, float) else ours
    reason = f" ({why})" if why and not equal else ""
    checked.append((state != "DIFFERS", f"{state:9} {figure}: ours {shown}, theirs {theirs}, {whose}{reason}"))


class Run:
    """The imported run, one query a relation; rows by the file that they came from, relative to the traces."""

    def __init__(self, probe: str, traces: Path, home: Path, name: str = "traces") -> None:
        self.probe, self.traces, self.name = probe, traces, name
        self.environment = {**os.environ, "PROBE_HOME": str(home), "PROBE_RUNTIME_DIR": str(home / "runtime")}
        (home / "runtime").mkdir(mode=0o700, exist_ok=True)
        self.call("import", "--name", name, str(traces))
        captures = self.query("SELECT * FROM python.captures")
        self.files = {row["capture"]: str(Path(row["file"]).relative_to(traces)) for row in captures}
        self.captures = {self.files[row["capture"]]: row for row in captures}

    def has(self, directory: str) -> bool:
        """Whether there are traces in this directory below the traces."""
        return any(file.startswith(f"{directory}/") for file in self.captures)

    def of(self, file: str) -> str:
        """The condition that picks the rows of this file."""
        return f"capture = '{self.captures[file]['capture']}'"

    def call(self, *words: str) -> str:
        done = subprocess.run([self.probe, *words], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"probe {words[0]} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def query(self, sql: str) -> list[dict]:
        return [json.loads(line) for line in self.call(self.name, "query", sql, "--format", "ndjson").splitlines()]

    def by_file(self, sql: str) -> dict[str, list[dict]]:
        found = defaultdict(list)
        for row in self.query(sql):
            found[self.files[row["capture"]]].append(row)
        return found


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """How long at least one of these intervals, of a beginning and an end each, lasted."""
    length, reached = 0, None
    for begins, ends in sorted(intervals):
        length += max(ends - (begins if reached is None else max(begins, reached)), 0)
        reached = ends if reached is None else max(reached, ends)
    return length


def us(seconds: float | None) -> float:
    return round((seconds or 0.0) * 1e6, 3)
