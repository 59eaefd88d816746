import common
import torch
from pytorch_metric_learning import losses, trainers
from torch import nn

common.begin()
trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
data = torch.utils.data.TensorDataset(*common.digits())
trainer = trainers.MetricLossOnly(
    models={"trunk": trunk}, optimizers={"trunk_optimizer": torch.optim.Adam(trunk.parameters())}, batch_size=8,
    loss_funcs={"metric_loss": losses.TripletMarginLoss()}, dataset=data, dataloader_num_workers=0,
    end_of_iteration_hook=lambda trainer: common.said("loss", trainer.losses["total_loss"]),
)  # fmt: skip
trainer.train(num_epochs=2)
common.weights(trunk)
