"""Tells the launcher that torch was imported here, so that it can say at its end why nothing was recorded."""

from __future__ import annotations

import os
import time

from probe_agent import process

#: Largest size of the launcher's file (bytes): a DataLoader may have many workers.
_MAX_BYTES = 64 << 10


def note(what: str, time_known: bool = True) -> None:
    """Appends a line to the launcher's file, where there is one. Never raises.

    :param what: what the process is or did, in words that follow "imported torch".
    :param time_known: whether torch was imported just now.
    """
    address = os.environ.get("PROBE_COLLECTOR", "")
    if not (address.startswith("unix:") and address.endswith(".sock")):
        return
    try:
        path = address[len("unix:") : -len(".sock")] + ".seen"
        # Only the launcher creates this file. Without it the note has no reader.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < _MAX_BYTES:
                import json

                command = " ".join(process._original_arguments())[:200]
                unix_s = time.time() if time_known else None
                seen = {"pid": os.getpid(), "unix_s": unix_s, "command": command, "what": what[:500]}
                os.write(descriptor, f"{json.dumps(seen)}\n".encode())
        finally:
            os.close(descriptor)
    except OSError:
        pass
