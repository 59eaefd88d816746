"""Training that is more than one network and one optimizer: adversaries, agents that play, sparse tables."""

from __future__ import annotations

import collections
import copy
import random

import torch
from networks import Task
from torch import nn

F = nn.functional


def critics(task: Task, steps: int, size: int) -> None:
    """Five steps of the critic with a penalty on its gradient for each one of the generator."""
    make = lambda a, b: nn.Sequential(nn.Linear(a, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, b))  # noqa: E731
    generator, critic = make(16, 256), make(256, 1)
    of_generator, of_critic = (torch.optim.Adam(net.parameters(), 1e-4) for net in (generator, critic))
    for step in range(steps):
        real = task.batch(step, size)[0]
        if step % 6 == 5:
            of_generator.zero_grad()
            (-critic(generator(torch.randn(size, 16))).mean()).backward()
            of_generator.step()
            continue
        fake = generator(torch.randn(size, 16)).detach()
        between = torch.lerp(real, fake, torch.rand(size, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()


class Pole:
    """A pole on a cart, by the usual equations."""

    def __init__(self) -> None:
        self.state = [0.0] * 4

    def reset(self) -> list[float]:
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action: int) -> tuple[list[float], float, bool]:
        x, speed, angle, turn = self.state
        push = (10.0 if action else -10.0) + 0.05 * turn * turn * angle
        turning = (9.8 * angle - push / 1.1) / 0.6
        state = [x + 0.02 * speed, speed + 0.02 * push / 1.1, angle + 0.02 * turn, turn + 0.02 * turning]
        self.state = state
        return state, 1.0, abs(state[0]) > 2.4 or abs(state[2]) > 0.21


def reinforce(task: Task, steps: int, size: int) -> None:
    """Plays some episodes, then learns from them."""
    policy, pole = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)), Pole()
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    for _ in range(steps):
        chances, returns = [], []
        for _ in range(size):
            state, over, rewards = pole.reset(), False, []
            while not over and len(rewards) < 50:
                choice = torch.distributions.Categorical(logits=policy(torch.tensor(state)))
                action = choice.sample()
                chances.append(choice.log_prob(action))
                state, reward, over = pole.step(int(action))
                rewards.append(reward)
            returns += [float(len(rewards) - at) for at in range(len(rewards))]
        loss = -(torch.stack(chances) * torch.tensor(returns)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def replayed(task: Task, steps: int, size: int) -> None:
    """A network of values learns from a buffer of what happened; a copy of it, from time to time renewed, says the aim."""
    make = lambda: nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))  # noqa: E731
    values, pole = make(), Pole()
    target, optimizer = copy.deepcopy(values), torch.optim.Adam(values.parameters())
    seen: collections.deque[tuple[list[float], int, float, list[float], bool]] = collections.deque(maxlen=10_000)
    state = pole.reset()
    for step in range(steps + 100):
        with torch.no_grad():
            greedy = int(values(torch.tensor([state])).argmax())
        action = greedy if random.random() > 0.1 else random.randrange(2)
        after, reward, over = pole.step(action)
        seen.append((state, action, reward, after, over))
        state = pole.reset() if over else after
        if step < 100:
            continue
        states, actions, rewards, afters, overs = zip(*random.sample(seen, min(size, len(seen))))
        with torch.no_grad():
            best = target(torch.tensor(afters)).max(1).values
        aim = torch.tensor(rewards) + 0.99 * best * (1 - torch.tensor(overs, dtype=torch.float))
        now = values(torch.tensor(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
        optimizer.zero_grad()
        F.smooth_l1_loss(now, aim).backward()
        optimizer.step()
        if step % 50 == 0:
            target.load_state_dict(values.state_dict())


def clipped_policy(task: Task, steps: int, size: int) -> None:
    """Plays with many poles at once without gradients, then goes through what it saw in four rounds of four batches."""
    body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    net = nn.ModuleDict({"body": body, "policy": nn.Linear(64, 2), "value": nn.Linear(64, 1)})
    optimizer, poles = torch.optim.Adam(net.parameters(), 3e-4), [Pole() for _ in range(8)]
    states, done = [pole.reset() for pole in poles], 0
    while done < steps:
        seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        with torch.no_grad():
            for _ in range(32):
                x = torch.tensor(states)
                choice = torch.distributions.Categorical(logits=net["policy"](net["body"](x)))
                actions = choice.sample()
                seen.append((x, actions, choice.log_prob(actions)))
                for at, (pole, action) in enumerate(zip(poles, actions.tolist())):
                    after, _, over = pole.step(action)
                    states[at] = pole.reset() if over else after
        x, actions, before = (torch.cat(of) for of in zip(*seen))
        gain = torch.randn(len(x))
        for _ in range(4):
            for rows in torch.randperm(len(x)).chunk(4):
                features = net["body"](x[rows])
                choice = torch.distributions.Categorical(logits=net["policy"](features))
                ratio = (choice.log_prob(actions[rows]) - before[rows]).exp()
                pressed = torch.min(ratio * gain[rows], ratio.clamp(0.8, 1.2) * gain[rows])
                loss = -pressed.mean() + 0.5 * (net["value"](features).squeeze(1) - gain[rows]).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                done += 1


def sparse(task: Task, steps: int, size: int) -> None:
    """A table with sparse gradients has an optimizer of its own."""
    table, net = nn.Embedding(10_000, 32, sparse=True), nn.Sequential(nn.Linear(320, 64), nn.ReLU(), nn.Linear(64, 1))
    of_table, of_net = torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(net.parameters())
    ids, aims = torch.randint(0, 10_000, (2048, 10)), torch.randn(2048, 1)
    for step in range(steps):
        begin = step * size % (2048 - size)
        loss = F.mse_loss(net(table(ids[begin : begin + size]).flatten(1)), aims[begin : begin + size])
        of_table.zero_grad()
        of_net.zero_grad()
        loss.backward()
        of_table.step()
        of_net.step()


class Low(nn.Module):
    """A layer that is kept as it is, and a difference of low rank that learns."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def low_rank(task: Task, steps: int, size: int) -> None:
    task.net.requires_grad_(False)
    for block in task.net.blocks:
        block.qkv, block.out = Low(block.qkv), Low(block.out)
    optimizer = torch.optim.AdamW((p for p in task.net.parameters() if p.requires_grad), 1e-3)
    for step in range(steps):
        x, y = task.batch(step, size)
        optimizer.zero_grad()
        task.loss(task.net(x), y).backward()
        optimizer.step()
