"""Waits for a module to be imported: by a finder that removes itself afterwards."""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class CallbackFinder:
    """Finds a module as the other finders do, and calls `then` once it has been executed.

    It stays installed until then: libraries ask whether there is such a module (`importlib.util.find_spec`) long before it is
    imported, and the import has a spec of its own.
    """

    def __init__(self, name: str, then: Any) -> None:
        self._name, self._then = name, then
        # Threads that are asking the other finders. Some of those ask all finders in turn.
        self._asking: set[int] = set()

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        """The spec that the other finders have."""
        if name != self._name:
            return None
        thread = get_ident()
        if thread in self._asking:
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
        # None here; it may come later (a path added to sys.path).
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
                self._then()

        # Python leaves importlib's own frames out of the traceback of an import that fails, by the name of their file: this one too.
        exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")
        try:
            loader.exec_module = exec_module
        except AttributeError:
            # A loader that takes no attributes: the module works, and the agent does not hook it.
            pass
