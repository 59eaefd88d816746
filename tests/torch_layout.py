"""What the agent takes for granted of torch's C++, release by release.

`make test-layouts`, or `tests/torch_layout.py 2.9.1 2.13.0`, takes each release's wheel from PyPI, compiles
`torch_layout.cpp` against the headers in it, and looks the symbols up in its library. Nothing is installed or run, so it
costs the download (0.9 GB) and a compilation each, one after the other. Needs g++ (or CXX) and nm.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
#: All releases, patches among them, up to the last on which autograd.py allows RecordFunction. The first is older than it
#: allows: what is compared here is the same there, but the tests have not run to their end.
RELEASES = ["2.5.0", "2.5.1", "2.6.0", "2.7.0", "2.7.1", "2.8.0", "2.9.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0",
            "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0"]  # fmt: skip
#: Any Python that all of them have a wheel for: the C++ is the same in each.
PYTHON = "3.11"
LIBRARY = "torch/lib/libtorch_cpu.so"
SHIM = "torch/include/torch/csrc/inductor/aoti_torch/c/shim.h"
#: Functions of C++ that native code looks up, as it names them.
SYMBOLS = sorted(
    name
    for source in (HERE.parent / "python_agent" / "src" / "recording").glob("*.rs")
    for name in re.findall(r'c"(_Z\w+)"', source.read_text())
)
#: As shim.rs does: always, from 2.8 on, and what stands in for those before.
SHIM_SYMBOLS = ["numel", "dtype", "device_type", "device_index"]
NEWER = ["aoti_torch_dtype_element_size", "aoti_torch_is_contiguous"]
INSTEAD = ["aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_strides"]


def problems(release: str, directory: pathlib.Path) -> list[str]:
    """Differences to the agent's assumptions in a release's wheel, which is fetched into `directory`."""
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
             "--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--dest", str(directory)]  # fmt: skip
    if subprocess.run([*fetch, f"torch=={release}"]).returncode:
        return ["no wheel"]
    with zipfile.ZipFile(next(directory.glob("*.whl"))) as wheel:
        wheel.extractall(directory, [n for n in wheel.namelist() if n == LIBRARY or n.startswith("torch/include/")])
    symbols = subprocess.run(["nm", "-D", "--defined-only", directory / LIBRARY], capture_output=True, text=True)
    defined = {line.split()[-1].split("@")[0] for line in symbols.stdout.splitlines()}
    newer = NEWER[0] in (directory / SHIM).read_text()
    wanted = [*SYMBOLS, *(f"aoti_torch_get_{name}" for name in SHIM_SYMBOLS), *(NEWER if newer else INSTEAD)]
    found = [f"no symbol {name}" for name in wanted if name not in defined]
    # Wheels before 2.7 were built with libstdc++'s older strings, and releases from 2.14 on with C++20.
    old_strings = sum("cxx11" in name for name in defined) < 1000
    said = ""
    for standard in ("c++17", "c++20"):
        compiler = [os.environ.get("CXX", "g++"), f"-std={standard}", "-w", "-fsyntax-only", "-fno-access-control",
                    f"-D_GLIBCXX_USE_CXX11_ABI={0 if old_strings else 1}",
                    *(["-DHAS_ELEMENT_SIZE"] if newer else []),
                    f"-I{directory}/torch/include", str(HERE / "torch_layout.cpp")]  # fmt: skip
        done = subprocess.run(compiler, capture_output=True, text=True)
        if done.returncode == 0:
            return found
        said = done.stderr
    return [*found, said]


def main() -> int:
    failed = 0
    for release in sys.argv[1:] or RELEASES:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
            found = problems(release, pathlib.Path(directory))
        print(
            f"torch {release}:",
            "as it should be" if not found else "\n  ".join(["not as it should be", *found]),
            flush=True,
        )
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
