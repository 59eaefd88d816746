"""What placement knows of a value without running code: its owner and, where it can be seen, the object."""

from __future__ import annotations

import builtins
import inspect
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from importlib.machinery import PathFinder
from typing import Any

from probe_agent import user_code
from probe_agent.eval.rules import REACHING_THINGS

# The owner of a value (`whose`), from harmless to not: made by the snippet, a builtin, of a library, reached from the
# training code.
OWN, BUILTIN, LIBRARY, LIVE = range(4)


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()


class AbstractValue:
    """A value as far as it is known.

    `known` is the object itself where it can be reached without running code, `type` its exact type where only that is
    certain. `fresh`: the snippet made the object, whatever is in it, so the snippet may change it. `function`: a
    function or class that the snippet defines. `path`: the dotted name of a builtin or of something of a library.
    """

    __slots__ = ("fresh", "function", "known", "path", "type", "whose")

    def __init__(
        self,
        whose: int,
        path: str = "",
        known: Any = UNKNOWN,
        type: type | None = None,
        fresh: bool = False,
        function: bool = False,
    ) -> None:
        self.whose, self.path, self.known, self.function = whose, path, known, function
        self.type = type if known is UNKNOWN else known.__class__ if type is None else type
        self.fresh = fresh or whose == OWN

    def same(self, other: AbstractValue) -> bool:
        """Whether both say the same."""
        return self.known is other.known and all(
            getattr(self, slot) == getattr(other, slot) for slot in self.__slots__ if slot != "known"
        )

    def join(self, other: AbstractValue) -> AbstractValue:
        """The value that is known if it is one or the other."""
        if self.same(other):
            return self
        return AbstractValue(
            max(self.whose, other.whose),
            self.path if self.path == other.path else "",
            self.known if self.known is other.known else UNKNOWN,
            self.type if self.type is other.type else None,
            self.fresh and other.fresh,
            self.function and other.function,
        )


def own(type: type | None = None) -> AbstractValue:
    """Something that the snippet made of nothing live."""
    return AbstractValue(OWN, type=type)


def holding(parts: list[AbstractValue], type: type | None) -> AbstractValue:
    """Something that the snippet made, with `parts` in it."""
    live = any(part.whose == LIVE for part in parts)
    return AbstractValue(LIVE if live else OWN, type=type, fresh=True)


def live(known: Any = UNKNOWN) -> AbstractValue:
    """Something that training may use too."""
    return AbstractValue(LIVE, known=known)


SCALARS = (int, float, complex, bool, str, bytes, type(None), type(...), range, slice)
CONTAINERS = (list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict, Counter)
ITERABLES: tuple[type, ...] = (*CONTAINERS, type({}.keys()), type({}.values()), type({}.items()), *SCALARS)

# Methods that only read, of exactly these types.
READING_METHODS: dict[type, frozenset[str]] = {
    kind: frozenset(
        name
        for name in ("copy", "count", "get", "index", "items", "keys", "values", "isdisjoint", "issubset", "issuperset",
                     "union", "intersection", "difference", "symmetric_difference", "most_common", "total", "elements")
        if hasattr(kind, name)
    )
    for kind in CONTAINERS
}  # fmt: skip


def of_name(name: str, names: dict[str, Any]) -> AbstractValue | None:
    """What the training code, or Python itself, means by a name; None where neither knows it."""
    if name in names and name != "__builtins__":
        return classify(names[name])
    if hasattr(builtins, name):
        return AbstractValue(BUILTIN, name, known=getattr(builtins, name))
    return None


def classify(thing: Any) -> AbstractValue:
    """An object that a name of the training code stands for."""
    kind = type(thing)
    if kind in SCALARS:
        return AbstractValue(OWN, known=thing)
    if isinstance(thing, types.ModuleType):
        return of_module(thing)
    if isinstance(thing, type) or kind in (types.FunctionType, types.BuiltinFunctionType):
        return _callable(thing)
    return live(thing)


def of_module(module: types.ModuleType) -> AbstractValue:
    """A module: a library's, or the user's own, which is as live as anything in it."""
    if user_code.is_user_module(module):
        return live(module)
    return AbstractValue(LIBRARY, getattr(module, "__name__", ""), known=module)


def _callable(thing: Any) -> AbstractValue:
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", "")
    bound = getattr(thing, "__self__", None)
    if isinstance(bound, types.ModuleType):
        module = bound.__name__
    elif bound is not None and not isinstance(thing, type):
        return live(thing)  # a builtin method of some live object
    if module == "builtins":
        return AbstractValue(BUILTIN, name, known=thing)
    found = sys.modules.get(module) if isinstance(module, str) else None
    if found is None or "<locals>" in name or user_code.is_user_module(found):
        return live(thing)
    return AbstractValue(LIBRARY, f"{module}.{name}", known=thing)


def imported(name: str) -> AbstractValue:
    """The module that `import name` gives, without importing it."""
    module = sys.modules.get(name)
    if module is not None:
        return of_module(module)
    top = sys.modules.get(name.partition(".")[0])
    if top is not None:
        return live() if user_code.is_user_module(top) else AbstractValue(LIBRARY, name)
    try:
        spec = PathFinder.find_spec(name.partition(".")[0])
    except Exception:
        spec = None
    mine = spec is not None and spec.origin is not None and user_code.is_user_file(spec.origin)
    return live() if mine else AbstractValue(LIBRARY, name)


def attribute(value: AbstractValue, name: str) -> AbstractValue:
    """`value.name`, found without running a property or `__getattr__`."""
    if value.whose in (LIBRARY, BUILTIN):
        found = static(value.known, name)
        if isinstance(found, types.ModuleType):
            return of_module(found)
        path = f"{value.path}.{name}"
        if path in REACHING_THINGS:
            return AbstractValue(LIVE, type=dict)
        return AbstractValue(value.whose, path, known=found)
    if value.whose == OWN:
        return own()
    found = static(value.known, name)
    if type(found) in SCALARS:
        return AbstractValue(OWN, known=found)
    if isinstance(found, types.ModuleType):
        return of_module(found)
    return live(found)


def static(thing: Any, name: str) -> Any:
    """An attribute as it lies in the object, or UNKNOWN where getting it would run code."""
    if thing is UNKNOWN:
        return UNKNOWN
    inside = instance_dictionary(thing)
    # torch.nn.Module keeps its parts where only its __getattr__ finds them.
    for part in ("_modules", "_parameters", "_buffers"):
        kept = inside.get(part)
        if isinstance(kept, dict) and name in kept:
            return kept[name]
    try:
        found = inspect.getattr_static(thing, name)
    except (AttributeError, TypeError):
        return UNKNOWN
    if name in inside and not isinstance(thing, (type, types.ModuleType)):
        return found
    if isinstance(found, types.MemberDescriptorType):  # a slot
        try:
            return found.__get__(thing, type(thing))
        except AttributeError:
            return UNKNOWN
    # A property, a method: what comes out of it is made when it is asked for.
    descriptor = hasattr(type(found), "__get__") and not isinstance(thing, (type, types.ModuleType))
    return UNKNOWN if descriptor else found


def instance_dictionary(thing: Any) -> dict[str, Any]:
    """What lies in an object itself; empty where it keeps nothing."""
    try:
        inside = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return inside if type(inside) is dict else {}


def item(value: AbstractValue, key: AbstractValue) -> AbstractValue:
    """`value[key]`."""
    if value.whose in (OWN, BUILTIN):
        return own()
    if value.whose == LIBRARY:
        return own()
    if value.type in (list, tuple, dict, OrderedDict) and value.known is not UNKNOWN and type(key.known) in SCALARS:
        try:
            return _part(value.known[key.known])
        except (KeyError, IndexError, TypeError):
            return live()
    return live()


def _part(thing: Any) -> AbstractValue:
    return AbstractValue(OWN, known=thing) if type(thing) in SCALARS else live(thing)


def element(value: AbstractValue) -> AbstractValue | None:
    """What iterating over `value` gives; None if that may run code of the training program."""
    if value.whose != LIVE:
        return own()
    if value.known is UNKNOWN:
        return live() if value.fresh or value.type in ITERABLES else None
    if value.type in (list, tuple, set, deque) and len(value.known) <= 10_000:
        if all(type(part) in SCALARS for part in list(value.known)):
            return own()
    return live() if value.type in ITERABLES or _is_torch_container(value.type) else None


def _is_torch_container(kind: type | None) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or kind is None:
        return False
    nn = torch.nn
    return kind in (nn.ModuleList, nn.Sequential, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, torch.Size)
