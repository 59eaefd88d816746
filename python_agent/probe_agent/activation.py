"""Waits for torch, without importing anything before it does: a finder that steps aside when torch has been imported, or,
where an import of torch is under way, the end of that.

Before torch is imported this costs a millisecond; the native half is loaded only afterwards.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from probe_agent import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_begun = False
#: Ends of imports that are waited for: one at most.
_awaited: list[_EndOfImport] = []


def begin() -> None:
    """Makes the agent come up once torch has been imported, where this kind of process may need it. Never raises."""
    global _begun
    if _begun:
        return
    kind = process.kind()
    if kind == "none":
        return
    _begun = True
    when_imported = _trainer if kind == "trainer" else _child
    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _TorchFinder(when_imported))
    elif getattr(torch.__spec__, "_initializing", False):
        _EndOfImport(torch, when_imported)
    else:
        when_imported()


def end() -> None:
    """Waits for torch no more."""
    global _begun
    _begun = False
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _TorchFinder)]
    _awaited.clear()


def waiting() -> bool:
    """Whether torch has not been imported yet."""
    return bool(_awaited) or any(isinstance(finder, _TorchFinder) for finder in sys.meta_path)


def _trainer() -> None:
    from probe_agent import agent, presence

    presence.note("has called no module, stepped no optimizer and joined no process group since")
    agent.install()


def _child() -> None:
    """A process that multiprocessing spawned trains if it joins a process group; a DataLoader's worker never does."""
    import functools

    from torch import distributed

    from probe_agent import presence

    presence.note("is a process that multiprocessing made and joined no process group")
    if not distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    original = distributed_c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        for module in (distributed, distributed_c10d):
            if module.init_process_group is init_process_group:
                module.init_process_group = original
        _trainer()
        # Looked up again: what was installed just now has its own.
        return distributed_c10d.init_process_group(*args, **kwargs)

    distributed.init_process_group = distributed_c10d.init_process_group = init_process_group


class _TorchFinder:
    """Finds torch as the other finders do, and calls `then` once it has been executed.

    It stays until then: libraries ask whether there is a torch (`importlib.util.find_spec`) long before anybody imports
    it, and the import has a spec of its own.
    """

    def __init__(self, then: Any) -> None:
        self._then = then
        # Threads that are asking the other finders, of which some ask all finders themselves.
        self._asking: set[int] = set()

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        thread = get_ident()
        if name != "torch" or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            for finder in [finder for finder in sys.meta_path if finder is not self]:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find else None
                if spec is not None:
                    if spec.loader is not None:
                        self._wrap(spec.loader)
                    return spec
        finally:
            self._asking.discard(thread)
        # No torch here; it may come later (a path added to sys.path).
        return None

    def _wrap(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = original
            # Not twice: a finder may give the same loader to several questions, and each of them wrapped it.
            present = self in sys.meta_path
            if present:
                sys.meta_path.remove(self)
            try:
                original(module)
            except BaseException:
                if present:
                    sys.meta_path.insert(0, self)
                raise
            if present:
                _safely(self._then)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            # A loader without room for it: torch works, and the agent stays away.
            pass


class _EndOfImport:
    """Calls `then` once an import of torch that is under way has ended, on the thread that imports: as the finder does, which
    is asked before an import only. Python says the end to the module's spec, whose class is another one until then."""

    def __init__(self, torch: ModuleType, then: Any) -> None:
        self._torch, self._then = torch, then
        _awaited.append(self)
        spec: Any = torch.__spec__
        kind: Any = type(spec)
        over = self._over

        class Importing(kind):  # type: ignore[misc]
            @property
            def _initializing(self) -> Any:
                return self.__dict__.get("_initializing", False)

            @_initializing.setter
            def _initializing(self, value: Any) -> None:
                self.__dict__["_initializing"] = value
                if not value:
                    self.__class__ = kind
                    over()

        spec.__class__ = Importing
        if not spec._initializing:  # It has ended meanwhile.
            spec.__class__ = kind
            over()

    def _over(self) -> None:
        try:
            _awaited.remove(self)
        except ValueError:  # By another thread, or nobody waits for it any more.
            return
        if sys.modules.get("torch") is self._torch:
            _safely(self._then)
        else:  # It failed; another one may not.
            sys.meta_path.insert(0, _TorchFinder(self._then))


def _safely(then: Any) -> None:
    try:
        then()
    except Exception as error:
        print(f"probe: not started: {type(error).__name__}: {error}; training goes on unobserved", file=sys.stderr)
