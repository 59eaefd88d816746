#!/usr/bin/env bash
# What `make demo` shows: a two-rank training run under probe, and the questions people ask first.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1
home=$(mktemp -d)
export PROBE_HOME="$home/state" PROBE_RUNTIME_DIR="$home/run"
training=
finish() {
    [ -n "$training" ] && kill "$training" 2>/dev/null && wait "$training" 2>/dev/null
    rm -rf "$home"
}
trap finish EXIT

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
ask() {
    say "probe gpt $1 \"$2\""
    probe gpt "$1" "$2"
}

say "probe run --name gpt -- torchrun --nproc-per-node 2 examples/train_gpt.py &"
probe run --name gpt -- torchrun --nproc-per-node 2 examples/train_gpt.py --steps 400 --log-every 100 2>&1 &
training=$!
until [ "$(probe gpt query --format csv "SELECT COALESCE(MAX(step), 0) FROM python.steps" 2>/dev/null | tail -n 1)" -ge 30 ] 2>/dev/null; do
    kill -0 "$training" || { echo "the training run has ended early" >&2; exit 1; }
    sleep 0.3
done

say "probe list"
probe list
ask query "SELECT module, stage, COUNT(*) AS calls, SUM(duration) AS seconds FROM python.torch_trace GROUP BY 1, 2 ORDER BY 4 DESC LIMIT 10"
ask query "SELECT step, rank, duration, data_time, forward_time, backward_time, optimizer_time, comm_time, validation_time, checkpoint_time, other_time FROM python.steps ORDER BY step DESC, rank LIMIT 6"
ask query "SELECT operation_type, COUNT(*) AS count, AVG(bytes) AS bytes, AVG(duration_ms) AS ms FROM python.nccl_trace GROUP BY 1"
ask eval "print(train_loader.num_workers, model.config)"
ask eval "for _ in range(3): print(trainer.train_step().item())"

say "wait for the end; the run is now a directory, and answers the same"
wait "$training"
training=
ask query "SELECT rank, COUNT(*) AS steps, AVG(duration) AS seconds_a_step FROM python.steps GROUP BY rank ORDER BY rank"
say "probe runs"
probe runs
