import common
import torch
from poutyne import Model
from torch import nn

common.begin()
images, classes = common.digits()
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
model = Model(network, torch.optim.Adam(network.parameters(), lr=0.01), "cross_entropy")
for epoch in model.fit(images, classes, validation_data=(images, classes), epochs=2, batch_size=8, verbose=False):
    common.said("loss", epoch["loss"])
    common.said("validation", epoch["val_loss"])
common.weights(network)
