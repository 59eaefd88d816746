"""Trains until it is killed, where a new thread is a greenlet of the thread that made it: run when that one waits."""

import _thread
import threading
import time

greenlets = []
start_new_thread = _thread.start_new_thread


def start_greenlet(function, arguments=(), keywords=None):
    """As gevent's `monkey.patch_all()` replaces it."""
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
