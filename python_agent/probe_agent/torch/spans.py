"""Records ranges that the program names: by ``probe_agent.span``, record_function and NVTX."""

from __future__ import annotations

from typing import Any

from probe_agent import _native
from probe_agent.torch import autograd, numerics

_original: Any = None
_ours: Any = None


def use_record_function(explicit: bool) -> None:
    """Record ``probe_agent.span``, NVTX ranges and those of ``record_function``."""
    autograd.require_record_function(explicit)
    use_own(explicit)


def use_own(explicit: bool) -> None:
    """Record ``probe_agent.span`` and NVTX ranges."""
    _native.use_spans(True, None)
    _wrap_nvtx()


def use_log(explicit: bool) -> None:
    """Record ``probe_agent.log``, and the numbers that torch computes anyway."""
    _native.use_spans(None, True)
    numerics.use_wrappers()


def remove() -> None:
    """Stop recording, and put torch's NVTX binding back."""
    global _original, _ours
    _native.use_spans(False, False)
    numerics.remove()
    if _original is not None:
        from torch.cuda import nvtx

        if getattr(nvtx, "_nvtx", None) is _ours:
            nvtx._nvtx = _original
        _original = _ours = None


class _Nvtx:
    """A wrapper of torch's NVTX binding that records ranges and passes everything on to the original."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def rangePushA(self, message: str) -> Any:
        """Begin a range."""
        depth = self._original.rangePushA(message)
        try:
            _native.nvtx_push(message)
        except UnicodeError:  # A name that is no text.
            pass
        return depth

    def rangePop(self) -> Any:
        """End the innermost range."""
        _native.nvtx_pop()
        return self._original.rangePop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _wrap_nvtx() -> None:
    global _original, _ours
    from torch.cuda import nvtx

    original = getattr(nvtx, "_nvtx", None)
    if _original is None and original is not None:
        _original, _ours = original, _Nvtx(original)
        nvtx._nvtx = _ours
