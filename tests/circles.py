"""Circles of imports between the modules of each Rust crate: `make check` fails where there are more than the known ones.

Between crates cargo refuses a circle. Inside a crate this script reads `use` declarations and paths that begin with `crate`,
`self`, `super` or a child module, without the code of tests. A module that declares a child depends on it only where it also names it.

    circles.py          fails if the modules in circles are not those counted in KNOWN
    circles.py --list   prints every circle
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: How many modules of a crate lie on a circle. A number may only become smaller: there is no reason for a new circle.
KNOWN = {
    "crates/client": 0,
    "crates/collector": 0,
    "crates/common": 0,
    "crates/export": 0,
    "crates/import": 0,
    "crates/inspect": 0,
    "crates/query": 0,
    "crates/store": 0,
    "crates/trace": 0,
    "proto": 0,
    "python_agent": 0,
    ".": 0,
}

Module = tuple[str, ...]


def without_comments(text: str) -> str:
    """The code without comments and without the content of strings and characters."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text, flags=re.S)
    text = re.sub(r"'(?:\\.|[^'\\])'", "''", text)
    text = re.sub(r"\bpub\(in [\w:]+\)", "pub", text)
    return re.sub(r"//[^\n]*", "", text)


def without_tests(text: str) -> str:
    """The code without items that only tests have."""
    kept, position = [], 0
    for found in re.finditer(r"#\[cfg\(test\)\][^{;]*([{;])", text):
        if found.start() < position:
            continue
        kept.append(text[position : found.start()])
        position, depth = found.end(), found.group(1) == "{"
        while depth and position < len(text):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
    return "".join(kept) + text[position:]


def paths_of(tree: str) -> list[str]:
    """The paths that one `use` declaration names: `a::{b, c::d}` names `a::b` and `a::c::d`."""
    found = re.match(r"^([^{]*)\{(.*)\}$", tree.strip(), re.S)
    if not found:
        return [re.sub(r"\s+as\s+\w+", "", tree).strip()]
    parts, depth = [""], 0
    for character in found.group(2):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    prefix = found.group(1).strip()
    return [prefix + path for part in parts if part.strip() for path in paths_of(part)]


def modules(source: Path) -> dict[Module, Path]:
    """The modules of a crate and their files; the crate's root is the empty tuple."""
    found = {}
    for file in source.rglob("*.rs"):
        parts = file.relative_to(source).with_suffix("").parts
        if "tests" in parts or parts == ("main",):
            continue
        if parts[-1] == "mod" or parts == ("lib",):
            parts = parts[:-1]
        found[parts] = file
    return found


def imports(module: Module, file: Path, known: dict[Module, Path]) -> set[Module]:
    """The other modules of its crate that a module names."""
    text = without_tests(without_comments(file.read_text()))
    declarations = re.findall(r"\buse\s+([^;]+);", text)
    paths = [path for declaration in declarations for path in paths_of(declaration)]
    code = re.sub(r"\buse\s+[^;]+;", "", text)
    paths += re.findall(r"\b(?:crate|super|self)(?:::\w+)+", code)
    paths += re.findall(r"(?<![\w:])[a-z_]\w*(?:::\w+)+", code)
    named = set()
    for path in paths:
        names = [name.strip() for name in path.split("::")]
        base = list(module)
        if names[0] == "crate":
            base = []
        elif names[0] not in ("self", "super") and (*module, names[0]) not in known:
            continue
        while names and names[0] in ("crate", "self", "super"):
            base = base[:-1] if names.pop(0) == "super" else base
        full = (*base, *names)
        while full not in known:
            full = full[:-1]
        named.add(full)
    return named - {module}


def circles(edges: dict[Module, set[Module]]) -> list[list[Module]]:
    """Sets of modules of which each reaches each other one."""

    def reached(start: Module) -> set[Module]:
        seen: set[Module] = set()
        waiting = list(edges[start])
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting.extend(edges[module])
        return seen

    reach = {module: reached(module) for module in edges}
    found: dict[frozenset[Module], None] = {}
    for module in sorted(edges):
        if module in reach[module]:
            found[frozenset(other for other in reach[module] if module in reach[other])] = None
    return [sorted(circle) for circle in found]


def main() -> int:
    listed, failed = "--list" in sys.argv, False
    for crate, most in KNOWN.items():
        known = modules(ROOT / crate / "src")
        found = circles({module: imports(module, file, known) for module, file in known.items()})
        count = sum(map(len, found))
        if listed or count != most:
            print(f"{crate}: {count} modules are in circles; KNOWN in tests/circles.py says {most}")
            for circle in found:
                print("   ", ", ".join("::".join(module) or "the crate's root" for module in circle))
        if count > most:
            failed = True
            print("hint: move what both sides need into a module below both")
        elif count < most:
            failed = True
            print(f"hint: a circle is gone: write {count} into KNOWN, so that it does not come back")
    missing = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("crates/*/Cargo.toml")} - KNOWN.keys()
    if missing:
        print(f"hint: KNOWN in tests/circles.py lacks {', '.join(sorted(missing))}")
    return int(failed or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
