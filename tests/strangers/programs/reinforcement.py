import sys

import common
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import MLP, EGreedyModule, ProbabilisticActor, QValueModule, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

common.begin()


def dqn():
    environment = GymEnv("CartPole-v1")
    environment.set_seed(0)
    network = TensorDictModule(MLP(out_features=2, num_cells=[16]), ["observation"], ["action_value"])
    policy = TensorDictSequential(network, QValueModule(spec=environment.action_spec))
    policy(environment.reset())
    exploring = TensorDictSequential(policy, EGreedyModule(environment.action_spec, annealing_num_steps=64))
    memory = ReplayBuffer(storage=LazyTensorStorage(64), batch_size=8)
    losses = DQNLoss(policy, action_space=environment.action_spec, delay_value=True)
    target = SoftUpdate(losses, eps=0.9)
    optimizer = torch.optim.Adam(losses.parameters(), lr=0.01)
    for rollout in Collector(environment, exploring, frames_per_batch=8, total_frames=64):
        memory.extend(rollout)
        step(losses(memory.sample()), optimizer)
        target.step()
    common.weights(losses)


def actor_of(environment):
    actions = environment.action_spec
    layers = nn.Sequential(MLP(out_features=2 * actions.shape[-1], num_cells=[16]), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(layers, ["observation"], ["loc", "scale"]),
        spec=actions,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": actions.space.low, "high": actions.space.high},
        return_log_prob=True,
    )
    actor(environment.reset())
    return actor


def ppo():
    environment = GymEnv("Pendulum-v1")
    environment.set_seed(0)
    actor = actor_of(environment)
    critic = ValueOperator(MLP(out_features=1, num_cells=[16]), ["observation"])
    critic(environment.reset())
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    losses = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(losses.parameters(), lr=0.01)
    for rollout in Collector(environment, actor, frames_per_batch=16, total_frames=32):
        advantage(rollout)
        for part in [*rollout.split(8), *rollout.split(8)]:
            step(losses(part), optimizer)
    common.weights(losses)


def sac():
    """Two critics, whose parameters are stacked and which are called as one under vmap."""
    environment = GymEnv("Pendulum-v1")
    environment.set_seed(0)
    actor = actor_of(environment)
    critic = ValueOperator(MLP(in_features=4, out_features=1, num_cells=[16]), ["observation", "action"])
    memory = ReplayBuffer(storage=LazyTensorStorage(64), batch_size=8)
    losses = SACLoss(actor, critic, num_qvalue_nets=2)
    losses.make_value_estimator(gamma=0.99)
    target = SoftUpdate(losses, eps=0.99)
    optimizer = torch.optim.Adam(losses.parameters(), lr=0.01)
    for rollout in Collector(environment, actor, frames_per_batch=8, total_frames=64):
        memory.extend(rollout)
        step(losses(memory.sample()), optimizer)
        target.step()
    common.weights(losses)


def step(said, optimizer):
    loss = sum(value for name, value in said.items() if name.startswith("loss"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    common.said("loss", loss)


{"dqn": dqn, "ppo": ppo, "sac": sac}[sys.argv[1]]()
