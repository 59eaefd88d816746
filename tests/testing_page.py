"""docs/testing.md: how long everything takes, and whether the tests that it names are there.

`make testing-page` makes its tables of durations from what the last `.ci/run` left behind. `--check`, which `make check` runs,
says which test of the table of promises is missing, and which of them `make test` leaves out.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "testing.md"

Seconds = dict[str, float]


def of_steps(results: pathlib.Path) -> Seconds:
    """Step of .ci/run -> seconds."""
    lines = (results / "steps.tsv").read_text().splitlines()
    steps = {name: float(seconds) for name, seconds in (line.split("\t") for line in lines)}
    return {**steps, "all": sum(steps.values())}


def of_tests(reports: list[pathlib.Path]) -> Seconds:
    """`file::test[parameters]`, or the name of a Rust test -> seconds, its fixtures included."""
    found: Seconds = {}
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("skipped") is not None:
                continue
            group, name = case.get("classname", ""), re.sub(r"/\S*/(?=[^/]+\])", "", case.get("name", "").split("@")[0])
            python = ROOT / (group.replace(".", "/") + ".py")
            test = f"{python.relative_to(ROOT)}::{name}" if python.exists() else f"{group}::{name}"
            found[test] = found.get(test, 0.0) + float(case.get("time", 0))
    return found


def by_file(tests: Seconds) -> Seconds:
    """Seconds of each file (or Rust test binary)."""
    sums: Seconds = {}
    for test, seconds in tests.items():
        file = test.split("::")[0]
        sums[file] = sums.get(file, 0.0) + seconds
    return sums


def section(page: str, name: str) -> re.Match[str]:
    found = re.search(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", page, re.DOTALL)
    if found is None:
        sys.exit(f"{PAGE}: there is no section {name}")
    return found


def rows_of(table: str) -> dict[str, list[str]]:
    """First cell -> the others."""
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    return {cells[0].strip().strip("`"): [cell.strip() for cell in cells[1:]] for cells in lines}


def with_table(page: str, name: str, what: str, durations: Seconds) -> str:
    """The page with one of its tables made anew, the longest first."""
    found = section(page, name)
    longest = sorted(durations.items(), key=lambda duration: -duration[1])
    lines = [f"| {what} | seconds |", "|---|---:|", *(f"| `{key}` | {seconds:.1f} |" for key, seconds in longest)]
    return page[: found.start()] + found[1] + "\n".join(lines) + "\n" + found[3] + page[found.end() :]


def write(results: pathlib.Path, rust: pathlib.Path | None) -> None:
    tests = of_tests(sorted(results.glob("python*.xml")) + ([rust] if rust and rust.exists() else []))
    page = with_table(PAGE.read_text(), "steps", "step", of_steps(results))
    page = with_table(page, "files", "file", by_file(tests))
    PAGE.write_text(with_table(page, "tests", "test", tests))


def is_extended(text: str, name: str) -> bool:
    """Whether a test of this file is left out by `make test`, all of it."""
    if re.search(r"^pytestmark = .*extended", text, re.MULTILINE):
        return True
    found = re.search(rf"((?:^@.*\n|^[ \])].*\n)*)^def {name}\(", text, re.MULTILINE)
    return found is not None and "@pytest.mark.extended" in found[1]


def check() -> int:
    """Prints what is wrong with the table of promises, and returns the number of findings."""
    findings = []
    for number, cells in rows_of(section(PAGE.read_text(), "promises")[2]).items():
        tests = re.findall(r"`([\w./]+)::(\w+)`", cells[1])
        held = False
        for file, name in tests:
            path = ROOT / file
            text = path.read_text() if path.exists() else ""
            if not re.search(rf"\b(?:def|fn) {name}\b", text):
                findings.append(f"promise {number}: there is no {file}::{name}")
            held = held or not is_extended(text, name)
        if tests and not held:
            findings.append(f"promise {number}: `make test` leaves out every test that holds it")
        if not tests and "Nothing yet" not in cells[1] and "make bench" not in cells[1]:
            findings.append(f"promise {number}: nothing is said to hold it")
    for finding in findings:
        print(finding, file=sys.stderr)
    return len(findings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", type=pathlib.Path, help="where .ci/run left its times")
    parser.add_argument("rust", nargs="?", type=pathlib.Path, help="what cargo-nextest left")
    parser.add_argument("--check", action="store_true", help="write nothing, and say what is wrong")
    arguments = parser.parse_args()
    if arguments.check:
        return 1 if check() else 0
    if arguments.results is None:
        parser.error("where are the times?")
    write(arguments.results, arguments.rust)
    return 0


if __name__ == "__main__":
    sys.exit(main())
