"""Writes the licences of the crates that the wheel's binaries contain: `notices.py FILE`, run by `make wheel`.

Most of these licences ask for their text and the names of their authors to go with each copy. Texts that several crates
have in common are there once. Fails for a crate that comes without one, unless TEXTS or SIBLINGS says where it is.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: The packages whose binaries are in the wheel.
SHIPPED = ("probe", "probe-agent")
FILE = re.compile(r"(licen[cs]e|copying|notice|unlicense)", re.IGNORECASE)
#: Licences whose text is the same wherever they are used.
TEXTS = {"Apache-2.0": ROOT / "LICENSE"}
#: Crates of the same authors and repository that have the text.
SIBLINGS = {"alloc-stdlib": "alloc-no-stdlib", "tonic-prost": "tonic"}
RULE = "=" * 100


def shipped() -> set[tuple[str, str]]:
    """Name and version of every crate in the binaries: no macros, build scripts and tests."""
    packages = [word for name in SHIPPED for word in ("--package", name)]
    tree = ["cargo", "tree", "--quiet", "--locked", *packages, "--edges", "normal,no-proc-macro"]
    lines = subprocess.run([*tree, "--prefix", "none", "--format", "{p}"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return set(re.findall(r"^(\S+) v(\S+)", lines.stdout.decode(), re.MULTILINE))


def packages() -> list[dict[str, str]]:
    """What the manifests of those crates say, by name; this workspace's are left out."""
    metadata = ["cargo", "metadata", "--quiet", "--locked", "--format-version", "1"]
    answer = subprocess.run(metadata, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    wanted = shipped()
    every = json.loads(answer.stdout)["packages"]
    found = [one for one in every if one["source"] and (one["name"], one["version"]) in wanted]
    return sorted(found, key=lambda one: (one["name"], one["version"]))


def texts(package: dict[str, str]) -> list[str]:
    """The texts that come with it, or that it has by TEXTS."""
    directory = pathlib.Path(package["manifest_path"]).parent
    found = [path for path in sorted(directory.iterdir()) if path.is_file() and FILE.match(path.name)]
    if not found:
        named = re.split(r"\s+(?:OR|AND)\s+|/", package["license"])
        found = [TEXTS[one] for one in named if one in TEXTS]
    return [path.read_text(errors="replace").strip() for path in found]


def main() -> int:
    """Writes them; the exit status is 1 where one is missing."""
    crates = packages()
    of = {crate["name"]: texts(crate) for crate in crates}
    # Many copies of one text differ in their white space only.
    by_text: dict[str, tuple[str, list[str]]] = {}
    without = []
    lines = [
        "The programs in this package contain the crates below and Rust's standard library (MIT OR Apache-2.0).",
        "",
    ]
    for crate in crates:
        name = f"{crate['name']} {crate['version']}"
        lines.append(f"{name}: {crate['license']}; source: {crate.get('repository') or crate.get('homepage')}")
        own = texts(crate) or of.get(SIBLINGS.get(crate["name"], ""))
        without += [] if own else [f"{name} ({crate['license']})"]
        for text in own or []:
            by_text.setdefault(" ".join(text.split()), (text, []))[1].append(name)
    for text, names in by_text.values():
        lines += ["", RULE, ", ".join(names), RULE, "", text]
    if without:
        print(f"no text of a licence in: {', '.join(without)}", file=sys.stderr)
        return 1
    pathlib.Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
