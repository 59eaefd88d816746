"""Trains until it is killed. A new "thread" is a greenlet of the thread that made it, and runs when that one waits."""

import _thread
import threading
import time

greenlets = []


def start_greenlet(function, arguments=(), keywords=None):
    """What `monkey.patch_all()` of gevent puts in the place of `start_new_thread`."""
    greenlets.append((function, arguments, keywords or {}))
    return len(greenlets)


start_greenlet.__module__ = "gevent.thread"
_thread.start_new_thread = threading._start_new_thread = start_greenlet

import torch  # noqa: E402

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    while greenlets:
        function, arguments, keywords = greenlets.pop()
        function(*arguments, **keywords)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
