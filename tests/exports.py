"""What `probe export` writes, read by the tools that it is written for.

    python tests/exports.py --probe PATH [--traces DIRECTORY]

Run by a Python that has HolisticTraceAnalysis and perfetto (`make exports` makes one). Imports real traces of others, which lie
beside the project where they are at hand, exports them, and checks: Perfetto's own schema parses the protobuf and knows every field
in it, HolisticTraceAnalysis gets from the files what our views say, and torch's validator of traces finds in an export what it finds
in the original. Prints a line a figure, and ends with 1 where one differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Before HTA is imported: times as they are, not rounded to whole microseconds.
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"

ROOT = Path(__file__).resolve().parent.parent
#: Traces with activities of a device, in which HTA finds its way.
TRACES = [
    "hta/ns_resolution_trace",
    "hta/negative_queue_length_values_check",
    "hta/critical_path/alexnet",
    "hta/with_gpu_user_annotation",
]

failed = False


def check(figure: str, ours, theirs, within: float = 0.0) -> None:
    global failed
    if isinstance(ours, float) or isinstance(theirs, float):
        equal = abs(ours - theirs) <= within
    else:
        equal = ours == theirs
    failed |= not equal
    print(f"{'equal  ' if equal else 'DIFFERS'} {figure}: {ours} and {theirs}")


class Runs:
    """Runs of a home of their own."""

    def __init__(self, probe: str, home: Path) -> None:
        self.probe = probe
        self.environment = {**os.environ, "PROBE_HOME": str(home), "PROBE_RUNTIME_DIR": str(home / "runtime")}
        (home / "runtime").mkdir(mode=0o700)

    def call(self, *words: str) -> str:
        done = subprocess.run([self.probe, *words], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"probe {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def query(self, run: str, sql: str) -> list[dict]:
        return [json.loads(line) for line in self.call(run, "query", sql, "--format", "ndjson").splitlines()]


def unknown_fields(message) -> int:
    """Fields that the schema does not have, at any depth."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is not None:
            values = value if field.is_repeated else [value]
            found += sum(unknown_fields(one) for one in values)
    return found


def perfetto(path: Path, name: str, slices: int) -> None:
    """The file by Perfetto's own schema."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    kinds = [packet.track_event.type for packet in trace.packet if packet.HasField("track_event")]
    event = perfetto_trace_pb2.TrackEvent
    check(f"{name}: slices that begin in the protobuf", kinds.count(event.TYPE_SLICE_BEGIN), slices)
    check(f"{name}: slices that end", kinds.count(event.TYPE_SLICE_END), slices)
    check(f"{name}: fields that the schema does not have", sum(unknown_fields(packet) for packet in trace.packet), 0)


class Analysis:
    """The figures of HolisticTraceAnalysis for a directory of traces."""

    def __init__(self, directory: Path) -> None:
        from hta.trace_analysis import TraceAnalysis

        analysis = TraceAnalysis(trace_dir=str(directory))
        self.ranks = sorted(analysis.t.traces)
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        self.overlap = dict(zip(overlap["rank"], overlap["comp_comm_overlap_pctg"], strict=True))
        idle = [(rank, analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)[0]) for rank in self.ranks]
        self.idle = {
            (rank, int(row.stream), row.idle_category): float(row.idle_time)
            for rank, causes in idle
            for row in causes.itertuples()
        }
        #: Waits of all causes together, since a fraction of a microsecond decides which cause it was.
        self.waits: dict[tuple, float] = {}
        for (rank, stream, _), waited in self.idle.items():
            self.waits[rank, stream] = self.waits.get((rank, stream), 0.0) + waited
        times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
        self.times = {(rank, column): float(times.loc[rank, column]) for rank in self.ranks for column in times.columns}
        queues = analysis.get_queue_length_summary(ranks=self.ranks)["queue_length"]["max"]
        self.queues = {key: float(longest) for key, longest in queues.items()}


def same(name: str, ours: Analysis, theirs: Analysis) -> None:
    """Checks that an export has the figures of the original. Times from 1970 in microseconds, as in files before May 2024, have a
    quarter of one as their last digit where HTA keeps them, and an export has all of them."""
    check(f"{name}: ranks", ours.ranks, theirs.ranks)
    for figure in ("times", "waits", "queues"):
        mine, other = getattr(ours, figure), getattr(theirs, figure)
        check(f"{name}: what has {figure}", sorted(mine), sorted(other))
        for key, value in other.items():
            check(
                f"{name}: {figure} {key}, of the export and of the original",
                mine.get(key),
                value,
                max(2.0, 0.001 * value),
            )


def views(runs: Runs, name: str, theirs: Analysis) -> None:
    """Checks that our views have the figures of HTA. Queues are left out: HTA ignores the last step there."""
    for row in runs.query(name, "SELECT COALESCE(rank, 0) AS rank, percent FROM gpu.comm_overlap"):
        check(f"{name} rank {row['rank']}: overlap %", row["percent"], float(theirs.overlap[row["rank"]]), 0.01)
    idle = runs.query(
        name,
        "SELECT COALESCE(rank, 0) AS rank, stream, host_wait * 1e6 AS host_wait, kernel_wait * 1e6 AS kernel_wait, other * 1e6 AS other FROM gpu.idle_causes",
    )
    for row in idle:
        for cause in ("host_wait", "kernel_wait", "other"):
            found = theirs.idle.get((row["rank"], row["stream"], cause), 0.0)
            where = f"{name} rank {row['rank']} stream {row['stream']}"
            # Activities that begin together have no order, and either may end the gap.
            check(f"{where}: {cause} us", row[cause], found, max(3.0, 0.001 * found))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--probe", default=str(ROOT / "target/debug/probe"))
    arguments.add_argument("--traces", type=Path, default=ROOT.parent / "shared/traces/kineto")
    arguments.add_argument("--validate", help="a Python with torch, for its validator of traces")
    asked = arguments.parse_args()
    if not asked.traces.is_dir():
        print(f"{asked.traces} is not here: nothing to check")
        return
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        runs = Runs(asked.probe, home)
        for number, trace in enumerate(TRACES):
            name = f"t{number}"
            print(f"--- {trace}")
            runs.call("import", "--name", name, str(asked.traces / trace))
            directory, packets = home / f"ranks{number}", home / f"{name}.pftrace"
            runs.call(name, "export", "--per-rank", str(directory))
            runs.call(name, "export", "-o", str(packets))
            count = "SELECT (SELECT COUNT(*) FROM python.operators) + (SELECT COUNT(*) FROM python.frames) + (SELECT COUNT(*) FROM gpu.launches) + (SELECT COUNT(*) FROM gpu.kernels) AS rows"
            perfetto(packets, name, runs.query(name, count)[0]["rows"])
            ours = Analysis(directory)
            same(name, ours, Analysis(asked.traces / trace))
            views(runs, name, ours)
            if asked.validate:
                validate(asked.validate, name, directory, asked.traces / trace)
    sys.exit(1 if failed else 0)


def validate(python: str, name: str, directory: Path, original: Path) -> None:
    """Checks that torch's validator finds as many violations of each rule in an export as in the original."""
    code = (
        "import collections, glob, json, sys\n"
        "from torch.profiler._trace_validator import validate_trace\n"
        "found = [violation.rule_name for path in glob.glob(sys.argv[1] + '/*.json*') for violation in validate_trace(path)[1]]\n"
        "print(json.dumps(collections.Counter(found)))\n"
    )
    ours, theirs = (
        json.loads(subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout)
        for path in (directory, original)
    )
    for rule in sorted({*ours, *theirs}) or ["all rules"]:
        check(f"{name}: violations of {rule.strip('_')}", ours.get(rule, 0), theirs.get(rule, 0))


if __name__ == "__main__":
    main()
