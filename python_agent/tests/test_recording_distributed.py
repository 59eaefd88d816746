"""Recording on two ranks with gloo: DDP's buckets, completion times, point-to-point, failures."""

from __future__ import annotations

import contextvars
import json
import os
import statistics
import sys
import tempfile
import time
import weakref
from typing import Any

import pytest
import torch
from fork_server import fork_server, result
from recording_support import AS_HOOKS_NAME, HOOKS_OF_GROUPS, NO_PROBLEM, Net, PassClock, accounted, of_step

COLLECTIVES = "pg_hooks" if HOOKS_OF_GROUPS else "patched-functions"


def on_ranks(body: str, ranks: int = 2, layers: str = "", failing: bool = False) -> list[Any]:
    """Run a function of this module on each of ``ranks`` processes; what each of them returned."""
    # The ranks meet at a file: a port that was free may be taken by the time that they come to it.
    with tempfile.TemporaryDirectory() as directory:
        return _run_ranks(body, ranks, layers, failing, f"file://{directory}/meeting")


def _run_ranks(body: str, ranks: int, layers: str, failing: bool, meeting: str) -> list[Any]:
    processes = []
    for rank in range(ranks):
        environment = {
            "RANK": str(rank), "WORLD_SIZE": str(ranks), "MEETING": meeting, "PROBE_LAYERS": layers, "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        processes.append(fork_server().start(f"test_recording_distributed:{body}", **environment))
    results = []
    for process in processes:
        done = process.wait()
        assert failing or done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        results.append(result(done.stdout))
    return results


def _start() -> Any:
    """Install before anything is distributed, as activation does."""
    torch.set_num_threads(1)
    import probe_agent.torch

    probe_agent.torch.install()
    import torch.distributed as dist

    _keep_contexts()
    dist.init_process_group("gloo", os.environ["MEETING"], rank=int(os.environ["RANK"]), world_size=2)
    from probe_agent import _native

    return dist, _native


#: Contexts that backward passes ran in, as long as they are referenced.
_contexts: list[weakref.ref[contextvars.Context]] = []


def _keep_contexts() -> None:
    copy = contextvars.copy_context

    def copy_context() -> contextvars.Context:
        made = copy()
        _contexts.append(weakref.ref(made))
        return made

    contextvars.copy_context = copy_context


def _end(dist: Any) -> None:
    """End the process groups, and wait for what torch may not come to after the interpreter's end.

    A collective that backward issues holds that pass's context (`torch.autograd.graph._engine_run_backward`), and gloo's
    thread lets go of it, which needs the GIL. In an interpreter that is being taken down that thread is ended instead,
    from within a destructor: "terminate called without an active exception", SIGABRT. That is torch's own
    (pytorch/pytorch#190489): of `fsdp` on a busy machine 3 of some 55 ranks ended so without the agent and 1 of 76 with
    it, from the same destructor. Neither a barrier nor `destroy_process_group` waits for that thread, as FSDP keeps the group.
    """
    dist.barrier()
    dist.destroy_process_group()
    deadline = time.monotonic() + 60
    while any(context() is not None for context in _contexts) and time.monotonic() < deadline:
        time.sleep(0.001)


def _wait_for(native: Any, rows: dict[str, list[Any]], done: Any) -> dict[str, list[Any]]:
    """Take rows until ``done`` says that they are all there: completion comes from other threads."""
    deadline = time.monotonic() + 30
    while not done(rows) and time.monotonic() < deadline:
        for table, more in native.take_rows(False).items():
            if table != "probe.drops":
                rows.setdefault(table, []).extend(more)
    return rows


def _reduced(rows: dict[str, list[Any]]) -> int:
    """Bytes of the all_reduces that are done."""
    done = [row for row in rows.get("python.nccl_trace", []) if row["operation_type"] == "all_reduce"]
    return sum(row["bytes"] for row in done)


def ddp() -> dict[str, Any]:
    dist, native = _start()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Net(128, 4), bucket_cap_mb=0.3)
    # AdamW: of SGD's third of a millisecond a twentieth is spent in optimizer.step() before the recorded range begins.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    clock = time.perf_counter
    hand: dict[str, list[float]] = {
        "forward_time": [],
        "backward": [],
        "optimizer_time": [],
        "comm": [],
        "duration": [],
    }
    total = torch.zeros(50_000)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    # DDP goes on when a bucket is reduced, which gloo's thread reports a moment later.
    of_a_step = parameters * HOOKS_OF_GROUPS + total.nbytes
    backward, last = PassClock(), 0.0
    for step in range(23):
        if step == 3:
            _wait_for(native, {}, lambda rows: _reduced(rows) == 3 * of_a_step)
            native.take_rows()  # However young.
            native.mark_step()
            last = clock()
        x = torch.randn(64, 128)
        t0 = clock()
        output = model(x)
        t1 = clock()
        loss = backward.watch(output.square().mean())
        loss.backward()
        t3 = clock()
        dist.all_reduce(total)
        t4 = clock()
        optimizer.step()
        t5 = clock()
        optimizer.zero_grad()
        if step >= 3:
            for name, took in zip(hand, (t1 - t0, t3 - backward.begin, t5 - t4, t4 - t3, t5 - last)):
                hand[name].append(took)
        last = t5
        # Freed here, because assigning the next ones would free these between two clocks.
        del x, output, loss
    rows = _wait_for(native, {}, lambda rows: _reduced(rows) == 20 * of_a_step)
    last_rows = native.take_rows()
    for table in ("python.steps", "python.torch_trace", "python.nccl_trace"):
        rows.setdefault(table, []).extend(last_rows[table])
    rows["probe.drops"] = last_rows["probe.drops"]
    result = {
        "layers": native.layers(),
        "problem": native.problem(),
        "hand": hand,
        "steps": rows["python.steps"][1:],  # The first one ended with the mark.
        "trace": rows["python.torch_trace"],
        "collectives": rows["python.nccl_trace"],
        "drops": {str(key): value for key, value in rows["probe.drops"].items()},
        "parameters": parameters,
    }
    _end(dist)
    return result


@pytest.mark.timing
def test_ddp_on_two_ranks() -> None:
    for found in on_ranks("ddp"):
        assert found["layers"]["collectives"] == COLLECTIVES and found["problem"] == NO_PROBLEM and found["drops"] == {}
        steps, hand = found["steps"], found["hand"]
        assert len(steps) == 20
        # The median step: a busy machine may take the processor away between two clocks.
        for column in ("forward_time", "optimizer_time", "duration"):
            ratio = statistics.median(step[column] / took for step, took in zip(steps, hand[column]))
            assert ratio == pytest.approx(1.0, abs=0.05), column
        # The tail of backward and the collective in the loop are communication, and the training thread waited for both.
        waits = list(zip(steps, hand["backward"], hand["comm"]))
        if HOOKS_OF_GROUPS:  # Without hooks it is not known that backward's tail waits for buckets: it is `other_time`.
            ratio = statistics.median((step["backward_time"] + step["comm_time"]) / (b + c) for step, b, c in waits)
            assert ratio == pytest.approx(1.0, abs=0.05)
        assert statistics.median(step["comm_time"] / comm for step, _, comm in waits) >= 0.9
        for column, stage, tolerance in (("forward_time", "forward", 0.03), ("backward_time", "backward", 0.1)):
            assert accounted(steps, found["trace"], column, stage) == pytest.approx(1.0, abs=tolerance), stage
        for step in steps:
            buckets = [row for row in of_step(found["collectives"], step) if row["async_op"]]
            # Patched functions don't see them.
            assert len(buckets) > 1 or not HOOKS_OF_GROUPS
            assert sum(row["bytes"] for row in buckets) == found["parameters"] * HOOKS_OF_GROUPS
        names = {row["module"] for row in found["trace"] if row["stage"] == "forward"}
        assert {"DistributedDataParallel", "Net", "layers.0.up", "head"} <= names
        assert not any(name.startswith("module") for name in names)
        assert found["collectives"] and all(
            row["status"] == "completed" and row["duration_ms"] > 0 and row["operation_type"] == "all_reduce"
            and row["backend"] == "gloo" and row["group_size"] == 2 and row["dtype"] == "float32"
            and row["busbw_gbps"] == pytest.approx(row["algbw_gbps"])
            for row in found["collectives"]
        )  # fmt: skip
        in_loop = [row for row in found["collectives"] if not row["async_op"]]
        assert [row["bytes"] for row in in_loop] == [200_000] * 20
        seqs = [row["seq"] for row in sorted(found["collectives"], key=lambda row: row["ts"])]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def waits_of_dtensors() -> list[dict[str, float]]:
    """Two steps in which rank 1 is late: for a DTensor that is made whole, and for a monitored barrier."""
    dist, native = _start()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(3):
        model(torch.randn(4, 8)).sum().backward()
        if dist.get_rank() == 1 and step > 0:
            time.sleep(0.3)
        if step == 1:
            DTensor.from_local(torch.ones(1), mesh, [Partial()]).full_tensor().item()
        elif step == 2:
            dist.monitored_barrier()
        optimizer.step()
    rows = native.take_rows()["python.steps"]
    _end(dist)
    return [{name: row[name] for name in ("comm_time", "other_time")} for row in rows[1:3]]


@pytest.mark.skipif(not HOOKS_OF_GROUPS, reason="earlier releases of torch have no public DTensor")
def test_waits_for_dtensors_and_monitored_barriers_are_communication() -> None:
    waiting, late = on_ranks("waits_of_dtensors")
    assert len(waiting) == len(late) == 2
    assert all(step["comm_time"] >= 0.2 > step["other_time"] for step in waiting), (waiting, late)
    assert all(step["other_time"] >= 0.3 > step["comm_time"] for step in late), (waiting, late)


def every_operation() -> list[dict[str, Any]]:
    dist, native = _start()
    native.take_rows()
    rank, t = dist.get_rank(), torch.ones(1000)
    dist.all_reduce(t)
    dist.all_reduce(t, async_op=True).wait()
    dist.broadcast(t, 0)
    dist.reduce(t, 0)
    dist.all_gather([torch.empty(1000) for _ in range(2)], t)
    dist.all_gather_into_tensor(torch.empty(2000), t)
    dist.reduce_scatter_tensor(t, torch.ones(2000))
    dist.all_to_all_single(torch.empty(1000), t)
    dist.barrier()
    dist.send(t, 1) if rank == 0 else dist.recv(t, 0)
    group = dist.new_group([0, 1])
    dist.all_reduce(t.double(), group=group)
    gathered = [None, None]
    dist.all_gather_object(gathered, {"rank": rank})
    expected = 13 if native.layers()["collectives"] == "pg_hooks" else 10
    rows = _wait_for(native, {}, lambda rows: len(rows.get("python.nccl_trace", [])) >= expected)
    _end(dist)
    return sorted(rows["python.nccl_trace"], key=lambda row: row["ts"])


@pytest.mark.skipif(not HOOKS_OF_GROUPS, reason=f"torch {torch.__version__} has no hooks of process groups")
def test_every_operation_has_its_name_and_bytes() -> None:
    first, second = on_ranks("every_operation")
    expected = [
        ("all_reduce", 4000, "float32", False), ("all_reduce", 4000, "float32", True), ("broadcast", 4000, "float32", False),
        ("reduce", 4000, "float32", False), ("all_gather", 8000, "float32", False),
        ("all_gather_into_tensor", 8000, "float32", False), ("reduce_scatter_tensor", 8000, "float32", False),
        ("all_to_all_single", 4000, "float32", False), ("barrier", 0, None, False),
    ]  # fmt: skip
    expected = [(AS_HOOKS_NAME.get(name, name), *rest) for name, *rest in expected]
    for rows, last in ((first, "send"), (second, "recv")):
        seen = [(row["operation_type"], row["bytes"], row["dtype"], row["async_op"]) for row in rows]
        assert seen[:9] == expected
        assert seen[9][:3] == (last, 4000, "float32")
        assert seen[10] == ("all_reduce", 8000, "float64", False)
        by_name = {row["operation_type"]: row for row in rows}
        for name, row in by_name.items():
            assert row["status"] == "completed", name
            # A point-to-point operation of gloo is known to be done only by a wait: too late for a completion time.
            assert (name in ("send", "recv") and row["duration_ms"] is None) or row["duration_ms"] > 0, name
        assert by_name["barrier"]["algbw_gbps"] is None
        assert rows[10]["group_name"] != rows[0]["group_name"] and rows[10]["seq"] == 0


def broken() -> list[dict[str, Any]] | None:
    dist, native = _start()
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))
        os._exit(0)  # In the middle of the run.
    native.take_rows()
    with pytest.raises(RuntimeError):
        for _ in range(1000):
            dist.all_reduce(torch.ones(100_000))
    rows = _wait_for(
        native, {}, lambda rows: any(row["status"] == "failed" for row in rows.get("python.nccl_trace", []))
    )
    result = rows["python.nccl_trace"]
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)


def test_a_failed_operation_says_so() -> None:
    rows, _ = on_ranks("broken", failing=True)
    assert rows and rows[-1]["status"] == "failed" and rows[-1]["algbw_gbps"] is None


@pytest.mark.parametrize("layers", ["-backward,optimizer=step-hooks", "collectives=patched-functions"])
def test_completion_by_futures_and_patched_functions(layers: str) -> None:
    for rows in on_ranks("every_operation", layers=layers):
        reduces = [row for row in rows if row["operation_type"] == "all_reduce"]
        assert len(reduces) >= 3
        assert all(row["status"] == "completed" and row["duration_ms"] > 0 for row in reduces)
        assert {"broadcast", "all_gather", "barrier"} <= {row["operation_type"] for row in rows}
        assert [row["bytes"] for row in rows[:9]] == [4000, 4000, 4000, 4000, 8000, 8000, 8000, 4000, 0]


def beside() -> list[str]:
    import threading

    from torch.distributed import _functional_collectives as functional

    dist, native = _start()
    native.set_beside_message("not here")
    said = []

    def snippet() -> None:
        native.thread_mode(native.ThreadMode.BESIDE)
        x, other = torch.ones(1), 1 - dist.get_rank()
        only_by_hooks = (
            lambda: functional.all_reduce(x, "sum", dist.group.WORLD),
            lambda: dist.isend(x, other),
        )
        for what in (
            *(only_by_hooks if HOOKS_OF_GROUPS else ()),
            lambda: dist.all_reduce(x),
            lambda: dist.all_reduce(x, async_op=True),
            lambda: dist.broadcast(x, 0),
            lambda: dist.all_gather_object([None, None], "text"),
            lambda: dist.send(x, other),
            dist.barrier,
            dist.monitored_barrier,
            lambda: dist.new_group([0, 1]),
            dist.destroy_process_group,
        ):
            try:
                said.append(f"ran: {what()}")
            except RuntimeError as error:
                said.append(str(error))

    thread = threading.Thread(target=snippet)
    thread.start()
    thread.join()
    # No collective was half done: the next one of all ranks succeeds.
    x = torch.ones(1)
    dist.all_reduce(x)
    said.append(str(x.item()))
    _end(dist)
    return said


def test_a_collective_beside_training_is_an_error() -> None:
    for said in on_ranks("beside"):
        assert said == ["not here"] * (11 if HOOKS_OF_GROUPS else 9) + ["2.0"]


def fsdp() -> dict[str, Any]:
    dist, native = _start()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    model = Net(64, 2)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = native.take_rows()
    _end(dist)
    return {
        "problem": native.problem(),
        "forward": sorted({row["module"] for row in rows["python.torch_trace"] if row["stage"] == "forward"}),
        "backward": sorted(
            {row["module"] for row in rows["python.torch_trace"] if row["stage"] == "backward" and row["module"]}
        ),
        "operations": sorted({row["operation_type"] for row in rows["python.nccl_trace"]}),
        "steps": len(rows["python.steps"]),
    }


@pytest.mark.skipif(torch.__version__ < "2.6", reason="the FSDP2 of torch 2.5 asks for CUDA's streams, also on the CPU")
def test_fsdp2_keeps_names_and_shows_its_operations() -> None:
    for found in on_ranks("fsdp"):
        assert found["problem"] == NO_PROBLEM and found["steps"] == 3
        assert {"layers.0.up", "layers.1.down", "head"} <= set(found["forward"]) & set(found["backward"])
        # Patched functions see those that go through them, which differs between releases.
        wanted = {AS_HOOKS_NAME.get(name, name) for name in ("all_gather_into_tensor", "reduce_scatter_tensor")}
        assert wanted <= set(found["operations"]) or not HOOKS_OF_GROUPS


def accumulating(stride: int = 1) -> dict[str, Any]:
    """Two micro-batches a step, of which DDP reduces the sum."""
    dist, native = _start()
    native.set_policy(1, stride, "all", False)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Net(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reduced = HOOKS_OF_GROUPS * sum(parameter.nbytes for parameter in model.parameters())
    for step in range(6):
        if step == 2:  # DDP arranges its buckets anew after the first step.
            _wait_for(native, {}, lambda rows: _reduced(rows) == 2 * reduced)
            native.take_rows()  # However young.
        with model.no_sync():
            model(torch.randn(4, 32)).square().mean().backward()
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = _wait_for(native, {}, lambda rows: _reduced(rows) == 4 * reduced)
    last_rows = native.take_rows()
    for table in ("python.steps", "python.torch_trace", "python.nccl_trace"):
        rows.setdefault(table, []).extend(last_rows[table])
    _end(dist)
    return {"rows": rows, "reduced": reduced, "problem": native.problem()}


def accumulating_without_detail() -> dict[str, Any]:
    return accumulating(stride=64)


def test_operations_of_backward_are_seen_in_steps_without_detail() -> None:
    for found in on_ranks("accumulating_without_detail"):
        assert found["problem"] == NO_PROBLEM and len(found["rows"]["python.steps"]) == 4
        for step in found["rows"]["python.steps"]:
            operations = of_step(found["rows"]["python.nccl_trace"], step)
            assert sum(row["bytes"] for row in operations) == found["reduced"]
            assert all(row["status"] == "completed" and row["duration_ms"] > 0 for row in operations)


def test_without_sync_nothing_is_reduced() -> None:
    for found in on_ranks("accumulating"):
        rows = found["rows"]
        assert found["problem"] == NO_PROBLEM and [step["micro_steps"] for step in rows["python.steps"]] == [2] * 4
        for step in rows["python.steps"]:
            trace, operations = of_step(rows["python.torch_trace"], step), of_step(rows["python.nccl_trace"], step)
            assert sum(row["bytes"] for row in operations) == found["reduced"]
            # All of it while the second backward pass runs.
            begin = min(row["ts"] for row in trace if row["stage"] == "backward" and row["micro_step"] == 1)
            assert all(row["ts"] > begin and row["status"] == "completed" for row in operations)
            assert {row["micro_step"] for row in trace if row["module"] == "layers.0.up"} == {0, 1}


def numbered() -> list[int]:
    """Numbers of the operations that were recorded by an agent that came late, and did not record for a while."""
    import torch.distributed as dist

    dist.init_process_group("gloo", os.environ["MEETING"], rank=int(os.environ["RANK"]), world_size=2)
    tensor = torch.ones(4)
    # Each rank is attached to after other operations.
    before = 3 + int(os.environ["RANK"])
    for _ in range(before):
        dist.all_reduce(tensor)
    import probe_agent.torch

    probe_agent.torch.install()
    from probe_agent import _native

    for _ in range(5 - before):
        dist.all_reduce(tensor)
    for layers in ("forward", "all"):
        _native.set_policy(0, 1, layers, False)
        _native.mark_step()
        dist.broadcast(tensor, 0)

    def is_there(rows: dict[str, list[Any]]) -> bool:
        return any(row["operation_type"] == "broadcast" for row in rows.get("python.nccl_trace", []))

    rows = _wait_for(_native, {}, is_there)
    dist.destroy_process_group()
    return [row["seq"] for row in rows["python.nccl_trace"] if row["operation_type"] == "broadcast"]


def test_operations_have_the_numbers_that_torch_gives_them_also_after_an_attach() -> None:
    zero, one = on_ranks("numbered")
    assert zero == one == [6]
