"""Whether a wheel can be published: `make wheel`, or `tests/wheel.py WHEEL`.

Reads its name, its metadata and every program and library in it: each may need no newer C library than the name says, and no
library that a system may lack. Then installs it into a fresh environment of every Python at hand, and in one that has
torch records a training run and asks it. The environments' other packages come from the one that runs this.
"""

from __future__ import annotations

import email
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator

from elftools.elf.constants import SH_FLAGS
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from matrix import MATRIX, interpreter
from packaging.utils import parse_wheel_filename

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAME = "trainprobe"
PLATFORM = f"manylinux_2_28_{os.uname().machine}"
#: The newest symbols that PLATFORM has, by what they are versions of (PEP 600).
NEWEST = {"GLIBC": (2, 28), "GCC": (7, 0, 0)}
#: Libraries that every system of PLATFORM has. libstdc++ would be one too, but nothing here is C++.
LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux-[\w-]+)\.so\.\d")
MAX_BYTES = 60_000_000
COMMAND = f"{NAME}-{{version}}.data/scripts/probe"
#: Files that must be in the wheel.
FILES = [
    COMMAND,
    f"{NAME}-{{version}}.data/platlib/probe_agent.pth",
    f"{NAME}-{{version}}.dist-info/licenses/LICENSE",
    f"{NAME}-{{version}}.dist-info/licenses/LICENSE-THIRD-PARTY.txt",
    "probe_agent/__init__.py",
    "probe_agent/_native.abi3.so",
    "probe_agent/py.typed",
    "trainprobe/__init__.py",
    "trainprobe/live.css",
    "trainprobe/live.js",
    "trainprobe/py.typed",
]
#: Files that must not be in the wheel.
STRAY = re.compile(r"(^|/)(tests?|__pycache__)/|\.pyc$|conftest")

#: Trains for a moment, and says which agent recorded it. It ends while a thread is in a module: before Python 3.14 that
#: thread is unwound, through the agent's frames too (python_agent/build.rs).
TRAINING = """
import threading, time
import probe_agent, torch

class Identity(torch.nn.Module):
    def forward(self, value):
        time.sleep(0)
        return value

def call(module):
    while True:
        module(1)

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
for _ in range(8):
    threading.Thread(target=call, args=(torch.nn.Sequential(Identity(), Identity()),), daemon=True).start()
print(probe_agent.__file__)
"""


def version() -> str:
    """The version that everything here has."""
    (found,) = re.findall(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    return found


def of_the_name(wheel: pathlib.Path) -> Iterator[str]:
    """Problems with the file's name and size."""
    name, its_version, _, tags = parse_wheel_filename(wheel.name)
    if (name, str(its_version)) != (NAME, version()):
        yield f"is {name} {its_version}, and not {NAME} {version()}"
    found = sorted(map(str, tags))
    if found != [f"cp39-abi3-{PLATFORM}"]:
        yield f"is for {', '.join(found)}, and not for cp39-abi3-{PLATFORM}"
    size = wheel.stat().st_size
    if size > MAX_BYTES:
        yield f"has {size / 1e6:.1f} MB, and may have {MAX_BYTES / 1e6:.0f}"


def of_the_content(archive: zipfile.ZipFile) -> Iterator[str]:
    """Problems with the content: missing files, files that do not belong there, and wrong metadata."""
    names = archive.namelist()
    for file in (file.format(version=version()) for file in FILES):
        if file not in names:
            yield f"{file}: is missing"
    yield from (f"{name}: does not belong into a wheel" for name in names if STRAY.search(name))
    (path,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(archive.read(path))
    said = {
        key: metadata.get_all(key, []) for key in ("Name", "Requires-Python", "License-Expression", "Requires-Dist")
    }
    # Requirements of an extra are no dependencies.
    said["Requires-Dist"] = [one for one in said["Requires-Dist"] if "extra ==" not in one]
    meant = {"Name": [NAME], "Requires-Python": [">=3.9"], "License-Expression": ["Apache-2.0"], "Requires-Dist": []}
    yield from (f"{path}: {key} is {said[key]}, and not {meant[key]}" for key in meant if said[key] != meant[key])
    if not str(metadata.get_payload()).strip():
        yield f"{path}: has no description"


def newer(symbol_version: str) -> bool:
    """Whether PLATFORM lacks a version such as `GLIBC_2.35`. One that is no number (`GLIBC_PRIVATE`) is nowhere promised."""
    what, _, number = symbol_version.partition("_")
    if not re.fullmatch(r"\d+(\.\d+)*", number):
        return True
    return tuple(map(int, number.split("."))) > NEWEST.get(what, ())


def of_a_binary(data: bytes) -> Iterator[str]:
    """Problems with a program or a library: symbols that PLATFORM may lack, and sections that only debuggers use."""
    elf = ELFFile(io.BytesIO(data))
    spare = []
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for library, needed in section.iter_versions():
                wanted = sorted(one.name for one in needed if newer(one.name))
                if wanted:
                    yield f"needs {', '.join(wanted)} of {library.name}"
        elif isinstance(section, DynamicSection):
            needed = [tag.needed for tag in section.iter_tags("DT_NEEDED")]
            yield from (f"needs {library}" for library in needed if not LIBRARIES.fullmatch(library))
        elif not section["sh_flags"] & SH_FLAGS.SHF_ALLOC and re.match(r"\.(symtab|strtab|debug_)", section.name):
            spare.append(section)
    if spare:
        size = sum(section["sh_size"] for section in spare)
        yield f"is not stripped: {size / 1e6:.1f} MB in {', '.join(section.name for section in spare)}"


def of_the_binaries(archive: zipfile.ZipFile) -> Iterator[str]:
    """Problems with all programs and libraries in the wheel. Prints the size of each."""
    for entry in archive.infolist():
        data = archive.read(entry)
        if data.startswith(b"\x7fELF"):
            wrong = list(of_a_binary(data))
            print(f"  {entry.filename}: {len(data) / 1e6:.1f} MB, {entry.compress_size / 1e6:.1f} MB of the wheel")
            yield from (f"{entry.filename}: {problem}" for problem in wrong)


def of_the_abi(wheel: pathlib.Path) -> Iterator[str]:
    """Problems with the extension: uses of Python that are not in the stable interface of 3.9."""
    audit = [sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.9", str(wheel)]
    done = subprocess.run(audit, capture_output=True, text=True)
    if done.returncode:
        yield f"abi3audit: {(done.stdout + done.stderr).strip()}"


class Environment:
    """A fresh environment with the wheel."""

    def __init__(self, python: str, wheel: pathlib.Path, directory: pathlib.Path) -> None:
        self.bin = directory / "bin"
        self.run(python, "-m", "venv", str(directory))
        self.before = self.files()
        self.pip("install", "--no-index", "--no-deps", str(wheel))

    def files(self) -> set[str]:
        """Everything in it but bytecode."""
        root = self.bin.parent
        return {str(path.relative_to(root)) for path in root.rglob("*") if "__pycache__" not in path.parts}

    def pip(self, *words: str) -> None:
        self.run(str(self.bin / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *words)

    def run(self, *command: str, **more: str) -> str:
        """The output of a command; of one that fails, what it said is shown."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("PROBE", "PYTHON", "VIRTUAL_ENV"))
        }
        kept["PATH"] = f"{self.bin}:{os.environ['PATH']}"
        done = subprocess.run(command, capture_output=True, text=True, env=kept | more, cwd=self.bin.parent)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def starts(self) -> None:
        """The command and all of the packages, and nothing is left when they are uninstalled."""
        said = self.run("probe", "--version")
        assert version() in said, said
        code = "import probe_agent._native, trainprobe, importlib.metadata as m; print(m.version('trainprobe'))"
        assert self.run("python", "-c", code).strip() == version()
        self.pip("uninstall", "--yes", NAME)
        left = self.files() - self.before
        assert not left, f"left when it is uninstalled: {sorted(left)}"

    def records(self) -> None:
        """A training run, with the torch of the environment that runs this; the run is asked when it has ended."""
        (own,) = self.bin.parent.glob("lib/python*/site-packages")
        (own / "packages_of_another.pth").write_text(sysconfig.get_path("platlib"))
        home = {"PROBE_HOME": str(self.bin.parent / "state"), "PROBE_RUNTIME_DIR": str(self.bin.parent / "run")}
        (self.bin.parent / "train.py").write_text(TRAINING)
        agent = self.run("probe", "run", "--name", "tiny", "--", "python", "train.py", **home).strip()
        assert agent.startswith(str(own)), f"another agent recorded: {agent}"
        query = "SELECT COUNT(*) AS steps, COUNT(DISTINCT pid) AS processes FROM python.steps"
        answer = self.run("probe", "tiny@1", "query", "--format", "ndjson", query, **home)
        rows = [json.loads(line) for line in answer.splitlines()]
        assert rows == [{"steps": 20, "processes": 1}], rows


def install(wheel: pathlib.Path) -> None:
    """Installs it where it can be."""
    for python in dict.fromkeys(python for python, _ in MATRIX):
        found = interpreter(python)
        with tempfile.TemporaryDirectory() as directory:
            if found:
                Environment(found, wheel, pathlib.Path(directory)).starts()
        print(f"  Python {python}: {'starts, and leaves nothing behind' if found else 'not at hand'}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        Environment(sys.executable, wheel, pathlib.Path(directory)).records()
    print(f"  Python {sys.version.split()[0]} with torch: records a run, which answers")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    wheel = pathlib.Path(sys.argv[1]).resolve()
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    with zipfile.ZipFile(wheel) as archive:
        problems = [*of_the_name(wheel), *of_the_content(archive), *of_the_binaries(archive), *of_the_abi(wheel)]
    for problem in problems:
        print(f"  {problem}", file=sys.stderr)
    if problems:
        return 1
    install(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
