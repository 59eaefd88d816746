"""Finds the names of modules by a walk from the outermost one at its first call, and forgets them when the modules are freed."""

from __future__ import annotations

import time
import weakref
from functools import partial
from typing import Any, Callable

from probe_agent import _native, signals
from probe_agent.torch import environment, forward, hook_tables, parents
from probe_agent.torch.unseen import unseen
from probe_agent.torch.wrappers import WRAPPERS, wrapper_of

#: The description of a module for native code: address, name, class, device, whether it is compiled, whether it has
#: parameters.
_Described = tuple[Any, ...]

#: Outermost modules without a child or a parameter (`nn.ReLU()(x)`, a loss made anew for each batch) that may be walked.
#: Beyond this number they are not walked: their name is their class, which is known without a walk.
_WALKS = 10_000

#: Seconds that walks of the roots of one class may take, and the share of the time that they may take beyond that. Programs that
#: make their modules anew each time (`nn.DataParallel`'s replicas, clones for a meta-learner) would walk in every step.
_FREE, _SHARE = 1.0, 0.002

_known: dict[int, weakref.ref[Any]] = {}
_root_of: dict[int, weakref.ref[Any]] = {}
_with_parameters: set[int] = set()
#: Outermost modules that had no parameters when they were called for the first time. Some make their layers in that call.
_maybe_unbuilt: set[int] = set()
#: Names of modules below their outermost module; empty for the outermost one.
_paths: dict[int, str] = {}
#: The handle of the hook that torch calls when a module is added to another.
_registrations: Any = None
_walks = 0
_walked: weakref.WeakKeyDictionary[type, _Walked] = weakref.WeakKeyDictionary()

#: Whether gradient hooks are wanted (the fallback of backward), and the hooks that are installed.
_grad_hooks = False
_hooked: dict[int, tuple[weakref.ref[Any], Any]] = {}


def register(root: Any, again: bool) -> tuple[bool, bool]:
    """Name every module below ``root``. Native code calls it before an outermost call of a module that it does not know, and before
    the second one of a module that had no parameters.

    ``again``: modules were called in it that the walk before did not find. Returns whether ``root`` is known now, and
    whether there are parameters in it.
    """
    global _walks
    if again:
        root = _outermost(root)
    elif id(root) in _known:
        maybe_unbuilt = id(root) in _maybe_unbuilt
        _maybe_unbuilt.discard(id(root))
        if not maybe_unbuilt or not (root._modules or root._parameters):
            return True, id(root) in _with_parameters
    is_first = id(root) not in _known
    if not root._modules and not any(parameter is not None for parameter in root._parameters.values()):
        if _walks >= _WALKS:
            return False, False
        _walks += 1
    begun = time.perf_counter()
    walked = _walked.get(type(root))
    if walked is not None and walked.is_spent(begun):
        _name_as_before(root, walked)
        return True, walked.root[-1]
    found: list[_Found] = []
    _walk(root, _path_above(root), None, found, set())
    environment.root_called(root)
    described = _learn(found, weakref.ref(root))
    if walked is None:
        walked = _walked[type(root)] = _Walked(begun)
    walked.root = described[1:]
    walked.seconds += time.perf_counter() - begun
    if is_first and not found[0].has_parameters and id(root) in _known:
        _maybe_unbuilt.add(id(root))
    return True, found[0].has_parameters


def watch_registrations() -> None:
    """Name modules that are added to a module after its walk, before their first call, and note the parent of each module."""
    global _registrations
    if _registrations is None:
        _registrations = hook_tables.at_registrations(_registered)


def _registered(parent: Any, name: str, child: Any) -> None:
    """Torch calls this before ``child`` is added to ``parent``. Most often that is in a constructor, of an unknown module."""
    if child is None or _registrations is None:
        return
    parents.note(parent, name, child)
    reference = _known.get(id(parent))
    if reference is None or reference() is not parent:
        return
    root = _outermost(parent)
    begun = time.perf_counter()
    walked = _walked.get(type(root))
    if walked is not None and walked.is_spent(begun):
        return
    try:
        _name_child(root, parent, name, child)
    except Exception as error:  # Torch would raise it where the program adds the module.
        if signals.is_of_the_program(error):
            raise
        _native.set_problem(f"finding the names of modules: {error!r}")
    if walked is not None:
        walked.seconds += time.perf_counter() - begun


@unseen
def _name_child(root: Any, parent: Any, name: str, child: Any) -> None:
    """Name ``child`` and the modules below it as parts of ``parent``, which is known."""
    path, wrapper = _paths.get(id(parent), ""), wrapper_of(parent)
    if wrapper is None or name != WRAPPERS[wrapper]:
        path = f"{path}.{name}" if path else name
    found: list[_Found] = []
    _walk(child, path, parent, found, set())
    # A module with two parents has the name under the first one.
    new = [entry for entry in found if _outermost(entry.module) is entry.module]
    if new:
        _learn(new, weakref.ref(root))


def _learn(found: list[_Found], root: weakref.ref[Any]) -> _Described:
    """Remember the modules that a walk found, parents first. Returns the description of the first one."""
    devices: dict[int, str | None] = {}
    described: list[_Described] = []
    for entry in found:
        module = entry.module
        device = entry.device or (devices.get(id(entry.parent)) if entry.parent is not None else None)
        devices[id(module)] = device
        compiled = entry.wrapper == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        described.append((id(module), entry.shown, type(module).__name__, device, compiled, entry.has_parameters))
        _remember(module, root)
        _paths[id(module)] = entry.path
        if entry.has_parameters:
            _with_parameters.add(id(module))
        if forward.slots_are_patched():
            _native.patch_type(type(module))
            _native.name_type(type(module))
        if _grad_hooks:
            _hook_gradients(module)
    _native.name_modules(described)
    return described[0]


def _outermost(module: Any) -> Any:
    """The outermost module that ``module`` was found below; itself where there is none. No module is tested for truth here:
    that would ask for its length, where it has one."""
    reference = _root_of.get(id(module))
    root = reference() if reference is not None else None
    return module if root is None else root


def roots() -> list[Any]:
    """The outermost modules with parameters that have been called."""
    known = [(address, _known[address]()) for address in list(_with_parameters) if address in _known]
    return [module for address, module in known if module is not None and _outermost(module) is module]


class _Walked:
    """The walks of a class of roots: since when, the seconds that they took, and the description of the last root."""

    __slots__ = ("root", "seconds", "since")

    def __init__(self, since: float) -> None:
        self.since, self.seconds = since, 0.0
        self.root: tuple[str | None, str, str | None, bool, bool] = (None, "", None, False, False)

    def is_spent(self, now: float) -> bool:
        """Whether walks of this class have used up the time that is allowed until ``now``."""
        return self.seconds > _FREE + _SHARE * (now - self.since)


def _name_as_before(root: Any, walked: _Walked) -> None:
    """Describe ``root`` like the last root of its class, but with its own name. The modules in it are not described, and have
    the names of their classes."""
    if id(root) not in _known:
        _remember(root, weakref.ref(root))
        path = _paths[id(root)] = _path_above(root)
        _native.name_modules([(id(root), _shown(path, wrapper_of(root)), *walked.root[1:])])
        if walked.root[-1]:
            _with_parameters.add(id(root))


def want_gradient_hooks() -> None:
    """Hook the gradients of all known modules, and of every module that is named from now on."""
    global _grad_hooks
    _grad_hooks = True
    for reference in list(_known.values()):
        module = reference()
        if module is not None:
            _hook_gradients(module)


def remove() -> None:
    """Forget all modules and remove the gradient hooks."""
    global _grad_hooks, _walks, _registrations
    _grad_hooks = False
    _walks = 0
    if _registrations is not None:
        _registrations.remove()
        _registrations = None
    parents.forget()
    _walked.clear()
    for _, handle in _hooked.values():
        handle.remove()
    _hooked.clear()
    for address in list(_known):
        _forget(address, None)


def name_below(root: Any, module: Any) -> str:
    """The name of ``module``, which was called within ``root``; the name of its class if it has none."""
    owner = _outermost(module)
    root = root if owner is module else owner
    found: list[_Found] = []
    _walk(root, _path_above(root), None, found, set())
    shown = next((entry.shown for entry in found if entry.module is module), None)
    return shown or type(module).__name__


def shown_name(module: Any) -> str:
    """The name that rows have of ``module``: its qualified name, or the name of its class."""
    return _shown(_paths.get(id(module), ""), wrapper_of(module)) or type(module).__name__


class _Found:
    """A module on the walk. ``shown``: its qualified name, or None if rows have the name of its class."""

    __slots__ = ("device", "has_parameters", "module", "parent", "path", "shown", "wrapper")

    def __init__(self, module: Any, path: str, shown: str | None, parent: Any, wrapper: str | None) -> None:
        self.module = module
        self.path = path
        self.shown = shown
        self.parent = parent
        self.wrapper = wrapper
        self.device: str | None = None
        self.has_parameters = False


def _path_above(root: Any) -> str:
    """The name of ``root`` below the outermost module that it is in; empty where it is in none."""
    names = [name for parent, name in parents.above(root) if name != WRAPPERS.get(wrapper_of(parent) or "")]
    return ".".join(reversed(names))


def _shown(path: str, wrapper: str | None) -> str | None:
    """The name that rows have; None if they have the name of the class. The module inside a compiled one is never called by
    itself, so the compiled one has the name."""
    return path if path and wrapper in (None, "OptimizedModule") else None


def _walk(module: Any, path: str, parent: Any, found: list[_Found], seen: set[int]) -> _Found:
    """Add ``module`` and those below it, parents first. A module with two parents has the name under the first one."""
    seen.add(id(module))
    wrapper = wrapper_of(module)
    entry = _Found(module, path, _shown(path, wrapper), parent, wrapper)
    found.append(entry)
    for parameter in module._parameters.values():
        if parameter is not None:
            entry.device = str(parameter.device)
            entry.has_parameters = True
            break
    for name, child in module._modules.items():
        if child is None or id(child) in seen:
            continue
        if wrapper is not None and name == WRAPPERS[wrapper]:
            below = _walk(child, path, module, found, seen)
        else:
            below = _walk(child, f"{path}.{name}" if path else name, module, found, seen)
        entry.device = entry.device or below.device
        entry.has_parameters = entry.has_parameters or below.has_parameters
    return entry


def _remember(module: Any, root: weakref.ref[Any]) -> None:
    address = id(module)
    _root_of[address] = root
    if address not in _known:
        try:
            _known[address] = weakref.ref(module, partial(_forget, address))
        except TypeError:  # A class without weak references: its address must not be taken for another's.
            pass


# Not by its name in the module: at the end of the interpreter that may be None before the last module of torch goes.
def _forget(address: int, _reference: Any, forget: Callable[[int], None] = _native.forget_module) -> None:
    _known.pop(address, None)
    _root_of.pop(address, None)
    _with_parameters.discard(address)
    _maybe_unbuilt.discard(address)
    _paths.pop(address, None)
    forget(address)


def _hook_gradients(module: Any) -> None:
    for parameter in module._parameters.values():
        if parameter is None or not parameter.requires_grad or not parameter.is_leaf or id(parameter) in _hooked:
            continue
        handle = parameter.register_post_accumulate_grad_hook(partial(_native.gradient_ready, id(module)))
        gone = weakref.ref(parameter, partial(_unhook, id(parameter)))
        _hooked[id(parameter)] = (gone, handle)


def _unhook(address: int, _reference: Any) -> None:
    _hooked.pop(address, None)
