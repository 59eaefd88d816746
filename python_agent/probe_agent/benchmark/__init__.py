"""`probe bench`: times expressions in the training process, between two steps, and leaves nothing changed.

The command sends :func:`probe_agent.benchmark.request.answer` as a snippet that runs between two steps, on one rank.
"""
