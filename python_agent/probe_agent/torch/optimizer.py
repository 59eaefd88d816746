"""Records steps of optimizers, which end training steps."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, Callable

from probe_agent import _native
from probe_agent.torch import autograd, environment, hook_tables, modules
from probe_agent.torch.layers import skipped_by_dynamo

#: The attribute in which a wrapped step keeps torch's own.
_INNER = "__probe_inner__"

_handles: list[hook_tables.TableHook] = []
#: Optimizers that have stepped, by address, and those of which the environment was noted.
_seen: dict[int, weakref.ref[Any]] = {}
_noted: set[int] = set()
#: Optimizers that were made since the agent started, by address, and, once they were looked for, those from before.
_made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_looked_for_older = False
_profile_hook_step: Any = None
_patch_step_function: Any = None

#: Steps of optimizers after which the switches of training are read again, and the number of steps that have begun.
_LOOK_AGAIN = 256
#: The step before which gradients are looked at for the first time: by then several optimizers have mostly stepped in turn.
_FIRST_LOOK = 32
#: Gradients are remembered between two looks, to tell those that have changed from those that earlier training left.
_FIRST_REMEMBERED, _REMEMBERED_AGAIN = _FIRST_LOOK // 2, _LOOK_AGAIN // 2
_begun = 0
#: How many optimizers have stepped, also those that are gone.
_stepped = 0


def use_record_function(explicit: bool) -> None:
    """Time steps by the RecordFunction range around each; the hook before it tells the optimizer. In a backward pass in which there
    is no callback of ranges, the hooks before and after it time the steps of optimizers that have no wrapper.

    torch takes some ten microseconds to enter and leave that range, which belong to the step too: optimizers made from now on
    (torch wraps a class's ``step`` when its first optimizer is made) get a wrapper around it.
    """
    autograd.require_record_function(explicit)
    autograd.use_for_optimizers()
    _handles.append(hook_tables.before_steps(_pre))
    if _has_been_any():
        _handles.append(hook_tables.after_steps(_post))
    _wrap_steps()


def use_step_hooks(explicit: bool) -> None:
    """Time steps by torch's global hooks before and after each. The hook after a step is not called if the step raises; steps
    of optimizers made from now on are then ended by the wrapper around them."""
    _handles.append(hook_tables.before_steps(_pre))
    _handles.append(hook_tables.after_steps(_post))
    _wrap_steps()


def remove() -> None:
    """Remove the hooks and wrappers."""
    global _profile_hook_step, _patch_step_function, _begun, _stepped
    for handle in _handles:
        handle.remove()
    _handles.clear()
    if _patch_step_function is not None:
        from torch.optim import Optimizer

        Optimizer._patch_step_function = _patch_step_function
        _patch_step_function = None
    if _profile_hook_step is not None:
        from torch.optim import Optimizer

        Optimizer.profile_hook_step = _profile_hook_step
        _profile_hook_step = None
        _unwrap_steps(Optimizer)
    for address in list(_seen):
        _gone(address, None)
    # Optimizers that stay are counted anew if the agent comes again.
    _begun = _stepped = 0


def steps_begun() -> int | None:
    """The number of optimizer steps that have begun; None where they are not watched."""
    return _begun if _handles else None


def is_any() -> bool:
    """Whether there is an optimizer, which may step at some time. All objects are searched only if no known optimizer is alive."""
    if not _has_been_any():
        return False
    if any(True for _ in _made.values()):
        return True
    for found in _living():
        _made[id(found)] = found
        return True
    return False


def _has_been_any() -> bool:
    """Whether an optimizer was made in this process. This takes no time."""
    import torch

    waiting: list[type] = [torch.optim.Optimizer]
    while waiting:
        cls = waiting.pop()
        waiting.extend(type.__subclasses__(cls))
        # torch marks classes that have had an object. Only the type of each object is read, which runs no code.
        if getattr(cls.__dict__.get("step"), "hooked", False):
            return True
    return False


def _living() -> Iterator[Any]:
    """All optimizers that there are. Looking at every object takes a while."""
    import torch

    from probe_agent.live_objects import live_objects

    optimizer = torch.optim.Optimizer
    return (known for known in live_objects() if issubclass(type(known), optimizer))


def _all_living() -> list[Any]:
    """All optimizers. Those that were made before the agent came are looked for once, because that stops training."""
    global _looked_for_older
    if not _looked_for_older:
        _looked_for_older = True
        for known in _living():
            _made[id(known)] = known
    return list(_made.values())


def _notice_new() -> None:
    """Note which optimizers are made from now on."""
    global _patch_step_function, _looked_for_older
    from torch.optim import Optimizer

    _looked_for_older = not _has_been_any()
    original = _patch_step_function = Optimizer.__dict__.get("_patch_step_function")
    if original is None:
        return
    made = _native.optimizer_made

    @functools.wraps(original)
    def patch_step_function(self: Any) -> None:
        original(self)
        _made[id(self)] = self
        made(id(self))

    Optimizer._patch_step_function = skipped_by_dynamo(patch_step_function)


def _wrap_steps() -> None:
    global _profile_hook_step
    import torch

    _notice_new()
    _profile_hook_step = torch.optim.Optimizer.__dict__.get("profile_hook_step")
    if _profile_hook_step is None:
        return
    original: Callable[[Any], Any] = torch.optim.Optimizer.profile_hook_step
    is_compiling, run = torch.compiler.is_compiling, _native.run_optimizer_step

    def profile_hook_step(func: Any) -> Any:
        hooked = original(func)

        @functools.wraps(hooked)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return hooked(self, *args, **kwargs)
            # No function of ours is called here: Dynamo would compile it with a step that is compiled.
            address = id(self)
            if address not in _seen:
                _seen[address] = weakref.ref(self, partial(_gone, address))
            return run(hooked, self, (self, *args), kwargs)

        step.__dict__[_INNER] = hooked
        return skipped_by_dynamo(step)

    torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)


def _unwrap_steps(optimizer: Any) -> None:
    """Put torch's own ``step`` back in the subclasses of ``optimizer`` that have ours."""
    waiting = [optimizer]
    while waiting:
        cls = waiting.pop()
        waiting.extend(type.__subclasses__(cls))
        step = cls.__dict__.get("step")
        inner = getattr(step, "__dict__", {}).get(_INNER)
        if inner is not None:
            inner.hooked = True  # torch's mark of a step that it need not wrap again.
            cls.step = inner


def begin_in_child() -> None:
    """Count anew, in a forked child that becomes an agent. Optimizers of the parent may go on there, and are seen again."""
    global _begun, _stepped
    _begun = _stepped = 0
    _noted.clear()


def _pre(optimizer: Any, args: Any, kwargs: Any) -> None:
    global _begun, _stepped
    import torch

    if torch.compiler.is_compiling():
        return
    address = id(optimizer)
    if address not in _noted:
        _noted.add(address)
        _stepped += 1
        _seen.setdefault(address, weakref.ref(optimizer, partial(_gone, address)))
        environment.optimizer_stepped(optimizer)
    _begun += 1
    is_later = _begun % _LOOK_AGAIN == 0
    if is_later:
        environment.steps_later()
    is_look = is_later or _begun == _FIRST_LOOK
    if is_look or _begun == _FIRST_REMEMBERED or _begun % _LOOK_AGAIN == _REMEMBERED_AGAIN:
        known = [reference() for reference in list(_seen.values())]
        look = environment.gradients_are_there if is_look else environment.gradients_before
        look(modules.roots(), [of for of in known if of is not None], _all_living)
    # Check at growing intervals: each check may write a row.
    if _begun >= _FIRST_LOOK and _begun & (_begun - 1) == 0:
        environment.optimizers_gone(_stepped - len(_noted), _begun - 1)
    _native.optimizer_pre(optimizer)


def _post(optimizer: Any, args: Any, kwargs: Any) -> None:
    import torch

    if not torch.compiler.is_compiling():
        _native.optimizer_post(optimizer)


# Not by its name in the module: at the end of the interpreter that may be None before the last optimizer goes.
def _gone(address: int, _reference: Any, forget: Callable[[int], None] = _native.optimizer_gone) -> None:
    _seen.pop(address, None)
    _noted.discard(address)
    forget(address)
