"""`python -m rl_zoo3.train`, the program that the package has: PPO plays CartPole."""

import os
import pathlib
import runpy
import sys
import tempfile
import zipfile

import common
import torch

common.begin()
with tempfile.TemporaryDirectory() as directory:
    os.chdir(directory)
    sys.argv = [
        "train.py", "--algo", "ppo", "--env", "CartPole-v1", "-n", "128", "--device", "cpu", "--eval-freq", "-1", "--seed", "1",
        "-params", "n_envs:1", "n_steps:64", "batch_size:32", "n_epochs:2",
    ]  # fmt: skip
    runpy.run_module("rl_zoo3.train", run_name="__main__", alter_sys=True)
    (saved,) = pathlib.Path().glob("logs/ppo/*/CartPole-v1.zip")
    with zipfile.ZipFile(saved) as archive:
        archive.extract("policy.pth")
    common.weights(torch.load("policy.pth"))
