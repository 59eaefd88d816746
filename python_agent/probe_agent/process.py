"""What kind of process this is, and which rank of the run."""

from __future__ import annotations

import os
import sys

# Imported at the start of every interpreter: the rest of what is needed is imported where it is used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from probe_agent._native import Identity

    Kind = Literal["trainer", "child", "none"]

#: Programs that start processes that train but do not train themselves: modules run by `python -m`, and scripts. The command
#: has the same list (crates/inspect/src/stacks/launcher.rs).
_LAUNCHER_MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch",
    "deepspeed.launcher.runner", "deepspeed.launcher.launch",
)  # fmt: skip
_LAUNCHER_SCRIPTS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")


def kind() -> Kind:
    """`trainer`: may train. `child`: made by multiprocessing, so a DataLoader's worker, unless it joins a process
    group (torch.multiprocessing.spawn) or makes an optimizer. `none`: a helper that never trains."""
    arguments = _original_arguments()
    if "--multiprocessing-fork" in arguments or _are_of_fork_server(arguments):
        return "child"
    for argument in arguments[1:]:
        if "multiprocessing.resource_tracker" in argument:
            return "none"
        # Inductor's compile workers are started as `python -m torch._inductor…` or with the module's path.
        if "torch._inductor" in argument or "torch/_inductor/" in argument:
            return "none"
    return "none" if _is_launcher(arguments) else "trainer"


def is_of_fork_server() -> bool:
    """Whether this is multiprocessing's fork server, or a process that it forked, in which exit handlers of the interpreter do not
    run."""
    return _are_of_fork_server(_original_arguments())


def _are_of_fork_server(arguments: list[str]) -> bool:
    return any("multiprocessing.forkserver" in argument for argument in arguments[1:])


def runs_its_own_work() -> bool:
    """Whether a process that multiprocessing made has imported the script and runs its target, which is not the work of a
    DataLoader's worker."""
    import multiprocessing

    return not is_data_worker() and not getattr(multiprocessing.current_process(), "_inheriting", False)


def is_data_worker() -> bool:
    """Whether a DataLoader made this process. A module that is called there belongs to its dataset."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def _is_launcher(arguments: list[str]) -> bool:
    """Whether the interpreter runs a launcher, which starts the processes that train and does not train itself."""
    for index, argument in enumerate(arguments[1:], 1):
        if argument == "-m":
            return "".join(arguments[index + 1 : index + 2]) in _LAUNCHER_MODULES
        if argument in ("-W", "-X"):
            continue
        if not argument.startswith("-") and arguments[index - 1] not in ("-W", "-X"):
            return os.path.basename(argument) in _LAUNCHER_SCRIPTS
    return False


def _original_arguments() -> list[str]:
    """The interpreter's own command line; `sys.argv` is not set yet when a .pth file is read."""
    arguments = getattr(sys, "orig_argv", None)  # since Python 3.10
    if arguments is not None:
        return list(arguments)
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


#: What says which rank the process that forked this one is: the default process group, and the launcher's variables.
_of_parent: tuple[object, tuple[str | None, ...]] | None = None
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def forget_identity() -> None:
    """Marks the inherited rank (group, environment) of a forked child as the parent's."""
    global _of_parent
    _of_parent = (_default_group(), tuple(map(os.environ.get, _VARIABLES)))


def _default_group() -> object:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.group.WORLD  # the same object as long as the group is the same


def identity() -> Identity:
    """Rank, local rank and world size: torch.distributed's where it is initialised, else the launcher's. None where they are those
    of the process that forked this one."""
    from probe_agent import _native

    group, variables = _default_group(), tuple(map(os.environ.get, _VARIABLES))
    group_of_parent, variables_of_parent = _of_parent or (None, ())
    local_rank = None if variables == variables_of_parent else _number("LOCAL_RANK")
    if group is not None and group is not group_of_parent:
        distributed = sys.modules["torch.distributed"]
        return _native.Identity(distributed.get_rank(), local_rank, distributed.get_world_size())
    if variables == variables_of_parent:
        return _native.Identity(None, None, None)
    return _native.Identity(_number("RANK"), local_rank, _number("WORLD_SIZE"))


def identity_changed() -> None:
    """Sends the rank again after a process group was made or destroyed. Never raises."""
    native = sys.modules.get("probe_agent._native")
    if native is not None:
        try:
            native.set_identity(identity())
        except Exception as error:
            from probe_agent import signals

            if signals.is_of_the_program(error):
                raise
            native.set_problem(f"rank not known: {error}")


def _number(variable: str) -> int | None:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return None
