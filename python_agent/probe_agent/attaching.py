"""What `probe attach` and `probe detach` run in a process. crates/inspect/src/attach/bootstrap.py of the command runs before.

`attach` runs on a thread that the command made. `detach` runs as a snippet, so the agent's threads are ended after the
snippet's own end.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from probe_agent import agent


def attach(settings: dict[str, Any]) -> dict[str, Any]:
    """Starts the agent. ``settings``: ``run``, ``collector``, ``detail``, ``patience_s``."""
    facts = agent.attach(settings["run"], settings["collector"], settings["detail"], settings["patience_s"])
    return {**facts, "problem": agent.status()["problem"]}


def detach(patience: float) -> None:
    """Takes the agent out, and prints how that went as JSON; its connection ends when the calling thread has."""
    facts = agent.detach(patience)
    if "refused" not in facts:
        caller = threading.current_thread()
        threading.Thread(target=_stop_after, args=(caller,), name="probe-detach", daemon=True).start()
    print(json.dumps(facts))


def _stop_after(caller: threading.Thread) -> None:
    caller.join()
    agent.stop()
