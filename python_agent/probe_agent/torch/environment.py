"""Notes the conditions of a measurement at points that training passes anyway: when an outermost module is met, an optimizer
steps for the first time, or a DataLoader is iterated. This never initialises CUDA."""

from __future__ import annotations

import os
import platform
import sys
import types
from collections.abc import Iterable
from typing import Any, Callable

from probe_agent import _native, signals
from probe_agent.torch import unoptimized
from probe_agent.torch.unseen import unseen
from probe_agent.torch.wrappers import WRAPPERS, wrapper_of

#: Facts about what a process does besides calling its model.
_OF_PROGRAM = (
    "find_unused_parameters", "static_graph", "gradient_as_bucket_view", "bucket_cap", "optimizer", "optimizer_fused",
    "optimizer_foreach", "optimizers_gone", "optimizer_steps", "unoptimized_parameters", "unoptimized_parameter", "dataset",
    "sampler", "batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "drop_last", "start_method",
)  # fmt: skip

_on = False
_original: Any = None
_ours: Any = None
_model_size = -1
_trains = False
_optimizer_seen = False


def use_torch(explicit: bool) -> None:
    """Note the known facts now, and others when they become known."""
    global _on, _original, _ours, _model_size, _trains, _optimizer_seen
    from torch.utils.data import dataloader

    _on, _model_size, _trains, _optimizer_seen = True, -1, False, False
    _note(_process)
    _note(_flags)
    if _original is None:
        _original = dataloader._BaseDataLoaderIter.__init__
        _ours = _native.LoaderMethod(_original, types.MethodType, "__init__", _iterated)
        dataloader._BaseDataLoaderIter.__init__ = _ours


def begin_in_child() -> None:
    """Note anew what a forked child trains. The model stays the parent's until the child calls another one for the first time."""
    global _model_size, _trains, _optimizer_seen
    _model_size, _trains, _optimizer_seen = -1, False, False
    _native.note_environment(dict.fromkeys(_OF_PROGRAM))


# It takes any arguments, which another torch, or a library that replaced it, may pass.
def _iterated(iterator: Any, *arguments: Any, **named: Any) -> None:
    """Note the DataLoader of an iterator that was made."""
    loader = arguments[0] if arguments else named.get("loader")
    if loader is not None and _on and _native.is_enabled():
        _note(_loader, loader)
        _note(_flags)


def remove() -> None:
    """Note no more."""
    global _on, _original, _ours
    _on = False
    if _original is not None:
        from torch.utils.data import dataloader

        if dataloader._BaseDataLoaderIter.__init__ is _ours:
            dataloader._BaseDataLoaderIter.__init__ = _original
        _original = _ours = None


def root_called(root: Any) -> None:
    """Note the model: an outermost module is about to be called for the first time."""
    if _on:
        _note(_model, root)
        _note(_flags)


def steps_later() -> None:
    """Note the switches again some steps later, on the thread that trains: they may have changed."""
    if _on:
        _note(_flags)


def gradients_before(roots: list[Any], optimizers: list[Any], living: Callable[[], Iterable[Any]]) -> None:
    """Remember the gradients that :func:`gradients_are_there` compares with, some steps later."""
    if _on:
        _note(unoptimized.remember, roots, optimizers, living)


def gradients_are_there(roots: list[Any], optimizers: list[Any], living: Callable[[], Iterable[Any]]) -> None:
    """Note which parameters get gradients and are in no optimizer, when an optimizer is about to step."""
    if _on:
        _note(unoptimized.find, roots, optimizers, living)


def optimizer_stepped(optimizer: Any) -> None:
    """Note an optimizer that is about to step for the first time."""
    if _on:
        _note(_optimizer, optimizer)


def optimizers_gone(gone: int, steps: int) -> None:
    """Note how many of the optimizers that have made ``steps`` steps together are gone."""
    if _on:
        _note(_optimizers_gone, gone, steps)


@unseen
def _note(gather: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    """Note the facts that ``gather`` returns. Its errors do not reach training."""
    try:
        _native.note_environment(gather(*arguments))
    except Exception as error:
        if signals.is_of_the_program(error):
            raise
        _native.set_problem(f"environment: {error!r}")


def _maybe(ask: Callable[[], Any]) -> Any:
    """The result of ``ask``; None if this torch does not have the function."""
    try:
        return ask()
    except Exception as error:
        if signals.is_of_the_program(error):
            raise
        return None


def _process() -> dict[str, Any]:
    import torch

    value = os.environ.get
    return {
        "cuda_launch_blocking": value("CUDA_LAUNCH_BLOCKING"),
        "nccl_debug": value("NCCL_DEBUG"),
        "torch_distributed_debug": value("TORCH_DISTRIBUTED_DEBUG"),
        "python_version": platform.python_version(),
        "platform": f"{platform.system()}-{platform.release()}-{platform.machine()}",
        "cpu_cores": len(os.sched_getaffinity(0)),
        "machine_cores": os.cpu_count(),
        "torch_version": str(torch.__version__),
        "cuda_version": torch.version.cuda,
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _flags() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "default_dtype": _name(torch.get_default_dtype()),
        "cudnn_benchmark": _maybe(lambda: bool(torch._C._get_cudnn_benchmark())),
        "cudnn_deterministic": _maybe(lambda: bool(torch._C._get_cudnn_deterministic())),
        "anomaly_detection": _maybe(torch.is_anomaly_enabled),
        "torch_profiler": _maybe(torch.autograd._profiler_enabled),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        # These raise if the program has mixed torch's two ways of setting them.
        "float32_matmul_precision": _maybe(torch.get_float32_matmul_precision),
        "matmul_tf32": _maybe(lambda: bool(torch._C._get_cublas_allow_tf32())),
        "cudnn_tf32": _maybe(lambda: bool(torch._C._get_cudnn_allow_tf32())),
        "torch_threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }
    if "torch.cuda" in sys.modules and torch.cuda.is_initialized():
        count = torch.cuda.device_count()
        models = {torch.cuda.get_device_name(device): None for device in range(count)}
        facts.update(
            gpu_count=count,
            gpu_models=", ".join(models),
            cudnn_version=_maybe(torch.backends.cudnn.version),
        )
    return facts


def _model(root: Any) -> dict[str, Any]:
    global _model_size
    import torch

    if torch.jit.is_tracing():  # A trace would follow what is asked here.
        return {}
    parameters = list(root.parameters())
    if not parameters:
        return {}
    sizes = [_maybe(parameter.numel) for parameter in parameters]
    if None in sizes:  # A lazy module, whose parameters have no size yet: it is met again, with one.
        return {}
    size = sum(sizes)
    if size <= _model_size:
        return {}
    _model_size = size
    inner: Any = root
    wrappers: list[str] = []
    parallel: dict[str, Any] = {}
    while True:
        classes = type(inner).__mro__
        names = [cls.__name__ for cls in classes if cls.__module__.startswith("torch.")]
        wrapper = wrapper_of(inner)
        below = inner._modules.get(WRAPPERS[wrapper]) if wrapper else None
        if wrapper is None or below is None:
            break
        wrappers.append(wrapper)
        if wrapper == "DistributedDataParallel":
            parallel = _parallel(inner)
        inner = below
    model = type(inner).__name__
    if "FSDPModule" in names:  # A class that FSDP2 made of the model's: itself, FSDPModule, the model's.
        wrappers.append("FSDPModule")
        model = classes[2].__name__
    device = parameters[0].device
    autocast = _maybe(lambda: torch.is_autocast_enabled(device.type))
    dtype = _maybe(lambda: torch.get_autocast_dtype(device.type)) if autocast else None
    return {
        **parallel,
        "model": model,
        "model_address": id(root),
        "wrapper": "+".join(wrappers) or None,
        "parameters": size,
        "trainable_parameters": sum(n for n, parameter in zip(sizes, parameters) if parameter.requires_grad),
        "parameter_bytes": sum(n * parameter.element_size() for n, parameter in zip(sizes, parameters)),
        "parameter_dtype": "+".join(sorted({_name(parameter.dtype) for parameter in parameters})),
        "memory_format": _maybe(lambda: _memory_format(parameters)),
        "device": str(device),
        "autocast": autocast,
        "autocast_dtype": None if dtype is None else _name(dtype),
    }


def _memory_format(parameters: list[Any]) -> str | None:
    """The order of the dimensions of ``parameters`` in memory, of those that have channels and a place; None without any."""
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    found = set()
    for parameter in parameters:
        if parameter.dim() in formats:
            last = parameter.is_contiguous(memory_format=formats[parameter.dim()])
            # A kernel of one place, or for one channel, is stored in the same way in both.
            if last != parameter.is_contiguous():
                found.add("channels_last" if last else "contiguous")
    return "+".join(sorted(found)) or None


def _parallel(wrapper: Any) -> dict[str, Any]:
    flags = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    facts = {name: _flag(getattr(wrapper, name, None)) for name in flags}
    bucket = getattr(wrapper, "bucket_bytes_cap", None)
    return {**facts, "bucket_cap": bucket if isinstance(bucket, int) else None}


def _optimizer(optimizer: Any) -> dict[str, Any]:
    global _optimizer_seen
    if _optimizer_seen:
        return {}
    _optimizer_seen = True
    group = _maybe(lambda: optimizer.param_groups[0]) or {}
    return {
        "optimizer": type(optimizer).__name__,
        "optimizer_fused": _flag(group.get("fused")),
        "optimizer_foreach": _flag(group.get("foreach")),
    }


def _optimizers_gone(gone: int, steps: int) -> dict[str, Any]:
    # The number of steps would be a new row each time.
    return {"optimizers_gone": gone, "optimizer_steps": steps if gone else None}


def _loader(loader: Any) -> dict[str, Any]:
    global _trains
    import torch

    # The first one that trains is the one; a validation's says something only until then.
    if _trains:
        return {}
    _trains = torch.is_grad_enabled()

    # A library may hand torch's iterators something that is only like a DataLoader (fastai).
    def known(name: str) -> Any:
        return getattr(loader, name, None)

    def is_on(name: str) -> bool | None:
        return None if known(name) is None else bool(known(name))

    def class_of(value: Any) -> str | None:
        return None if value is None else type(value).__name__

    workers = known("num_workers")
    context = known("multiprocessing_context") if workers else None
    method = _maybe(lambda: torch.multiprocessing.get_start_method(allow_none=False)) if workers else None
    by_sample = known("batch_sampler") is None or known("batch_size") is not None
    return {
        "dataset": class_of(known("dataset")),
        "sampler": class_of(known("sampler" if by_sample else "batch_sampler")),
        "batch_size": known("batch_size"),
        "num_workers": workers,
        "prefetch_factor": known("prefetch_factor") if workers else None,
        "pin_memory": is_on("pin_memory"),
        "persistent_workers": is_on("persistent_workers"),
        "drop_last": is_on("drop_last"),
        "start_method": method if context is None else context.get_start_method(),
    }


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
