import common
import timm
import timm.optim
import timm.utils
import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead
from torch import nn

common.begin()


class SimSiam(nn.Module):
    """As lightly's documentation puts its parts together, over the smallest of timm's networks."""

    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("resnet10t", num_classes=0, in_chans=1)
        self.projection = SimSiamProjectionHead(512, 16, 16)
        self.prediction = SimSiamPredictionHead(16, 8, 16)

    def forward(self, x):
        z = self.projection(self.backbone(x))
        return z.detach(), self.prediction(z)


model = SimSiam()
criterion = NegativeCosineSimilarity()
optimizer = timm.optim.create_optimizer_v2(model, opt="lamb", lr=0.01)
ema = timm.utils.ModelEmaV2(model, decay=0.9)
for _ in range(4):
    images = torch.randn(4, 1, 32, 32)
    (z0, p0), (z1, p1) = model(images), model(images.flip(-1))
    loss = (criterion(z0, p1) + criterion(z1, p0)) / 2
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    ema.update(model)
    common.said("loss", loss)
common.weights(model, ema)
