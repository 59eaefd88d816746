"""Records collectives: by hooks on every process group, else by patched functions of torch.distributed."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable

from probe_agent import _native, signals
from probe_agent.torch.layers import Unavailable, skipped_by_dynamo
from probe_agent.torch.unseen import unseen

#: The number of our hooks of a process group; hooks run in the order of their numbers.
_HOOK = 0x70726F62

#: Functions that the hooks would keep a snippet from, and that patched functions don't record. Not isend and irecv: torch
#: compares them by identity (P2POp), and would refuse a program the functions that it imported before.
_UNHOOKED = ("send", "recv", "batch_isend_irecv", "gather", "scatter", "reduce_scatter", "all_to_all",
             "all_reduce_coalesced", "all_gather_coalesced")  # fmt: skip

#: The problem of a torch whose process groups have no hooks.
WITHOUT_HOOKS = "collectives: this torch's process groups have no hooks, so what DDP and FSDP ask of them is not seen"

_originals: list[tuple[Any, str, Any, Any]] = []
_watched: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_hooks = False


def use_group_hooks(explicit: bool) -> None:
    """Register a hook before and after each operation on every group, present and future."""
    global _hooks
    c10d = _c10d()
    if not _have_hooks(c10d):
        raise Unavailable  # `_watch` reports that when there is a group.
    _hooks = True
    _wrap_makers(c10d)
    _wrap_others(c10d)
    _wrap_wait(c10d)
    watch_groups()


def use_patched_functions(explicit: bool) -> None:
    """Patch torch.distributed's functions. Misses the operations that DDP and FSDP call past them."""
    import torch.distributed as dist

    c10d = _c10d()
    _wrap_makers(c10d)
    _wrap_others(c10d, *_UNHOOKED)
    _wrap_wait(c10d)
    for name in ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "reduce",
                 "all_to_all_single", "barrier"):  # fmt: skip
        original = getattr(c10d, name)
        _patch(c10d, name, _recorded(name, original))
        _replace(dist, name, original, getattr(c10d, name))
    watch_groups()


def watch_groups() -> None:
    """Watch every process group that is not watched yet."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return
    if _originals:  # A program that uses DTensor may import it after its first group.
        _wrap_functional_wait()
    for group in list(c10d._world.pg_map):
        try:
            if group not in _watched:
                _watch(c10d, group)
        except Exception as error:
            if signals.is_of_the_program(error):
                raise
            _native.set_problem(f"collectives: a process group is not watched: {error!r}")


def remove_hooks() -> None:
    """Remove the hooks of every group. Also called at exit: a group may outlive the interpreter that the hooks need."""
    for group in list(_watched):
        try:
            group.unregister_pre_hook(_HOOK)
            group.unregister_post_hook(_HOOK)
        except Exception:  # Destroyed, or without hooks.
            pass
    _watched.clear()


def remove() -> None:
    """Remove hooks and patches."""
    global _hooks
    _hooks = False
    remove_hooks()
    while _originals:
        namespace, name, ours, original = _originals.pop()
        if getattr(namespace, name, None) is ours:
            setattr(namespace, name, original)


def _c10d() -> Any:
    import torch

    if not torch.distributed.is_available():
        raise Unavailable("this torch is built without torch.distributed")
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        raise Unavailable("torch.distributed has not been imported")
    return c10d


def _have_hooks(c10d: Any) -> bool:
    return hasattr(c10d.ProcessGroup, "register_pre_hook") and hasattr(c10d.ProcessGroup, "register_post_hook")


def _watch(c10d: Any, group: Any) -> None:
    name = c10d._world.pg_names.get(group) or group.group_name
    backends = _backends(c10d._world.pg_map[group][0])
    watcher = _native.CollectiveGroup(str(name), group.size(), backends, sequence(group), _follower(group, backends))
    if not _watched and not _have_hooks(c10d):
        _native.set_problem(WITHOUT_HOOKS)
    _watched[group] = watcher
    if not _hooks:
        return

    group.register_pre_hook(_HOOK, watcher.pre)
    group.register_post_hook(_HOOK, watcher.post)


def _follower(group: Any, backends: list[tuple[str, str]]) -> Callable[[int, Any], None]:
    """The function to call after an operation whose end nothing else reports. It doesn't keep the group alive."""
    reference = weakref.ref(group)
    has_nccl = any(backend == "nccl" for _, backend in backends)

    def follow(key: int, args: Any) -> None:
        work = args.work
        _await(key, work, has_nccl)
        if work is None:
            _returned(reference())

    return follow


def sequence(group: Any) -> int:
    """Torch's own number of the newest operation on a group; 0 where its backend keeps none."""
    try:
        return int(group._get_sequence_number_for_group())
    except Exception as error:
        if signals.is_of_the_program(error):
            raise
        return 0


def may_differ(group: Any) -> bool:
    """Whether ranks of a group may have different numbers although they are at the same point of training."""
    watcher = _watched.get(group)
    return watcher is not None and watcher.has_messages()


def _backends(text: str) -> list[tuple[str, str]]:
    """``gloo`` or ``cpu:gloo,cuda:nccl`` as pairs of device type (empty: any) and backend."""
    pairs = [part.split(":", 1) for part in str(text).split(",")]
    return [(pair[0], pair[1]) if len(pair) == 2 else ("", pair[0]) for pair in pairs]


def _await(key: int, work: Any, has_nccl: bool) -> None:
    """Makes the operation's future report its end. NCCL's future can't: it is done when the operation is enqueued."""
    future = None
    if work is not None and not has_nccl:
        try:
            future = work.get_future()
        except Exception as error:
            if signals.is_of_the_program(error):
                raise
    if future is None:
        _native.collective_posted(key)
    else:
        future.add_done_callback(_native.CollectiveEnd(key))


def _returned(group: Any) -> None:
    """Note that an operation was issued without a work object: it is complete for the following work of its stream. An operation
    that is coalesced with others is only issued with them."""
    if group not in sys.modules["torch.distributed.distributed_c10d"]._world.pg_coalesce_state:
        _native.collective_returned()


def _wrap_makers(c10d: Any) -> None:
    """Look for new groups after every function that makes one."""
    import torch.distributed as dist

    def after(original: Callable[..., Any], learn: Callable[[], None]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            _native.may_talk()
            result = original(*args, **kwargs)
            try:
                learn()
            except Exception as error:
                if signals.is_of_the_program(error):
                    raise
                _native.set_problem(f"collectives: {error!r}")
            return result

        return make

    for name in ("_new_process_group_helper", "new_group", "split_group", "init_process_group"):
        original = getattr(c10d, name, None)
        if original is not None:
            _patch(c10d, name, after(original, _initialized if name == "init_process_group" else watch_groups))
            _replace(dist, name, original, getattr(c10d, name))


def _wrap_others(c10d: Any, *more: str) -> None:
    """Refuse a snippet beside training the functions that communicate with other ranks, or end their group, past the hooks."""
    import torch
    import torch.distributed as dist

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                _native.may_talk()
            return original(*args, **kwargs)

        return call

    for name in ("monitored_barrier", "destroy_process_group", *more):
        original = getattr(c10d, name, None)
        if original is not None:
            # A monitored barrier is made of messages that no hook sees, so there is only the wait.
            _patch(c10d, name, guarded(_waiting(original) if name == "monitored_barrier" else original))
            _replace(dist, name, original, getattr(c10d, name))


def _wrap_wait(c10d: Any) -> None:
    """Record how long threads wait for operations."""
    _patch(c10d.Work, "wait", _waiting(c10d.Work.wait))
    _wrap_functional_wait()


def _wrap_functional_wait() -> None:
    """Record how long threads wait for the results of functional collectives, on which DTensor is built."""
    tensor = getattr(sys.modules.get("torch.distributed._functional_collectives"), "AsyncCollectiveTensor", None)
    if any(namespace is tensor for namespace, *_ in _originals):
        return
    for name in ("trigger_wait", "wait"):
        if hasattr(tensor, name):
            _patch(tensor, name, _waiting(getattr(tensor, name)))


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, whose calls are waits."""
    import torch

    is_compiling, run = torch.compiler.is_compiling, _native.run_wait

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        return run(original, args, kwargs)

    return skipped_by_dynamo(wait)


def _initialized() -> None:
    watch_groups()
    _native.first_use()
    try:
        from probe_agent import process
    except ImportError:
        return
    process.identity_changed()


def _patch(namespace: Any, name: str, ours: Any) -> None:
    _originals.append((namespace, name, ours, getattr(namespace, name)))
    setattr(namespace, name, ours)


def _replace(namespace: Any, name: str, original: Any, ours: Any) -> None:
    if getattr(namespace, name, None) is original:
        _patch(namespace, name, ours)


def _recorded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, recorded: the fallback without hooks."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        import torch

        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        _native.may_talk()
        group, watcher, key = _issue(name, args, kwargs)
        if not key:
            return original(*args, **kwargs)
        try:
            work = original(*args, **kwargs)
        except BaseException:
            _native.collective_done(key, True)
            raise
        if work is None:
            _returned(group)
            _native.collective_done(key, False)
        else:
            _await(key, work, "nccl" in watcher.backends())
        return work

    return call


def _group(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, c10d.ProcessGroup)]
    return given[0] if given else c10d._get_default_group()


@unseen
def _issue(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, int]:
    """The group, its watcher and the operation's key; 0 where it is not recorded. Errors do not reach the program."""
    import torch

    try:
        group = _group(args, kwargs)
        watcher = _watched.get(group)
        if watcher is None:
            return None, None, 0
        given: list[list[Any]] = []
        for value in (*args, *kwargs.values()):
            items = value if isinstance(value, (list, tuple)) else [value]
            given.append([item for item in items if isinstance(item, torch.Tensor)])
        is_async = bool(kwargs.get("async_op", False)) or any(value is True for value in args)
        # The size is the larger of inputs and outputs.
        largest = max(given, key=lambda tensors: sum(tensor.nbytes for tensor in tensors), default=[])
        return group, watcher, watcher.issue(name, is_async, sequence(group), largest, [])
    except Exception as error:
        if signals.is_of_the_program(error):
            raise
        _native.set_problem(f"collectives: {name} is not recorded: {error!r}")
        return None, None, 0
