import sys

import common
import stable_baselines3

common.begin()
if sys.argv[1] == "PPO":
    model = stable_baselines3.PPO(
        "MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=2, seed=0, device="cpu"
    )
else:
    model = stable_baselines3.DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_starts=16,
        batch_size=8,
        train_freq=4,
        buffer_size=100,
        seed=0,
        device="cpu",
    )
model.learn(64)
common.weights(model.policy)
