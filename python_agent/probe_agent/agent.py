"""The agent in this process: installed when torch is imported, connected when training begins, flushed at exit."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
from typing import Any, Literal

from probe_agent import activation, collector, messages, presence, process, signals

# At exit, training waits for this long at most.
FLUSH_SECONDS = 2.0
# A collector that was just started needs a moment before it answers.
STARTING_SECONDS = 15.0
PATIENCE_SECONDS = 1.0
# When multiprocessing ends a process, everything else that it does comes before.
_LAST = -1000

#: What an agent that `probe attach` started is doing; the command reads these words (crates/inspect/src/attach/bootstrap.rs).
AttachState = Literal["recording", "waits for torch", "has an agent"]


class _State:
    """The state of this process's agent."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.installed = False
        self.watches_forks = False
        self.connected = False
        self.has_warned = False
        self.run: str | None = None
        self.collector: str | None = None
        # Asked for by start() before torch was there.
        self.at_install = False
        self.instance = os.urandom(16).hex()
        self.pid = os.getpid()
        # Whether the collector was found or started for this run alone, and so knows the run's name.
        self.has_own_collector = False
        # A forked child of a process that recorded: the hooks are installed and wait for the child to train.
        self.in_child = False

    def of_child(self) -> _State:
        """The state for a forked child, which may get an agent of its own."""
        state = _State()
        state.installed, state.watches_forks, state.in_child = self.installed, self.watches_forks, True
        state.run, state.collector, state.has_own_collector = self.run, self.collector, self.has_own_collector
        return state


_state = _State()


def _say(message: str) -> None:
    """Prints a message on stderr, at most once in the life of a process."""
    if not _state.has_warned:
        _state.has_warned = True
        messages.say(message)


def _failed(what: str, error: BaseException) -> None:
    words = str(error) if isinstance(error, collector.NoCollectorError) else f"{type(error).__name__}: {error}"
    try:
        from probe_agent import _native

        _native.set_problem(f"{what}: {words}")
    except ImportError:
        pass
    hint = "" if "hint:" in words else "; hint: PROBE=0 keeps the agent off"
    _say(f"{what}: {words}; training continues without being recorded{hint}" if hint else f"{what}: {words}")
    presence.note(f"the agent was {what}: {words}")


def _elsewhere() -> bool:
    """Whether this is a forked child, in which nothing of the agent may run."""
    return os.getpid() != _state.pid


def _forked() -> None:
    """Resets the state in a forked child, which has no agent: it may be a worker of a DataLoader, and our threads do not exist
    there. If the parent recorded, the child gets an agent of its own at its own first sign of training."""
    global _state
    from probe_agent import _native

    if _native.forked():
        parent_was_connected, _state = _state.connected, _state.of_child()
        _native.set_first_use_callback(connect)
        if parent_was_connected:
            # The rank that the parent has is not the child's.
            process.forget_identity()


def _begin_in_child() -> bool:
    """Starts the agent anew in a forked child that trains. False if this child is not to be recorded."""
    from probe_agent import _native, capture, torch
    from probe_agent.eval import runner

    if process.is_data_worker() or not _native.begin_in_child():
        return False
    _native.set_enabled(True)
    for part in (capture, runner, torch):
        part.begin_in_child()
    return True


def _end_with_its_work() -> None:
    """Ends the agent of a forked process with multiprocessing's work there: the interpreter's exit handlers do not run."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, _at_exit, exitpriority=_LAST)


def install() -> None:
    """Installs recording, once; torch has been imported. Raises nothing but what a signal handler of the program raises in it."""
    if _elsewhere():
        return  # without the lock: another thread may have held it when this process was forked
    with _state.lock:
        if _state.installed:
            return
        _state.installed = True
        try:
            from probe_agent import _native, torch

            if not _state.watches_forks:
                _state.watches_forks = True
                os.register_at_fork(after_in_child=_forked)
            for variable, key in (("PROBE_DETAIL", "detail"), ("PROBE_OVERHEAD_BUDGET", "overhead_budget")):
                value = os.environ.get(variable)
                if value:
                    try:
                        _native.configure({key: value})
                    except ValueError as error:
                        _native.set_problem(f"{variable}: {error}")
                        _say(f"{variable}: {error}; the default holds")
            _native.set_first_use_callback(connect)
            torch.install()
        except Exception as error:
            if signals.is_of_the_program(error):
                raise
            _failed("not installed", error)
            return
    if _state.at_install:
        connect()


def connect() -> None:
    """Starts sending, once: training has begun, or the program called start(). Never raises."""
    if _elsewhere():
        return
    with _state.lock:
        if _state.connected or not _state.installed:
            return
        _state.connected = True
        try:
            if _state.in_child and not _begin_in_child():
                _state.connected = False
                return
            if _state.in_child or process.is_of_fork_server():
                _end_with_its_work()
            _state.in_child = False
            _connect()
        except BaseException as error:
            if signals.is_of_the_program(error):
                _state.connected = False  # The program interrupted it: the next sign of training counts as the first.
                raise
            _failed("no collector" if isinstance(error, collector.NoCollectorError) else "not connected", error)


def _connect() -> None:
    from probe_agent import _native
    from probe_agent.eval import runner
    from probe_agent.torch import exceptions

    address = _state.collector or os.environ.get("PROBE_COLLECTOR")
    if not address:
        address = collector.find_or_start(_state.run)
        _state.has_own_collector = True
    if _state.has_own_collector:
        run, patience = "", STARTING_SECONDS
        hint = f"the output of the collector is in {collector.log_of(address)}"
    else:
        run, patience = _state.run or os.environ.get("PROBE_RUN") or "", PATIENCE_SECONDS
        hint = "`probe serve` starts a collector, and `probe run` training together with one"
    settings = _native.Settings(
        collector=address,
        token_file=os.environ.get("PROBE_TOKEN_FILE") or None,
        tls_pin=os.environ.get("PROBE_TLS_PIN"),
        eval_over_tcp=os.environ.get("PROBE_EVAL") == "tcp",
        no_snippets=runner.why_no_snippets(),
        patience_s=patience,
        hint=hint,
        revival=collector.revival(address),
        instance=_state.instance,
        run=run,
        host=platform.node(),
        command=" ".join(process._original_arguments()),
        python_version=platform.python_version(),
        torch_version=str(getattr(sys.modules.get("torch"), "__version__", "")),
        identity=process.identity(),
    )
    _state.collector = address
    if _native.start(settings):
        # The parent of a forked process may have registered it already.
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)
        exceptions.stand_first()
        runner.start()


def _at_exit() -> None:
    if _state.connected and not _elsewhere():
        from probe_agent.torch import exceptions

        exceptions.at_exit()
        _end("exit")


def _end(reason: str) -> None:
    from probe_agent import _native, capture
    from probe_agent.eval import runner

    capture.at_end()
    _native.stop(FLUSH_SECONDS, reason)
    runner.join()


def start(run: str | None, address: str | None, detail: str | None) -> None:
    """Starts the agent, as :func:`probe_agent.start` describes it."""
    if os.environ.get("PROBE") == "0" or _elsewhere():
        return
    if detail is not None:
        configure(detail)
    if address is not None and not address.startswith("unix:") and not address.rpartition(":")[2].isdigit():
        raise ValueError(f"collector '{address}' is neither unix:PATH nor HOST:PORT")
    with _state.lock:
        if not _state.connected:
            is_same = address in (None, _state.collector) and run in (None, _state.run)
            _state.has_own_collector = _state.has_own_collector and is_same
            _state.run, _state.collector = run or _state.run, address or _state.collector
        # A process that multiprocessing made imports the script too. A start() at its top level does not mean such a process.
        is_child = process.kind() == "child"
        _state.at_install = not is_child or process.runs_its_own_work()
        activation.begin(install)
        if is_child and _state.at_install and "torch" in sys.modules:
            install()
        if not _state.installed or not _state.at_install:
            return
        from probe_agent import _native

        _native.set_enabled(True)
    connect()


def stop() -> None:
    """Stops the agent, as :func:`probe_agent.stop` describes it."""
    if _elsewhere():
        return
    with _state.lock:
        if not _state.connected:
            return
        from probe_agent import _native

        _native.set_enabled(False)
        atexit.unregister(_at_exit)
        _end("detached")
        _state.connected = False


def _attached(state: AttachState, **facts: Any) -> dict[str, Any]:
    return {"state": state, **facts}


def attach(run: str | None, address: str, detail: str | None, patience: float) -> dict[str, Any]:
    """Starts the agent in the middle of a program that was started without it. `probe attach` runs this on a thread of its
    own. Returns what the command prints.

    Hooks are put in while the main thread stands still, at a point where it may be stopped. The current step gets no row.
    """
    if os.environ.get("PROBE") == "0":
        return {"refused": "it was started with PROBE=0, which keeps the agent off"}
    if _elsewhere():
        return {"refused": "a process with an agent forked it, by other means than os.fork()"}
    with _state.lock:  # Waits for a running stop().
        has_agent = _state.connected
    if has_agent:
        return _attached("has an agent", run=status()["run"], collector=_state.collector)
    if detail is not None:
        configure(detail)
    waited: float | None = 0.0
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        start(run, address, None)
        return _attached("waits for torch")
    with _state.lock:
        _state.run, _state.collector, _state.has_own_collector = run, address, False
    if not _state.installed:
        from probe_agent import standstill

        waited = standstill.during(_install_now, patience)
        if waited is None:
            return {"refused": standstill.why_not(patience)}
    else:
        from probe_agent import _native

        _native.set_enabled(True)
        _native.skip_step()
    in_child = _state.in_child
    connect()
    if in_child:
        if not _state.connected:
            return {"refused": "it is a DataLoader worker, or a process that was not recorded forked it"}
        # Its agent has begun anew just now.
        from probe_agent import _native

        _native.skip_step()
    return _attached("recording", waited_s=waited)


def _install_now() -> None:
    from probe_agent import _native

    install()
    _native.skip_step()
    # Training has begun already: `probe attach` was called for it.
    _native.set_first_use_callback(None)


def detach(patience: float) -> dict[str, Any]:
    """Removes all hooks and patches from torch while the main thread stands still. `probe detach` runs this first. After
    :func:`stop`, nothing of the agent runs and torch is as it was. Returns what the command prints."""
    if _elsewhere():
        return {"refused": "a process with an agent forked it, by other means than os.fork()"}
    activation.end()
    if not _state.installed:
        return {"waited_s": 0.0}
    from probe_agent import standstill, torch

    waited = standstill.during(torch.uninstall, patience)
    if waited is None:
        return {"refused": standstill.why_not(patience)}
    with _state.lock:
        _state.installed = False
    return {"waited_s": waited}


def configure(detail: str | None, layers: str | None = None, overhead_budget: float | None = None) -> None:
    """Changes settings, as :func:`probe_agent.configure` describes it."""
    values = {"detail": detail, "layers": layers}
    values["overhead_budget"] = None if overhead_budget is None else str(overhead_budget)
    given = {key: value for key, value in values.items() if value is not None}
    if given and not _elsewhere():
        from probe_agent import _native

        _native.configure(given)


def step() -> None:
    """Ends a step, as :func:`probe_agent.step` describes it."""
    native = sys.modules.get("probe_agent._native")
    if native is None or _elsewhere():
        return
    if _state.in_child:
        native.first_use()  # A loop that marks its steps trains.
    if native.is_enabled():
        memory = sys.modules.get("probe_agent.torch.memory")
        if memory is not None:
            memory.sample()
        native.mark_step()
        from probe_agent.eval import boundary

        if boundary.is_wanted() and native.boundary_reached():
            boundary.run_pending()


def status() -> dict[str, Any]:
    """The state of the agent, as :func:`probe_agent.status` describes it."""
    native = sys.modules.get("probe_agent._native")
    facts: dict[str, Any] = {
        "phase": None, "enabled": False, "step": 0, "config": {}, "layers": {}, "problem": "", "run": None,
    }  # fmt: skip
    if native is not None:
        facts.update(native.status())
    if facts["phase"] is None:
        waiting = "waiting for torch" if activation.waiting() else "off"
        facts["phase"] = "waiting for training" if _state.installed else waiting
    facts["collector"] = _state.collector
    return facts
