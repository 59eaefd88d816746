"""Growth: memory that is kept, steps that become slower (little by little, all at once or for a while), and a loss that rises, or
jumps now and then."""

from __future__ import annotations

import common
import torch
from torch import nn

args = common.arguments("leak", "slower", "since", "while", "rising", "spikes")
torch.set_num_threads(1)
net = common.model()
optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters())
samples = common.Samples(1 << 20)
kept: list[torch.Tensor] = []
for step in range(args.steps):
    rows = torch.arange(step * 64, step * 64 + 64) % 512
    optimizer.zero_grad()
    x, y = samples.x[rows], samples.y[rows]
    if args.plant == "spikes" and step % 50 == 49:
        # A batch of broken samples.
        x = x * (1 + 40 * args.strength)
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    if args.plant == "leak":
        kept.append(torch.ones(int(250_000 * args.strength)))  # 1 MB
    elif args.plant == "slower":
        common.burn(step / args.steps * 0.01 * args.strength)
    elif args.plant == "since" and step >= args.steps * 0.6:
        common.burn(0.006 * args.strength)
    elif args.plant == "while" and 0.4 * args.steps <= step < 0.6 * args.steps:
        common.burn(0.006 * args.strength)
    elif args.plant in ("rising", "spikes"):
        import probe_agent

        probe_agent.log(loss=loss.item())
        for group in optimizer.param_groups if args.plant == "rising" else []:
            group["lr"] = 1e-3 if step < args.steps / 6 else 0.1 * args.strength
