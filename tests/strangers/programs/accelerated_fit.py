import common
import torch
from pytorch_accelerated import Trainer
from torch import nn

common.begin()
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
data = torch.utils.data.TensorDataset(*common.digits())
trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=())
trainer.train(
    data,
    num_epochs=2,
    eval_dataset=data,
    per_device_batch_size=8,
)
for loss in trainer.run_history.get_metric_values("train_loss_epoch"):
    common.said("loss", loss)
common.weights(model)
