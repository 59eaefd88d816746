"""Keeps training's state at a boundary, so that the effects of code that runs there can be undone to the last bit.

It keeps parameters, their gradients, buffers, and attributes of modules, optimizers, learning-rate schedulers and gradient
scalers, wherever in the process they are, the generators of random numbers, and whether garbage is collected. It does not keep
objects of other classes.
"""

from __future__ import annotations

import collections
import functools
import gc
import operator
import random
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from probe_agent.benchmark.refused import RefusedError
from probe_agent.eval.ended import SnippetEnded
from probe_agent.live_objects import live_objects

#: Entries of the largest container that is looked into; a larger one is data, and is not kept.
MAX_ENTRIES = 100_000
#: Levels of containers within containers that are looked into.
MAX_DEPTH = 6
#: Share of the free memory that copies may take.
MAX_SHARE = 0.5

_CONTAINERS = (dict, list, set, collections.OrderedDict, collections.defaultdict, collections.deque)


class _Tensor(NamedTuple):
    tensor: Any
    #: Shares the tensor's memory, also where `tensor.data` is replaced meanwhile.
    alias: Any
    #: None where there is nothing to copy.
    copy: Any
    version: int | None


class KeptState:
    """The state at the boundary where this is made. :meth:`put_back` undoes all changes since."""

    def __init__(self, torch: Any, objects: list[Any]) -> None:
        """`objects`: :func:`training_objects`."""
        began = time.perf_counter()
        self.torch = torch
        self.tensors: list[_Tensor] = []
        #: Tensors, their gradients, and the copies that replace those until :meth:`put_back`.
        self.gradients: list[tuple[Any, Any, Any]] = []
        self.containers: list[tuple[Any, Any]] = []
        #: Bytes of the copies.
        self.bytes = 0
        self._seen: set[int] = set()
        self._found: list[Any] = []
        for kept in objects:
            self._look(vars(kept), 0)
        self._copy()
        self._undo = self._of_process()
        #: Seconds that keeping it took.
        self.seconds = time.perf_counter() - began

    def _look(self, value: Any, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, self.torch.Tensor):
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self._found.append(value)
        elif kind is tuple or kind in _CONTAINERS:
            if id(value) in self._seen or len(value) > MAX_ENTRIES or depth > MAX_DEPTH:
                return
            self._seen.add(id(value))
            if kind is not tuple:
                self.containers.append((value, value.copy()))
            for each in list(value.values() if isinstance(value, dict) else value):
                self._look(each, depth + 1)

    def _copy(self) -> None:
        torch = self.torch
        gradients = [tensor.grad for tensor in self._found if tensor.is_leaf and tensor.grad is not None]
        destinations = _destinations(torch, [*self._found, *gradients])
        with torch.no_grad():
            for tensor in self._found:
                if not _has_memory(tensor):
                    self.tensors.append(_Tensor(tensor, tensor.detach(), None, _version(tensor)))
                    continue
                copy = _copied(tensor, destinations)
                self.bytes += copy.numel() * copy.element_size()
                self.tensors.append(_Tensor(tensor, tensor.detach(), copy, _version(tensor)))
            for tensor in self._found:
                if tensor.is_leaf:
                    copy = None
                    if tensor.grad is not None:
                        copy = tensor.grad.detach().clone()
                        self.bytes += copy.numel() * copy.element_size()
                    self.gradients.append((tensor, tensor.grad, copy))

    def replace_gradients(self) -> None:
        """Puts a copy in the place of each gradient: the timed code sees its values and adds to the copy. :meth:`put_back`
        undoes it, also where this was interrupted."""
        for tensor, gradient, copy in self.gradients:
            if gradient is not None:
                tensor.grad = copy

    def _of_process(self) -> list[Callable[[], object]]:
        torch = self.torch
        state = random.getstate()
        undo: list[Callable[[], object]] = [lambda: random.setstate(state)]
        of_cpu = torch.get_rng_state()
        undo.append(lambda: torch.set_rng_state(of_cpu))
        # Not `is_available`: that calls the driver, and children that are forked later could not use CUDA.
        if torch.cuda.is_initialized():
            of_devices = torch.cuda.get_rng_state_all()
            undo.append(lambda: torch.cuda.set_rng_state_all(of_devices))
        # numpy imports this module when it is first used.
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            of_numpy = numpy_random.get_state()
            undo.append(lambda: numpy_random.set_state(of_numpy))
        if gc.isenabled():
            undo.append(gc.enable)
        return undo

    def put_back(self) -> int:
        """Undoes all changes, also when it is interrupted meanwhile: that is raised at its end. Returns how many tensors
        had changed. Raises RuntimeError where something could not be put back."""
        changed: list[_Tensor] = []
        todo: list[Callable[[], object]] = [*self._undo]
        todo += [functools.partial(self._fill, *kept) for kept in self.containers]
        todo += [functools.partial(self._restore_gradient, tensor, before) for tensor, before, _ in self.gradients]
        todo += [functools.partial(self._restore_noting, kept, changed) for kept in self.tensors]
        interrupted: BaseException | None = None
        problems: list[str] = []
        while todo:
            try:
                while todo:
                    todo[-1]()
                    todo.pop()
            except (SnippetEnded, KeyboardInterrupt) as error:
                interrupted = error
            except Exception as error:
                todo.pop()
                problems.append(repr(error))
        if interrupted is not None:
            raise interrupted
        if problems:
            raise RuntimeError(f"not all of training's state could be put back: {problems[0]}")
        return len(changed)

    def _fill(self, container: Any, copy: Any) -> None:
        if isinstance(container, dict):
            now, before = ([*each.keys(), *each.values()] for each in (container, copy))
        else:
            now, before = list(container), list(copy)
        if len(now) != len(before) or any(map(operator.is_not, now, before)):
            container.clear()
            (container.extend if isinstance(container, (list, collections.deque)) else container.update)(copy)

    def _restore_gradient(self, tensor: Any, gradient: Any) -> None:
        if tensor.grad is not gradient:
            tensor.grad = gradient

    def _restore_noting(self, kept: _Tensor, changed: list[_Tensor]) -> None:
        if self._restore(kept):
            changed.append(kept)

    def _restore(self, kept: _Tensor) -> bool:
        """Puts one tensor back. Returns whether it had changed."""
        torch = self.torch
        with torch.no_grad():
            moved = kept.tensor.data_ptr() != kept.alias.data_ptr() if _has_memory(kept.alias) else False
            if moved:
                kept.tensor.data = kept.alias
            if kept.copy is None:
                return moved
            unchanged = kept.version is not None and _version(kept.tensor) == kept.version
            # Writing through .data is not counted as a version.
            if unchanged and torch.equal(kept.alias.to(kept.copy.device), kept.copy):
                return moved
            kept.alias.copy_(kept.copy)
            return True


def training_objects(torch: Any) -> list[Any]:
    """All modules, optimizers, learning-rate schedulers and gradient scalers of the process."""
    classes = [torch.nn.Module, torch.optim.Optimizer]
    for module, name in (("torch.optim.lr_scheduler", "LRScheduler"), ("torch.amp.grad_scaler", "GradScaler")):
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type):
            classes.append(found)
    # By type: `isinstance` asks the object, which may run its own code for the answer.
    wanted, by_type = tuple(classes), {}
    objects = live_objects()
    for kind in set(map(type, objects)):
        by_type[kind] = issubclass(kind, wanted)
    return [each for each in objects if by_type[type(each)] and hasattr(each, "__dict__")]


def _has_memory(tensor: Any) -> bool:
    import torch

    if tensor.device.type == "meta" or tensor.layout is not torch.strided:
        return False
    return bool(tensor.numel() > 0 and tensor.untyped_storage().size() > 0)


def _version(tensor: Any) -> int | None:
    # Tensors of inference mode have no version.
    return None if tensor.is_inference() else int(tensor._version)


def _copied(tensor: Any, destinations: dict[Any, Any]) -> Any:
    destination = destinations[tensor.device]
    try:
        return tensor.detach().clone() if destination == tensor.device else tensor.detach().to(destination, copy=True)
    except Exception as error:
        text = f"a tensor of {type(tensor).__name__} can't be copied ({error}), so it could not be put back"
        raise RefusedError(text, "probe eval --at step runs Python there and puts nothing back") from None


def _destinations(torch: Any, tensors: list[Any]) -> dict[Any, Any]:
    """The device that holds the copies of each device's tensors: the device itself, else the host.

    Raises RefusedError if memory does not suffice.
    """
    needed: dict[Any, int] = collections.defaultdict(int)
    for tensor in tensors:
        if _has_memory(tensor):
            needed[tensor.device] += tensor.numel() * tensor.element_size()
    destinations, on_host = {}, 0
    host = torch.device("cpu")
    for device, size in needed.items():
        fits = device.type == "cuda" and size <= MAX_SHARE * torch.cuda.mem_get_info(device)[0]
        destinations[device] = device if fits else host
        on_host += 0 if fits else size
    free = _free_memory()
    if free is not None and on_host > MAX_SHARE * free:
        text = f"copies of training's state need {on_host / 1e9:.3g} GB, and {free / 1e9:.3g} GB of memory are free"
        raise RefusedError(text, "probe eval --at step runs Python there and puts nothing back")
    return destinations


def _free_memory() -> int | None:
    """Bytes of memory that are available, as the kernel estimates; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
