"""Every command of the performance-analysis document, as it is typed there, on a two-rank run of the example."""

from __future__ import annotations

import json
import re

import pytest

from conftest import Run


@pytest.fixture
def long_run(two_ranks: Run) -> Run:
    """The document asks for steps 200 to 210."""
    two_ranks.wait_for_step(212, ranks=2)
    return two_ranks


RECENT = "WHERE step > (SELECT MAX(step) - {} FROM python.torch_trace)"

QUERIES = {
    "overall profile": (
        "SELECT module, stage, COUNT(*) as executions, AVG(duration) as avg_time_sec, SUM(duration) as total_time_sec,"
        " SUM(duration) * 100.0 / SUM(SUM(duration)) OVER () as pct_time FROM python.torch_trace "
        + RECENT.format(10)
        + " GROUP BY module, stage ORDER BY total_time_sec DESC LIMIT 15",
        15,
        ["executions", "avg_time_sec", "total_time_sec", "pct_time"],
    ),
    "per-step breakdown": (
        "SELECT step, SUM(CASE WHEN stage = 'forward' THEN duration ELSE 0 END) as forward_time,"
        " SUM(CASE WHEN stage = 'backward' THEN duration ELSE 0 END) as backward_time,"
        " SUM(CASE WHEN stage = 'step' THEN duration ELSE 0 END) as optimizer_time FROM python.torch_trace "
        + RECENT.format(5)
        + " GROUP BY step ORDER BY step",
        5,
        ["forward_time", "backward_time", "optimizer_time"],
    ),
    "memory-bound operations": (
        "SELECT module, AVG(allocated) as avg_memory_mb, AVG(duration) as avg_time_sec, AVG(allocated) / AVG(duration)"
        " as memory_bandwidth_mb_per_sec FROM python.torch_trace WHERE duration > 0.001 GROUP BY module"
        " ORDER BY memory_bandwidth_mb_per_sec DESC LIMIT 10",
        None,
        ["avg_time_sec"],
    ),
    "collective times": (
        "SELECT operation_type, COUNT(*) as count, AVG(duration_ms) as avg_time_ms, MAX(duration_ms) as max_time_ms"
        " FROM python.nccl_trace GROUP BY operation_type ORDER BY avg_time_ms DESC",
        None,
        ["count"],
    ),
    "attention": (
        "SELECT module, AVG(duration) as avg_time, AVG(allocated) as avg_memory FROM python.torch_trace"
        " WHERE module LIKE '%attention%' OR module LIKE '%attn%' GROUP BY module ORDER BY avg_time DESC",
        12,
        ["avg_time"],
    ),
    "slowest modules": (
        "SELECT module, AVG(duration) as avg_time FROM python.torch_trace GROUP BY module ORDER BY avg_time DESC LIMIT 5",
        5,
        ["avg_time"],
    ),
    "before": (
        "SELECT AVG(duration) as before_avg FROM python.torch_trace WHERE step BETWEEN 100 AND 110",
        1,
        ["before_avg"],
    ),
    "after": (
        "SELECT AVG(duration) as after_avg FROM python.torch_trace WHERE step BETWEEN 200 AND 210",
        1,
        ["after_avg"],
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_query(long_run: Run, name: str) -> None:
    sql, count, positive = QUERIES[name]
    rows = long_run.query(sql)
    assert rows if count is None else len(rows) == count
    for row in rows:
        assert all(row[column] > 0 for column in positive), row


def test_the_profile_has_what_the_model_has(long_run: Run) -> None:
    rows = long_run.query("SELECT DISTINCT module, stage FROM python.torch_trace WHERE step > 200")
    seen = {(row["module"], row["stage"]) for row in rows}
    for module in ("layers.0.attn.qkv", "layers.3.mlp.down", "lm_head", "GPT", "tokens"):
        assert (module, "forward") in seen and (module, "backward") in seen
    assert ("DistributedDataParallel", "forward") in seen
    assert ("AdamW", "step") in seen


def test_percentages_sum_to_a_hundred(long_run: Run) -> None:
    rows = long_run.query(
        "SELECT SUM(duration) * 100.0 / SUM(SUM(duration)) OVER () as pct FROM python.torch_trace "
        + RECENT.format(10)
        + " GROUP BY module, stage"
    )
    assert sum(row["pct"] for row in rows) == pytest.approx(100.0)


def says(run: Run, code: str, pattern: str, *arguments: str) -> re.Match[str]:
    done = run.eval(code, *arguments)
    assert done.returncode == 0, done.stderr
    found = re.search(pattern, done.stdout)
    assert found, f"nothing like {pattern!r} in {done.stdout!r}"
    return found


def test_data_loader_timing(long_run: Run) -> None:
    code = """
import time

# Time one batch load
start = time.perf_counter()
batch = next(iter(train_loader))
load_time = time.perf_counter() - start
print(f'Batch load time: {load_time*1000:.2f} ms')"""
    assert float(says(long_run, code, r"Batch load time: ([\d.]+) ms")[1]) > 0


def test_worker_analysis(long_run: Run) -> None:
    code = """
print(f'Num workers: {train_loader.num_workers}')
print(f'Pin memory: {train_loader.pin_memory}')
print(f'Prefetch factor: {getattr(train_loader, \"prefetch_factor\", 2)}')"""
    says(long_run, code, r"Num workers: 0\nPin memory: False\nPrefetch factor: None\n")


def test_memory_per_sequence_length(long_run: Run) -> None:
    code = """
import torch

# Check attention memory scaling
seq_len = model.config.max_position_embeddings
hidden = model.config.hidden_size
num_heads = model.config.num_attention_heads

# Attention score memory: O(seq_len^2)
attention_memory = seq_len * seq_len * num_heads * 4 / 1024**3  # GB
print(f'Estimated attention memory: {attention_memory:.2f} GB')"""
    says(long_run, code, r"Estimated attention memory: 0\.00 GB")


def test_a_snippet_of_comments_alone(long_run: Run) -> None:
    done = long_run.eval("\nimport torch\n# High compute utilization + low memory bandwidth = compute-bound")
    assert (done.returncode, done.stdout) == (0, "")


def test_enable_torch_compile(long_run: Run) -> None:
    code = """
import torch
if hasattr(torch, 'compile'):
    model = torch.compile(model)
    print('Model compiled with torch.compile')"""
    says(long_run, code, "Model compiled with torch.compile")
    # The snippet's name is its own: training's model is what it was.
    says(long_run, "print(type(model).__name__)", r"^GPT$")


def test_a_name_that_torch_no_longer_has_is_a_traceback(long_run: Run) -> None:
    done = long_run.eval("""
from torch.cuda.amp import autocast
print(f'AMP enabled: {torch.cuda.amp.autocast_mode.is_autocast_enabled()}')""")
    assert done.returncode == 1
    assert "AttributeError" in done.stderr and "line 3" in done.stderr


def test_check_gradient_checkpointing(long_run: Run) -> None:
    done = long_run.eval("""
# Check if gradient checkpointing is enabled
for name, module in model.named_modules():
    if hasattr(module, 'gradient_checkpointing'):
        print(f'{name}: checkpoint={module.gradient_checkpointing}')""")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_throughput_takes_its_steps_on_every_rank(long_run: Run) -> None:
    code = """
import time

# Measure throughput over 10 steps
steps = 10
start = time.perf_counter()
for _ in range(steps):
    trainer.train_step()
elapsed = time.perf_counter() - start

samples_per_sec = (steps * batch_size) / elapsed
print(f'Throughput: {samples_per_sec:.1f} samples/sec')"""
    assert float(says(long_run, code, r"^Throughput: ([\d.]+) samples/sec\n$")[1]) > 0
    rows = long_run.query("SELECT placed, status, ranks FROM probe.evals ORDER BY id DESC LIMIT 1")
    assert rows == [{"placed": "step", "status": "ok", "ranks": "0,1"}]
    # Both ranks train on: neither waits for the other.
    last = max(row["s"] for row in long_run.query("SELECT MAX(step) AS s FROM python.steps"))
    long_run.wait_for_step(last + 5, ranks=2)


def test_the_table_a_person_sees(long_run: Run) -> None:
    done = long_run.home.probe("gpt", "query", QUERIES["slowest modules"][0], COLUMNS="250")
    assert done.returncode == 0, done.stderr
    header = next(line for line in done.stdout.splitlines() if "module" in line)
    assert header.index("module") < header.index("avg_time")
    assert len([line for line in done.stdout.splitlines() if re.search(r"\d", line)]) >= 5


def test_json_is_an_array_of_objects(long_run: Run) -> None:
    done = long_run.home.probe("gpt", "query", "--format", "json", "SELECT step, ts FROM python.steps LIMIT 2")
    rows = json.loads(done.stdout)
    assert len(rows) == 2 and set(rows[0]) == {"step", "ts"}
