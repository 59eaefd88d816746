"""How far this process is on each of its process groups, by torch's own numbers.

Ranks between the same two steps have issued the same collectives, so equal numbers mean the same boundary. The agent's own
count of steps begins when it was installed, which after an attach is another step on each rank.
"""

from __future__ import annotations

import sys

from probe_agent import signals


def positions() -> list[tuple[str, int]]:
    """Name and number of the newest collective, for each group by which ranks can be compared. Call it between two steps."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return []
    watched = sys.modules.get("probe_agent.torch.collectives")
    found = []
    for group, name in list(c10d._world.pg_names.items()):
        try:
            if watched is not None and watched.may_differ(group):
                continue
            found.append((str(name), int(group._get_sequence_number_for_group())))
        except Exception as error:  # A backend that keeps no numbers, or a group that was destroyed.
            if signals.is_of_the_program(error):
                raise
    return found
