"""Makes the tests' training processes start and end in less than half the time. Where this folder is on PYTHONPATH, every
interpreter imports this when it starts.

- A program that makes an optimizer imports all of torch.compile, which takes as long as torch itself, only to exempt the
  optimizer from being compiled. Here nothing is exempted until something else has imported torch.compile: before that, nothing
  is compiled.
- Python's garbage collector is off while torch is imported, and never looks at what torch has made by then. Otherwise it
  searches half a million objects several times when the process ends.

Where torch has other lines than those that are replaced here, it stays as it is and takes its time.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from importlib.machinery import PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

_LOADED = '"torch._dynamo" in __import__("sys").modules'
#: Module -> lines of it, and what stands there instead. No line is added or taken away: tracebacks have the numbers of the file.
_REPLACED = {
    "torch._compile": {
        "            if disable_fn is None:\n": f"            if not {_LOADED}: return fn(*args, **kwargs)\n",
        "                import torch._dynamo\n": "            if disable_fn is None: import torch._dynamo\n",
        "                disable_fn = torch._dynamo.disable(fn, recursive, wrapping=False)\n": (
            "            if disable_fn is None: disable_fn = torch._dynamo.disable(fn, recursive, wrapping=False)\n"
        ),
        "                fn.__dynamo_disable = disable_fn  # type: ignore[attr-defined]\n": (
            "            fn.__dynamo_disable = disable_fn\n"
        ),
    },
    "torch.optim.optimizer": {
        "        import torch._dynamo\n": "\n",
        "            torch._dynamo.graph_break()\n": f"            {_LOADED} and torch._dynamo.graph_break()\n",
    },
}
_WITHOUT_COLLECTIONS = ("torch", "torch._dynamo")


class _Lazy(SourceFileLoader):
    """Loads a module with its lines replaced."""

    def get_code(self, fullname: str) -> CodeType:
        source = importlib.util.decode_source(self.get_data(self.path))
        replaced = _REPLACED[fullname]
        if all(line in source for line in replaced):
            for line, instead in replaced.items():
                source = source.replace(line, instead)
        return self.source_to_code(source, self.path)


class _WithoutCollections(SourceFileLoader):
    """Loads a module, and what it imports, without collecting garbage; what torch makes then is left alone for good."""

    def exec_module(self, module: ModuleType) -> None:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            super().exec_module(module)
        finally:
            if self.name == "torch":
                gc.freeze()
            if was_enabled:
                gc.enable()


class _Finder:
    """Finds the modules that are loaded in another way here."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        loader = _Lazy if name in _REPLACED else _WithoutCollections if name in _WITHOUT_COLLECTIONS else None
        spec = PathFinder.find_spec(name, path, target) if loader else None
        if spec is None or loader is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
