import common
import numpy
import skorch
from torch import nn

common.begin()
x = numpy.random.randn(60, 6).astype("float32")
y = (x[:, 0] > 0).astype("int64")
net = skorch.NeuralNetClassifier(
    nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), criterion=nn.CrossEntropyLoss, max_epochs=3, batch_size=12,
    verbose=0,
)  # fmt: skip
net.fit(x, y)
for epoch in net.history:
    common.said("loss", epoch["train_loss"])
    common.said("validation", epoch["valid_loss"])
common.weights(net.module_)
