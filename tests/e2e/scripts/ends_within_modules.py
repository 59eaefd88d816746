"""Ends while daemon threads are in modules. Before Python 3.14 the interpreter unwinds their stacks (`pthread_exit`)."""

import threading
import time

import torch


class Identity(torch.nn.Module):
    def forward(self, value):
        time.sleep(0)
        return value


def call(module: torch.nn.Module, began: threading.Event) -> None:
    while True:
        module(1)
        began.set()


begins = [threading.Event() for _ in range(8)]
for began in begins:
    module = torch.nn.Sequential(Identity(), Identity())
    threading.Thread(target=call, args=(module, began), daemon=True).start()
for began in begins:
    began.wait()
print("ended", flush=True)
