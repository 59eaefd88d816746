"""The rules of placement for builtins and libraries."""

from __future__ import annotations

# Builtins that run code which the syntax tree does not show.
UNSEEN = frozenset({"exec", "eval", "compile", "__import__"})

# Builtins that iterate their arguments.
ITERATING = frozenset({
    "all", "any", "bytearray", "bytes", "dict", "enumerate", "filter", "frozenset", "iter", "list", "map", "max", "min",
    "reversed", "set", "sorted", "sum", "tuple", "zip",
})  # fmt: skip

# Builtins that read their arguments; True if the result may be a part of an argument.
READING = {
    **dict.fromkeys((
        "ascii", "bin", "bool", "callable", "chr", "complex", "dir", "float", "format", "hasattr", "hash", "hex", "id",
        "int", "isinstance", "issubclass", "len", "oct", "ord", "print", "repr", "str", "range", "slice",
    ), False),
    **dict.fromkeys(("abs", "divmod", "getattr", "globals", "locals", "pow", "round", "type", "vars"), True),
}  # fmt: skip

# Functions of libraries that only read their arguments.
READING_FUNCTIONS = frozenset({
    "copy.copy", "inspect.getdoc", "inspect.getfile", "inspect.getmodule", "inspect.getsource", "inspect.getsourcefile",
    "inspect.getsourcelines", "inspect.isclass", "inspect.isfunction", "inspect.signature", "json.dumps",
    "pprint.pformat", "pprint.pp", "pprint.pprint", "sys.getrefcount", "sys.getsizeof", "torch.is_tensor",
    "torch.typename", "weakref.ref",
})  # fmt: skip
READING_MODULES = ("math.", "operator.", "statistics.")

# Objects through which every object of the training code can be reached, and functions that return such objects.
REACHING_THINGS = frozenset({"ctypes.pythonapi", "sys.modules"})
REACHING = frozenset({
    "gc.get_objects", "gc.get_referents", "gc.get_referrers", "importlib.import_module", "inspect.currentframe",
    "inspect.stack", "sys._current_frames", "sys._getframe", "threading.enumerate", "threading.main_thread",
})  # fmt: skip

# Functions of torch.distributed that do not communicate.
TELLING = frozenset({
    "get_backend", "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size",
    "is_available", "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available",
    "is_torchelastic_launched", "is_ucc_available",
})  # fmt: skip

# Functions that change what training uses although they get no live argument.
CHANGING = frozenset({"manual_seed", "manual_seed_all", "seed", "use_deterministic_algorithms", "fork_rng"})
# Exceptions from `set_…`: these change only the calling thread.
OF_THE_THREAD = frozenset({
    "set_device", "set_grad_enabled", "set_stream", "set_num_threads", "set_flush_denormal", "set_printoptions",
})  # fmt: skip


def talks(path: str) -> bool:
    """Whether a function of this path communicates with other ranks."""
    return path.startswith("torch.distributed.") and path.rpartition(".")[2] not in TELLING


def trains(path: str) -> bool:
    """Whether a function of this path runs autograd's engine."""
    return path in ("torch.autograd.backward", "torch.autograd.grad") or path.startswith("torch.autograd.functional.")


def changes(path: str) -> bool:
    """Whether a function of this path changes what training uses."""
    module, _, name = path.partition(".")
    last = name.rpartition(".")[2]
    if module not in ("torch", "random", "numpy") or last in OF_THE_THREAD:
        return False
    return last in CHANGING or last.startswith(("set_", "register_"))


def only_reads(path: str) -> bool:
    """Whether a library's function only reads its arguments."""
    return path in READING_FUNCTIONS or path.startswith(READING_MODULES)
