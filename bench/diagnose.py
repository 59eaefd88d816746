"""How long `probe RUN diagnose` takes: `make bench-diagnose`.

Records a run of 8 ranks (DDP on gloo, a GPT of 4 layers, one rank slower than the others) and a little more than 1000 steps,
which takes some minutes where 8 ranks share two cores. Then whole commands, median of --runs with the least and the most: the
page over the newest 1000 steps (bound 2 s) of the run that has ended, and `query "SELECT 1"` on the same run, which is what
opening it takes.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
RANKS, STEPS = 8, 1100
RUN = "bench-diagnose"


def worker() -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from models import GPT
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    slow = dist.get_rank() == 3
    model = torch.nn.parallel.DistributedDataParallel(GPT(vocab=100, hidden=32, layers=4, length=16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    texts = torch.randint(0, 100, (2 * STEPS, 17))
    extra = torch.randn(128, 128)
    for batch in DataLoader(texts, batch_size=2):
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        if slow:
            for _ in range(20):
                extra = torch.tanh(extra @ extra / 12)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    from latency import seconds, show

    with tempfile.TemporaryDirectory(prefix="probe-bench-") as home:
        environment = dict(os.environ, PROBE_HOME=home, PROBE_RUNTIME_DIR=f"{home}/run", OMP_NUM_THREADS="1")
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), str(HERE), "--worker"]
        began = time.perf_counter()
        subprocess.run([args.probe, "run", "--name", RUN, *launch], env=environment, check=True)
        print(f"recorded {RANKS} ranks and {STEPS} steps in {time.perf_counter() - began:.0f} s", flush=True)

        def asked(*words: str) -> str:
            return subprocess.check_output([args.probe, RUN, *words], env=environment, text=True)

        rows = "SELECT COUNT(*) AS n FROM python."
        counts = {
            table: asked("query", rows + table, "--format", "csv").split()[-1]
            for table in ("steps", "torch_trace", "nccl_trace")
        }
        print("rows: " + ", ".join(f"{table} {count}" for table, count in counts.items()))
        print("\n".join(asked("diagnose").splitlines()[:12]), flush=True)
        samples: dict[str, list[float]] = {"diagnose": [], "query": []}
        for _ in range(args.runs):
            for name, words in (("diagnose", ["diagnose"]), ("query", ["query", "SELECT 1"])):
                samples[name].append(seconds([args.probe, RUN, *words], environment, subprocess.DEVNULL))
        show("probe RUN diagnose   (bound 2000)", samples["diagnose"])
        show('probe RUN query "SELECT 1"', samples["query"])


if __name__ == "__main__":
    worker() if "--worker" in sys.argv else main()
