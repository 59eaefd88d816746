"""A model of vit-pytorch under an optimizer from outside torch."""

import sys

import common
import torch
from vit_pytorch import ViT

common.begin()
model = ViT(image_size=8, patch_size=4, num_classes=4, dim=16, depth=2, heads=2, mlp_dim=32, channels=1)
if sys.argv[1] == "lion":
    from lion_pytorch import Lion as Optimizer
elif sys.argv[1] == "schedulefree":
    from schedulefree import AdamWScheduleFree as Optimizer
elif sys.argv[1] == "prodigy":
    from prodigyopt import Prodigy as Optimizer
else:
    from pytorch_optimizer import AdaBelief as Optimizer
optimizer = Optimizer(model.parameters(), lr=0.01)
images, classes = common.digits()
if hasattr(optimizer, "train"):
    optimizer.train()
for _ in range(6):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), classes)
    loss.backward()
    optimizer.step()
    common.said("loss", loss)
common.weights(model)
