"""Real traces of others, imported and held to the numbers that other people's code computed for them.

    python tests/traces.py [--probe PATH] [--traces DIRECTORY] [--all]

Imports every trace below `shared/traces/kineto`, which lies beside the project where it is at hand, and beside it the dumps in
`flight_recorder`, pages of Nsight Compute in `ncu`, exports of Nsight Systems in `nsys`, XPlane traces in `xplane`, execution
traces in `et` and dumps of NCCL's inspector in `nccl`; asks the tables and views, and prints a line a number: ours, theirs, whose. Of
`tests/samples/kineto`, which has a few of them, those (every run of the tests does it).
Without --all it prints the numbers that differ, and the sums. What we mean to count otherwise is in `trace_figures/figures.py` with
the reason, and in docs/import.md. Ends with 1 where any other number differs.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from trace_figures import holistic
from trace_figures.collectives import flight_recorder, nccl_inspector
from trace_figures.execution_trace import execution_trace_beside, execution_traces
from trace_figures.figures import Run, checked
from trace_figures.holistic_times import mtia, temporal_breakdown
from trace_figures.nsight import nsight_compute, nsight_systems
from trace_figures.tensorboard import (
    tensorboard_distributed,
    tensorboard_memory,
    tensorboard_real,
    tensorboard_units,
)
from trace_figures.tracelens import tracelens
from trace_figures.xplane import xplane

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--probe", default=shutil.which("probe") or "probe")
    arguments.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces" / "kineto")
    arguments.add_argument("--all", action="store_true", help="print every number, also those that are equal")
    given = arguments.parse_args()
    if not given.traces.is_dir():
        print(f"skipped: there are no traces in {given.traces}")
        return 0
    with tempfile.TemporaryDirectory() as home:
        run = Run(given.probe, given.traces.resolve(), Path(home))
        asked = [row["capture"] for file, row in run.captures.items() if file.startswith("tb_plugin_")]
        names = ", ".join(f"'{name}'" for name in asked)
        steps = run.by_file(f"SELECT * FROM python.step_categories WHERE capture IN ({names})")
        # All of them lie in the traces of others, and some in the samples.
        are_samples = given.traces.resolve().is_relative_to(ROOT / "tests/samples")
        if run.has("tb_plugin_2021") or not are_samples:
            tensorboard_real(run, steps)
        if run.has("tb_plugin_unit") or not are_samples:
            tensorboard_units(run, steps)
            tensorboard_memory(run)
            tensorboard_distributed(run, steps)
        if run.has("hta") or not are_samples:
            for figures in (
                holistic.counts,
                holistic.annotations,
                holistic.launches,
                holistic.compared,
                holistic.hardware_counters,
                holistic.critical_paths,
                temporal_breakdown,
                mtia,
            ):
                figures(run)
        if run.has("tracelens") or not are_samples:
            tracelens(run)
        if (dumps := given.traces.resolve().parent / "flight_recorder").is_dir():
            flight_recorder(run, dumps)
        beside = given.traces.resolve().parent
        if (beside / "ncu").is_dir():
            nsight_compute(Run(given.probe, beside / "ncu", Path(home), "ncu"))
        if (beside / "nsys").is_dir():
            nsight_systems(Run(given.probe, beside / "nsys", Path(home), "nsys"))
        if (beside / "xplane").is_dir():
            xplane(Run(given.probe, beside / "xplane", Path(home), "xplane"))
        if (beside / "et").is_dir():
            execution_traces(Run(given.probe, beside / "et", Path(home), "et"))
        if run.has("made_here_torch_2.15"):
            execution_trace_beside(run)
        if (beside / "nccl").is_dir():
            nccl_inspector(Run(given.probe, beside / "nccl", Path(home), "nccl"))
    for _, line in checked:
        if given.all or not line.startswith("equal"):
            print(line)
    count = {
        state: sum(1 for _, line in checked if line.startswith(state)) for state in ("equal", "otherwise", "DIFFERS")
    }
    print(
        f"{len(checked)} numbers: {count['equal']} equal, {count['otherwise']} counted otherwise, {count['DIFFERS']} differ"
    )
    return 0 if all(good for good, _ in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
