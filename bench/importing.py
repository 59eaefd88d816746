"""How fast `probe import` reads a profiler's trace, and in how much memory: `make bench-import`.

torch.profiler records a small transformer on the CPU (shapes, stacks), which gives a real file of Kineto. Each of its operators
gets a launch and a kernel with their flow, as on a GPU, and the whole is repeated with later times and other numbers until it
has --megabytes. That file, and the same one compressed by gzip, are imported on one core (bounds: 60 MB of JSON text a second, 40 with
gzip, 300 MB of memory). For comparison Python's own `json.load`, with which tools in Python begin, reads a file of a tenth of the
size on the same core, because it keeps everything in memory.
"""

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: Fields whose numbers grow by APART from one repetition to the next.
NUMBERS = (
    "External id",
    "Record function id",
    "Ev Idx",
    "Python id",
    "Python parent id",
    "Sequence number",
    "correlation",
    "id",
)
APART = 1_000_000


def recorded(path: Path) -> None:
    """Write torch.profiler's trace of a few training steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as profiler:
        for _ in range(4):
            model(torch.randn(8, 16, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(path))


KERNEL = """  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": {tid},
    "ts": {ts:.3f}, "dur": 3.214,
    "args": {{
      "External id": {number}, "cbid": 211, "correlation": {number}
    }}
  }},
  {{
    "ph": "s", "id": {number}, "pid": 1, "tid": {tid}, "ts": {ts:.3f},
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)", "pid": 0, "tid": 7,
    "ts": {later:.3f}, "dur": 2.111,
    "args": {{
      "External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {number},
      "registers per thread": 32, "shared memory": 0, "blocks per SM": 0.592593, "warps per SM": 2.37037,
      "grid": [64, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 4
    }}
  }},
  {{
    "ph": "f", "id": {number}, "pid": 0, "tid": 7, "ts": {later:.3f},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }},
"""


def with_kernels(events: str) -> Iterator[str]:
    """The text of each event, and after each operator the text of a kernel that it launches."""
    for number, event in enumerate(re.findall(r"  \{\n.*?\n  \},?\n", events, re.DOTALL)):
        yield event.rstrip().rstrip(",") + ",\n"
        found = re.search(r'"cat": "cpu_op".*?"tid": (\d+),\s+"ts": ([\d.]+)', event, re.DOTALL)
        if found:
            ts = float(found[2])
            yield KERNEL.format(tid=found[1], ts=ts + 0.5, later=ts + 5.0, number=500_000 + number)


def write(path: Path, trace: str, size: int) -> int:
    """Write the trace again and again until it has ``size`` bytes, and return how many events that is."""
    head, _, rest = trace.partition('"traceEvents": [\n')
    events, closing = rest[: rest.rindex("]")], rest[rest.rindex("]") :]
    times = [float(ts) for ts in re.findall(r'"ts": ([\d.]+)', events)]
    span = max(times) - min(times) + 1000.0
    number = re.compile(r'"(ts|' + "|".join(NUMBERS) + r')": (\d[\d.]*)')
    pieces: list[tuple[str, str, float]] = []
    end, text = 0, "".join(with_kernels(events))
    for found in number.finditer(text):
        pieces.append((text[end : found.start(2)], found[1], float(found[2])))
        end = found.end(2)
    tail, count, written, repetition = text[end:], text.count('"ph":'), 0, 0
    with path.open("w") as out:
        out.write(head + '"traceEvents": [\n')
        while written < size:
            shifted = [
                before + (f"{value + repetition * span:.3f}" if key == "ts" else str(int(value) + repetition * APART))
                for before, key, value in pieces
            ]
            written += out.write("".join(shifted) + tail)
            repetition += 1
        out.seek(out.tell() - 2)  # The last comma.
        out.write("\n  " + closing)
    return count * repetition


def run(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command on one core, and return its seconds and its most memory in megabytes."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, {0})
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)}: exit status {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began, used.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Measure and print a line a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        recorded(arguments.record)
        return
    directory = Path(tempfile.mkdtemp())
    try:
        # In a process of its own: a child's peak of memory is at least what its parent has when it starts it.
        command = [sys.executable, __file__, "--probe", arguments.probe, "--record", str(directory / "recorded.json")]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        trace = (directory / "recorded.json").read_text()
        whole, tenth = directory / "whole.json", directory / "tenth.json"
        events = write(whole, trace, arguments.megabytes * 1_000_000)
        write(tenth, trace, arguments.megabytes * 100_000)
        packed = directory / "packed.json.gz"
        with whole.open("rb") as text, gzip.open(packed, "wb", compresslevel=6) as out:
            shutil.copyfileobj(text, out, 1 << 20)
        megabytes = whole.stat().st_size / 1e6
        print(f"{megabytes:.0f} MB of JSON, {events} events; {packed.stat().st_size / 1e6:.0f} MB by gzip", flush=True)

        environment = dict(os.environ, PROBE_HOME=str(directory / "home"), PROBE_RUNTIME_DIR=str(directory / "run"))
        for name, path, bound in (("JSON", whole, 60), ("JSON by gzip", packed, 40)):
            took, memory = run([arguments.probe, "import", str(path), "--name", "trace"], environment)
            said = f"{megabytes / took:.0f} MB/s (bound {bound}), {events / took / 1e6:.2f} M events/s, {memory:.0f} MB (bound 300)"
            print(f"probe import, {name:14} {took:6.1f} s   {said}", flush=True)
        load = [sys.executable, "-c", f"import json; json.load(open({str(tenth)!r}))"]
        took, memory = run(load, dict(os.environ, PROBE="0"))
        megabytes = tenth.stat().st_size / 1e6
        print(f"json.load, {megabytes:.0f} MB {took:6.1f} s   {megabytes / took:.0f} MB/s, {memory:.0f} MB", flush=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
