"""Tells the user's own code from that of libraries and of the agent."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from functools import lru_cache
from types import FrameType, ModuleType


def is_user_frame(frame: FrameType) -> bool:
    """Whether a frame runs the user's own code: `__main__`'s wherever it lies, and what lies outside of libraries."""
    name = frame.f_globals.get("__name__", "")
    if name in ("__main__", "__mp_main__"):
        return not frame.f_code.co_filename.startswith("<frozen ")
    if _is_of_main_package(name):
        return True
    file = frame.f_code.co_filename
    if file.startswith("<"):
        # Compiled at run time: the code belongs to the module whose globals it has.
        file = frame.f_globals.get("__file__") or file
    return is_user_file(file)


def is_user_module(module: ModuleType) -> bool:
    """Whether a module is the user's own."""
    name = getattr(module, "__name__", "")
    if name in ("__main__", "__mp_main__") or _is_of_main_package(name):
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        if name in sys.builtin_module_names:
            return False
        paths = list(getattr(module, "__path__", []))
        return bool(paths) and is_user_file(os.path.join(paths[0], "__init__.py"))
    return is_user_file(file)


def _is_of_main_package(name: str) -> bool:
    """`python -m package.train`: the package is the user's, installed or not."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    package = spec.name.partition(".")[0] if spec is not None and "." in spec.name else None
    # Launchers of torch run as modules too.
    return package not in (None, "torch", "probe_agent") and name.partition(".")[0] == package


@lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    """Whether a source file is the user's own: outside the standard library, installed packages, torch and us."""
    if file.startswith("<"):
        return not file.startswith(("<frozen ", "<__array_function__"))
    path = os.path.abspath(file)
    if "/site-packages/" in path or "/dist-packages/" in path or is_ours(path):
        return False
    return not any(path.startswith(directory) for directory in _library_directories())


def is_ours(file: str) -> bool:
    """Whether a source file belongs to the agent."""
    return file.startswith(_OURS)


_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


@lru_cache(maxsize=1)
def _library_directories() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], site.getusersitepackages()}
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch:
        found.add(os.path.dirname(torch))
    # The interpreter's own modules, where it is not the environment's.
    found.add(os.path.dirname(os.path.abspath(os.__file__)))
    return tuple(os.path.abspath(path) + os.sep for path in found)
