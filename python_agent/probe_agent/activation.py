"""Waits for the program to import torch, and imports nothing before: by a finder that is removed when torch has been imported,
or, while torch is being imported, by the end of that import.

Before torch is imported this costs a millisecond; the native half is loaded only afterwards.
"""

from __future__ import annotations

import atexit
import sys

from probe_agent import process
from probe_agent.imports import CallbackFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

_begun = False
#: Ends of imports that are waited for: one at most.
_awaited: list[_EndOfImport] = []


def begin(install: Callable[[], None]) -> None:
    """Calls `install` once torch has been imported, where this kind of process may need the agent. Never raises."""
    global _begun
    if _begun:
        return
    kind = process.kind()
    if kind == "none":
        return
    _begun = True
    begin_recording = _trainer if kind == "trainer" else _child

    def when_imported() -> None:
        begin_recording(install)

    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _TorchFinder(when_imported))
        atexit.register(_say_if_missed)
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


def _trainer(install: Callable[[], None]) -> None:
    from probe_agent import presence

    atexit.unregister(_say_if_missed)
    presence.note("has called no module, stepped no optimizer and joined no process group since")
    install()


def _say_if_missed() -> None:
    """At the interpreter's end: says that torch was imported and no finder was asked, because the program took them out."""
    if _begun and not waiting() and "torch" in sys.modules:
        from probe_agent import presence

        presence.note(
            "had taken the agent's import hook out of sys.meta_path, so the agent never started", time_known=False
        )


def _child(install: Callable[[], None]) -> None:
    """Waits for a process that multiprocessing spawned, or that its fork server forked, to join a process group or torch's RPC, or to make an optimizer: then it
    trains. A DataLoader's worker does neither for training: an optimizer there is its dataset's."""
    import functools

    from torch import distributed
    from torch.optim import Optimizer

    from probe_agent import presence, process

    atexit.unregister(_say_if_missed)
    presence.note("is a process that multiprocessing made, and joined no process group and made no optimizer")
    patched: list[tuple[Any, str, Any, Any]] = []

    def patch(name: str, *owners: Any, when: Callable[[], bool] = lambda: True) -> None:
        original = getattr(owners[-1], name)

        @functools.wraps(original)
        def begins(*args: Any, **kwargs: Any) -> Any:
            if not when():
                return original(*args, **kwargs)
            while patched:
                owner, its_name, ours, before = patched.pop()
                if getattr(owner, its_name) is ours:
                    setattr(owner, its_name, before)
            _trainer(install)
            # Looked up again: what was installed just now has its own.
            return getattr(owners[-1], name)(*args, **kwargs)

        for owner in owners:
            setattr(owner, name, begins)
            patched.append((owner, name, begins, original))

    # The script, which such a process imports first, may make an optimizer that is never stepped there.
    patch("__init__", Optimizer, when=process.runs_its_own_work)
    if not distributed.is_available():
        return
    from torch.distributed import distributed_c10d, rpc

    patch("init_process_group", distributed, distributed_c10d)
    if rpc.is_available():
        patch("init_rpc", rpc)


class _TorchFinder(CallbackFinder):
    """Waits for torch."""

    def __init__(self, then: Any) -> None:
        super().__init__("torch", lambda: _safely(then))
        self._after_torch = then

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        """The spec of torch that the other finders have."""
        if name.startswith("torch.") and self in sys.meta_path and "torch" in sys.modules:
            # A finder of the program's, before this one, has found torch, and this one was not asked: torch imports its parts now.
            sys.meta_path.remove(self)
            _EndOfImport(sys.modules["torch"], self._after_torch)
        return super().find_spec(name, path, target)


class _EndOfImport:
    """Calls `then` once the running import of torch has ended, on the thread that imports.

    A finder is asked only before an import. Python notes the end of an import in the module's spec, so the spec gets another
    class until then.
    """

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
        except ValueError:  # Another thread has done it, or `end` was called.
            return
        if sys.modules.get("torch") is self._torch:
            _safely(self._then)
        else:  # It failed; another one may not.
            sys.meta_path.insert(0, _TorchFinder(self._then))


def _safely(then: Any) -> None:
    try:
        then()
    except Exception as error:
        from probe_agent import messages, signals

        if signals.is_of_the_program(error):
            raise
        messages.say(f"not started: {type(error).__name__}: {error}; training continues without being recorded")
