"""Keeps a snippet beside training from training, where no layer of recording does that.

Recording's hooks look at the thread's mode anyway, and where they are this adds nothing. A layer that PROBE_LAYERS left
out, or that does not work here, has none. Then there is something for as long as a snippet runs beside training: modules
and optimizers are seen by a mode of torch that only the snippet's thread is in, by which of them its call of torch comes
from. The engine and the process groups have no such mode, so their entries are wrapped meanwhile: training's own calls pass
through one more function of Python and one comparison.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

# A snippet beside training ends with this at what its syntax could not show.
MESSAGE = (
    "a snippet beside training must not train (call a module in training mode with gradients on, run backward(), step an "
    "optimizer, speak with other ranks); hint: --at step runs it between two steps"
)

# Methods of a process group that communicate or end it; torch.distributed's functions all call these.
_TALKING = (
    "_allgather_base", "_reduce_scatter_base", "abort", "all_gather_single", "all_gather_single_coalesced",
    "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
    "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather", "gather_into_tensor",
    "gather_single", "merge_remote_group", "monitored_barrier", "reconfigure", "recv", "recv_anysource", "reduce",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
    "scatter", "send", "shutdown", "split_group",
)  # fmt: skip
_MAKING = ("_new_process_group_helper", "destroy_process_group", "init_process_group", "new_group", "split_group")


@contextmanager
def guarded(layers: dict[str, str], problem: Callable[[str], object]) -> Iterator[None]:
    """Keeps the calling thread from training meanwhile. `layers`: the mechanism of each layer that records. `problem` gets a
    message if something can't be watched."""
    torch = sys.modules.get("torch")
    with ExitStack() as stack:
        if torch is not None:
            off = {layer for layer in ("forward", "optimizer", "backward") if layers.get(layer, "off") == "off"}
            try:
                if off & {"forward", "optimizer"}:
                    stack.enter_context(_watched_calls(torch))
                if "backward" in off:
                    for namespace in (torch.autograd, torch.autograd.graph):
                        stack.enter_context(refused(namespace, "_engine_run_backward"))
                if layers.get("collectives") != "pg_hooks":
                    guard_groups(stack)
            except Exception as error:
                problem(f"a snippet beside training is not kept from all training: {error!r}")
        yield


def guard_groups(stack: ExitStack, message: str = MESSAGE) -> None:
    """Ends the calling thread's calls of process groups with an error, until the stack is left."""
    c10d, dist = sys.modules.get("torch.distributed.distributed_c10d"), sys.modules.get("torch.distributed")
    if c10d is None:
        return
    for name in _TALKING:
        stack.enter_context(refused(c10d.ProcessGroup, name, message))
    for namespace in (c10d, dist):
        for name in _MAKING:
            stack.enter_context(refused(namespace, name, message))


class _Guard:
    """One use of :func:`refused`."""

    def __init__(self, message: str) -> None:
        self.thread, self.message = threading.get_ident(), message


class _Refusal:
    """A function that replaces another one: it ends calls of some threads with an error and passes on those of others."""

    def __init__(self, original: Any) -> None:
        #: Threads whose calls it refuses, each with its guards.
        threads: dict[int, list[_Guard]] = {}
        identifier = threading.get_ident

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            guards = threads.get(identifier())
            if guards:
                raise RuntimeError(guards[-1].message)
            return original(*args, **kwargs)

        self.original, self.threads, self.call = original, threads, _seen_through(call)
        #: Namespaces and names where it was put, and the entry before: a class may hand out another object than it has (a
        #: function for a method).
        self.replaced: list[tuple[Any, str, Any]] = []

    def put(self, namespace: Any, name: str) -> None:
        self.replaced.append((namespace, name, vars(namespace).get(name)))
        setattr(namespace, name, self.call)

    def take_out(self) -> None:
        # Where the entry was replaced again meanwhile, the newer one stays, and ours passes calls through.
        for namespace, name, before in self.replaced:
            if vars(namespace).get(name) is self.call:
                delattr(namespace, name) if before is None else setattr(namespace, name, before)


#: Refusals that are in force. Guards of two threads may overlap and end in any order, so there is one refusal for a
#: function, which is taken out with the last guard. A function that two namespaces share stays shared, because recording
#: checks that.
_refusals: list[_Refusal] = []
# Reentrant, because garbage may be collected while it is held, and a guard that was interrupted as it began takes it when it is freed.
_lock = threading.RLock()


def begin_in_child() -> None:
    """Takes out the refusals of the parent's snippet, in a forked child that becomes an agent."""
    global _lock
    _lock = threading.RLock()
    for refusal in _refusals:
        refusal.take_out()
    _refusals.clear()


@contextmanager
def refused(namespace: Any, name: str, message: str = MESSAGE) -> Iterator[None]:
    """Ends the calling thread's calls of a function with an error; those of other threads pass through."""
    if getattr(namespace, name, None) is None:
        yield
        return
    guard = _Guard(message)
    try:
        _refuse(namespace, name, guard)
        yield
    finally:
        _end(guard.thread, guard)


def end_of_snippet() -> None:
    """Ends the guards that are left on the calling thread, once the snippet can't be interrupted any more.

    An interrupt may come at any moment, also while a guard ends. On the thread that trains, a guard that is left would refuse
    training's own calls for ever.
    """
    _end(threading.get_ident())


def _refuse(namespace: Any, name: str, guard: _Guard) -> None:
    with _lock:
        found = getattr(namespace, name)
        known = [one for one in _refusals if found is one.call or found is one.original]
        refusal = known[0] if known else _Refusal(found)
        if not known:
            _refusals.append(refusal)
        if found is not refusal.call:
            refusal.put(namespace, name)
        refusal.threads.setdefault(guard.thread, []).append(guard)


def _end(thread: int, guard: _Guard | None = None) -> None:
    """Ends one guard of a thread, or all of them, and takes out the refusals that no guard needs any more."""
    with _lock:
        for refusal in [*_refusals]:
            guards = refusal.threads.get(thread, [])
            guards[:] = [each for each in guards if guard is not None and each is not guard]
            if not guards:
                refusal.threads.pop(thread, None)
            if not refusal.threads and refusal in _refusals:
                refusal.take_out()
                _refusals.remove(refusal)


def _seen_through(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Dynamo trace through `function`, where recording knows how."""
    try:
        from probe_agent.torch.layers import skipped_by_dynamo
    except ImportError:
        return function
    return skipped_by_dynamo(function)


def _watched_calls(torch: Any) -> Any:
    """A mode of the calling thread, in which a call of torch from within a module or an optimizer's step is refused."""
    from torch.overrides import TorchFunctionMode

    module_class, optimizer_class = torch.nn.Module, torch.optim.Optimizer
    modules_code = {
        function.__code__
        for name in ("_call_impl", "_wrapped_call_impl")
        if (function := getattr(module_class, name, None)) is not None and hasattr(function, "__code__")
    }
    optimizers_file = sys.modules[optimizer_class.__module__].__file__

    def trains() -> bool:
        frame: Any = sys._getframe(2)
        gradients = torch.is_grad_enabled()
        while frame is not None:
            code = frame.f_code
            if code in modules_code:
                if gradients and frame.f_locals["self"].training:
                    return True
            elif code.co_name == "wrapper" and code.co_filename == optimizers_file:
                return True
            elif code.co_name == "step" and isinstance(frame.f_locals.get("self"), optimizer_class):
                return True
            frame = frame.f_back
        return False

    class ForbidTraining(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if trains():
                raise RuntimeError(MESSAGE)
            return func(*args, **(kwargs or {}))

    return ForbidTraining()
