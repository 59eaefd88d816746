"""Lightning's demonstration Transformer, trained in the ways that people train: one a name on the command line."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import common
import torch
from lightning.pytorch.demos import Transformer
from torch import nn

common.begin()
STEPS = 6
manner = sys.argv[1]


def transformer() -> nn.Module:
    return Transformer(vocab_size=32, ninp=16, nhead=2, nhid=16, nlayers=2)


def loss_of(model: nn.Module) -> torch.Tensor:
    tokens = torch.randint(32, (4, 9))
    return nn.functional.nll_loss(model(tokens[:, :-1], tokens[:, 1:]).float(), tokens[:, 1:].reshape(-1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, steps: int = STEPS) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        common.said("loss", loss)


def autocast(model: nn.Module) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(model)


def accumulate(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        for _ in range(3):
            (loss_of(model) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def swa(model: nn.Module) -> None:
    averaged = torch.optim.swa_utils.AveragedModel(model)
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for _ in range(STEPS):
        train(model, steps=1)
        averaged.update_parameters(model)
        ema.update_parameters(model)
    averaged.eval()
    with torch.no_grad():
        common.said("validation", loss_of(averaged))
    common.weights(averaged, ema)


def lbfgs(model: nn.Module) -> None:
    model.eval()  # A closure that is asked again must say the same.
    tokens = torch.randint(32, (4, 9))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(tokens[:, :-1], tokens[:, 1:]), tokens[:, 1:].reshape(-1))
        loss.backward()
        return loss

    for _ in range(STEPS):
        common.said("loss", optimizer.step(closure))


def functional(model: nn.Module) -> None:
    model.eval()
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    for _ in range(4 * STEPS):
        tokens = torch.randint(32, (4, 9))

        def loss_for(parameters: dict[str, torch.Tensor], tokens: torch.Tensor = tokens) -> torch.Tensor:
            said = torch.func.functional_call(model, parameters, (tokens[:, :-1], tokens[:, 1:]))
            return nn.functional.nll_loss(said, tokens[:, 1:].reshape(-1))

        gradients, loss = torch.func.grad_and_value(loss_for)(parameters)
        parameters = {name: tensor - 0.1 * gradients[name] for name, tensor in parameters.items()}
        common.said("loss", loss)


def checkpointing(model: nn.Module) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, nn.TransformerEncoderLayer))
    train(model)


def data_parallel(model: nn.Module) -> None:
    train(nn.DataParallel(model))


def compiled(model: nn.Module) -> None:
    train(torch.compile(model, backend="aot_eager"))


def scripted(model: nn.Module) -> None:
    del model
    layer = torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = layer(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        common.said("loss", loss)


def sparse(model: nn.Module) -> None:
    model.embedding = nn.Embedding(32, 16, sparse=True)
    optimizers = [
        torch.optim.SparseAdam(model.embedding.parameters()),
        torch.optim.Adam([p for name, p in model.named_parameters() if not name.startswith("embedding")]),
    ]
    for _ in range(STEPS):
        loss = loss_of(model)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        common.said("loss", loss)


def hooks(model: nn.Module) -> None:
    counts = dict.fromkeys(("pre", "post", "backward", "gradient", "step"), 0)

    def count(name: str) -> None:
        counts[name] += 1

    model.decoder.register_forward_pre_hook(lambda *_: count("pre"))
    model.decoder.register_forward_hook(lambda *_: count("post"))
    model.decoder.register_full_backward_hook(lambda *_: count("backward"))
    model.decoder.weight.register_hook(lambda _: count("gradient"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: count("step"))
    train(model, optimizer)
    print(counts)


class Loud(torch.Tensor):
    """Counts what is asked of it."""

    asked = 0

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        cls.asked += 1
        return super().__torch_function__(function, types, arguments, keywords or {})


def subclass(model: nn.Module) -> None:
    layer, optimizer = model.decoder, torch.optim.SGD(model.decoder.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = layer(torch.randn(4, 16).as_subclass(Loud)).square().mean()
        loss.backward()
        optimizer.step()
        common.said("loss", loss)
    print("asked", Loud.asked)


def profiler(model: nn.Module) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        train(model)
    counts = {event.key: event.count for event in profile.key_averages()}
    print(sorted((name, count) for name, count in counts.items() if name.startswith(("aten::", "Optimizer"))))


def traced(model: nn.Module) -> None:
    """Under sys.settrace, as a debugger or a measure of coverage has it."""
    calls = 0

    def trace(frame, event, argument):
        nonlocal calls
        calls += frame.f_code.co_filename == __file__
        return trace

    sys.settrace(trace)
    train(model)
    sys.settrace(None)
    print("traced", calls)


def fork(model: nn.Module) -> None:
    train(model, steps=2)
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            common.said("child", loss_of(model))
        os._exit(7)
    print("child's status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    train(model, steps=STEPS - 2)


def leave(model: nn.Module) -> None:
    train(model)
    common.weights(model)
    sys.stdout.flush()
    os._exit(3)


def raises(model: nn.Module) -> None:
    train(model)
    raise RuntimeError("planted")


def interrupted(model: nn.Module) -> None:
    train(model)
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        common.weights(model)
        sys.exit(5)


def left_over(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    batches = 5
    for batch in range(1, batches + 1):
        loss = loss_of(model)
        loss.backward()
        if batch % 2 == 0 or batch == batches:
            optimizer.step()
            optimizer.zero_grad()
        common.said("loss", loss)


def asynchronous(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    async def ticks(ended: asyncio.Event) -> None:
        while not ended.is_set():
            await asyncio.sleep(0)

    async def trains() -> None:
        ended = asyncio.Event()
        other = asyncio.create_task(ticks(ended))
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model)
            await asyncio.sleep(0)
            loss.backward()
            await asyncio.sleep(0)
            optimizer.step()
            common.said("loss", loss)
        ended.set()
        await other

    asyncio.run(trains())


def hook_raises(model: nn.Module) -> None:
    optimizer, calls = torch.optim.SGD(model.parameters(), lr=0.1), 0

    def sometimes(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls in (3, 6):
            raise ArithmeticError(f"call {calls}")

    model.decoder.register_forward_pre_hook(sometimes)
    for _ in range(STEPS + 2):
        try:
            train(model, optimizer, steps=1)
        except ArithmeticError as error:
            print(error)


def waits(model: nn.Module) -> None:
    """Leaves nothing behind: neither a thread nor a child."""
    if os.fork() == 0:
        os._exit(7)
    train(model)
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            print("waits for", thread.name, flush=True)
            thread.join()
    try:
        while True:
            print("child's status", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    except ChildProcessError:
        print("no more children")


def gan(model: nn.Module) -> None:
    del model
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    critic = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    of_generator, of_critic = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (generator, critic))
    score = nn.BCEWithLogitsLoss()
    for _ in range(STEPS):
        real, fake = torch.randn(8, 2) + 3, generator(torch.randn(8, 4))
        of_critic.zero_grad()
        loss = score(critic(real), torch.ones(8, 1)) + score(critic(fake.detach()), torch.zeros(8, 1))
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        score(critic(fake), torch.ones(8, 1)).backward()
        of_generator.step()
        common.said("loss", loss)


def lazily(model: nn.Module) -> None:
    """Modules that a forward pass adds to its model, each in the step that first needs it."""

    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleDict()
            self.body = model

        def forward(self, *tokens: torch.Tensor) -> torch.Tensor:
            name = f"of{len(self.experts) % 3}"
            if name not in self.experts:
                self.experts[name] = nn.Linear(32, 32)
            return nn.functional.log_softmax(self.experts[name](self.body(*tokens)), -1)

    grown = Growing()
    train(grown, torch.optim.SGD(model.parameters(), lr=0.1))
    common.weights(grown)


if __name__ == "__main__":
    made = transformer()
    globals()[manner](made)
    common.weights(made)
