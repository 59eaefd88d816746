"""The conditions of a measurement, and that they are noted again when they change."""

from __future__ import annotations

import os
import pathlib
import warnings
from typing import Any
from unittest import mock

import torch
from recording_support import Net, Recorder, in_interpreter, in_process, train
from torch.utils.data import DataLoader, TensorDataset


def conditions(how: str) -> dict[str, Any]:
    """Trains under the conditions that `how` names; the rows."""
    import probe_agent.torch as agent

    torch.set_num_threads(1)
    agent.install()
    recorder = Recorder()
    model: Any = Net()
    model.head.weight.requires_grad_(False)
    count = sum(parameter.numel() for parameter in model.parameters())
    if how == "compiled":
        model = torch.compile(model, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 32))
    workers = 1 if how == "workers" else 0
    validation = DataLoader(data, batch_size=16)
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers, drop_last=True)
    with torch.no_grad():
        for (x,) in validation:
            model(x)
    for (x,) in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
            train(model, optimizer, x, 1)
    rows = [recorder.take()["python.environment"]]
    with torch.no_grad():
        list(validation)
    rows.append(recorder.take()["python.environment"])
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(True)
    list(loader)
    rows.append(recorder.take()["python.environment"])
    return {"rows": rows, "parameters": count, "problem": recorder.native.problem()}


def test_conditions_are_noted_and_changes_of_them() -> None:
    found = in_process(conditions, arguments=("plain",))
    assert found["problem"] == ""
    # The recorder took the first row, of what was known before training.
    ((row,), nothing, (changed,)) = found["rows"]
    assert nothing == []
    assert row["torch_version"] == torch.__version__ and row["platform"].startswith("Linux-")
    assert row["cpu_cores"] == len(os.sched_getaffinity(0)) and row["machine_cores"] >= row["cpu_cores"]
    assert row["machine_memory"] > 100
    assert (row["default_dtype"], row["autocast"], row["autocast_dtype"]) == ("float32", False, None)
    assert (row["cudnn_benchmark"], row["deterministic_algorithms"]) == (False, False)
    assert (row["float32_matmul_precision"], row["torch_threads"]) == ("highest", 1)
    # Unknown, because CUDA was not initialised.
    assert row["gpu_count"] is row["gpu_models"] is row["cudnn_version"] is None
    assert (row["model"], row["wrapper"], row["device"]) == ("Net", None, "cpu")
    assert (row["parameters"], row["trainable_parameters"]) == (found["parameters"], found["parameters"] - 32 * 32)
    assert (row["parameter_bytes"], row["parameter_dtype"]) == (4 * found["parameters"], "float32")
    assert row["memory_format"] is None
    assert (row["anomaly_detection"], row["torch_profiler"], row["cuda_launch_blocking"]) == (False, False, None)
    assert (row["optimizer_fused"], row["optimizer_foreach"], row["find_unused_parameters"]) == (None, None, None)
    assert (row["optimizer"], row["batch_shape"]) == ("AdamW", "[4, 32]")
    assert (row["dataset"], row["sampler"], row["batch_size"]) == ("TensorDataset", "RandomSampler", 4)
    assert (row["num_workers"], row["prefetch_factor"], row["start_method"]) == (0, None, None)
    assert (row["drop_last"], row["pin_memory"], row["persistent_workers"]) == (True, False, False)
    assert (changed["cudnn_benchmark"], changed["deterministic_algorithms"]) == (True, True)
    assert changed["model"] == "Net" and changed["batch_size"] == 4


def test_workers_autocast_and_wrappers() -> None:
    row = in_process(conditions, arguments=("workers",))["rows"][0][-1]
    assert (row["num_workers"], row["prefetch_factor"]) == (1, 2)
    assert row["start_method"] in ("fork", "forkserver", "spawn")
    row = in_process(conditions, arguments=("compiled",))["rows"][0][-1]
    assert (row["model"], row["wrapper"]) == ("Net", "OptimizedModule")


def switches() -> dict[str, Any]:
    """Trains with anomaly detection on at first, and under a profiler 256 steps later."""
    import probe_agent.torch as agent

    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    agent.install()
    recorder = Recorder()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False, fused=True)
    x = torch.randn(2, 4)
    with torch.autograd.detect_anomaly(check_nan=False):
        train(model, optimizer, x, 4)
    first = recorder.take()["python.environment"][-1]
    with torch.autograd.profiler.profile():
        train(model, optimizer, x, 256)
    return {"first": first, "later": recorder.take()["python.environment"][-1]}


def test_switches_are_read_again_while_training() -> None:
    found = in_process(switches)
    first, later = found["first"], found["later"]
    assert (first["anomaly_detection"], first["torch_profiler"]) == (True, False)
    assert (first["optimizer_foreach"], first["optimizer_fused"]) == (False, True)
    assert first["torch_distributed_debug"] == "DETAIL"
    assert (later["anomaly_detection"], later["torch_profiler"]) == (False, True)


def two_models() -> dict[str, Any]:
    """A model, and a smaller one that is called after it."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model, critic = Net(), torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], lr=0.1)
    for _ in range(4):
        (model(torch.randn(4, 32)).sum() + critic(torch.randn(3, 5, 32)).sum()).backward()
        optimizer.step()
    return recorder.take()["python.environment"][-1]


def test_the_shape_of_the_batch_is_that_of_the_model() -> None:
    row = in_process(two_models)
    assert (row["model"], row["batch_shape"]) == ("Net", "[4, 32]")


def memory_formats() -> list[Any]:
    """The memory formats of models, each with more parameters than the one before."""
    import probe_agent.torch as agent

    agent.install()
    recorder, formats = Recorder(), []
    plain, last = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    mixed = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 8, 3))
    mixed[1].to(memory_format=torch.channels_last)
    volumes = torch.nn.Conv3d(3, 32, 3).to(memory_format=torch.channels_last_3d)
    # Of a kernel of one place, and of one for one channel, both formats are the same.
    points = torch.nn.Sequential(torch.nn.Conv2d(3, 2048, 1), torch.nn.Conv2d(2048, 2048, 3, groups=2048))
    for model in (plain, last, mixed, volumes, points):
        x = torch.randn(1, 3, 8, 8, 8) if model is volumes else torch.randn(1, 3, 8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, x, 2)
        formats.append(recorder.take()["python.environment"][-1]["memory_format"])
    return formats


def test_the_memory_format_of_kernels() -> None:
    assert in_process(memory_formats) == [
        "contiguous",
        "channels_last",
        "channels_last+contiguous",
        "channels_last",
        None,
    ]


def parallel(directory: str) -> dict[str, Any]:
    """A model in DistributedDataParallel, in a group of one."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
    wrapper = torch.nn.parallel.DistributedDataParallel
    model = wrapper(Net(), find_unused_parameters=True, gradient_as_bucket_view=True, bucket_cap_mb=2)
    model(torch.randn(2, 32))
    row = recorder.take()["python.environment"][-1]
    torch.distributed.destroy_process_group()
    return row


def test_options_of_data_parallel(tmp_path: pathlib.Path) -> None:
    row = in_process(parallel, arguments=(str(tmp_path),))
    assert (row["wrapper"], row["find_unused_parameters"], row["static_graph"]) == (
        "DistributedDataParallel",
        True,
        False,
    )
    assert (row["gradient_as_bucket_view"], row["bucket_cap"]) == (True, 2 << 20)


def autocast_from_the_start() -> dict[str, Any]:
    """The first call of the model is under autocast."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Net()(torch.randn(2, 32))
    return recorder.take()["python.environment"][-1]


def test_autocast_is_seen_where_the_model_is_called() -> None:
    row = in_process(autocast_from_the_start)
    assert (row["autocast"], row["autocast_dtype"]) == (True, "bfloat16")


def warned_while_tracing() -> list[str]:
    """Files that a warning points to while a model that was not met before is traced."""
    import probe_agent.torch as agent

    agent.install()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.jit.trace(Net(), torch.randn(2, 32))
    return [warning.filename for warning in caught]


def test_nothing_is_asked_of_a_model_that_is_traced() -> None:
    assert not [name for name in in_process(warned_while_tracing) if "probe_agent" in name]


def test_looking_initialises_no_cuda_and_loads_no_cudnn() -> None:
    assert in_interpreter(what_is_loaded) == [False, False]


def what_is_loaded() -> list[bool]:
    """Whether CUDA is initialised after training, and cuDNN loaded."""
    conditions("plain")
    with open("/proc/self/maps") as maps:
        return [torch.cuda.is_initialized(), "libcudnn_ops" in maps.read()]


def left_out(how: str) -> dict[str, Any]:
    """Trains a model whose last layer was replaced after the optimizer was made; the newest row, and how often all objects of the
    process were looked through, which stops training for a while."""
    import probe_agent.torch as agent
    from probe_agent.torch import optimizer as optimizer_layer

    agent.install()
    recorder = Recorder()
    body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(body, head)
    if how == "copies":
        copies = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = torch.optim.SGD(copies, lr=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seldom = None
    if how in ("replaced", "seldom", "frozen"):
        model[1] = torch.nn.Linear(4, 3).requires_grad_(how != "frozen")
    if how == "seldom":
        seldom = torch.optim.SGD(model[1].parameters(), lr=0.1)
    x = torch.randn(2, 4)
    others = [torch.nn.Linear(4, 4) for _ in range(2)]
    teacher = torch.nn.Linear(4, 4)
    if how == "taught":
        teacher(x).sum().backward()
        torch.optim.SGD(teacher.parameters(), lr=0.1).step()
    looks = mock.patch.object(optimizer_layer, "_living", wraps=optimizer_layer._living).start()
    for step in range(300):
        if how == "taught":
            with torch.no_grad():
                teacher(x)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if seldom is not None and step == 299:
            seldom.step()
        if how == "in turn":
            # The other models are trained too, each by an optimizer that is made anew.
            for other in others:
                made = torch.optim.SGD(other.parameters(), lr=0.1)
                other(x).sum().backward()
                made.step()
                made.zero_grad()
                other(x).sum().backward()
                del made
    row = recorder.take()["python.environment"][-1]
    return {"row": row, "problem": recorder.native.problem(), "looks": looks.call_count}


def test_parameters_that_nothing_learns_by_are_named() -> None:
    for how, expected in [
        ("replaced", (15, "1.weight")),
        ("whole", (0, None)),
        ("frozen", (0, None)),
        ("seldom", (0, None)),
        ("copies", (None, None)),
        ("taught", (0, None)),
        ("in turn", (0, None)),
    ]:
        found = in_process(left_out, arguments=(how,))
        row = found["row"]
        assert (row["unoptimized_parameters"], row["unoptimized_parameter"]) == expected, how
        assert found["problem"] == "", how
        assert found["looks"] == 0, how


def optimizers_made(how: str) -> dict[str, Any]:
    """Trains for 70 steps; the newest row."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model = torch.nn.Linear(4, 4)
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(70):
        made = torch.optim.AdamW(model.parameters()) if how in ("anew", "inner") else kept
        made.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        made.step()
        if how == "inner":
            kept.step()
    return recorder.take()["python.environment"][-1]


def test_optimizers_that_are_gone_are_counted() -> None:
    for how, expected in [("anew", (63, 63)), ("inner", (63, 127)), ("kept", (0, None))]:
        row = in_process(optimizers_made, arguments=(how,))
        assert (row["optimizers_gone"], row["optimizer_steps"]) == expected, how
