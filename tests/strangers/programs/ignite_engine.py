import common
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss
from torch import nn

common.begin()
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*common.digits()), batch_size=8)
trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
evaluator = create_supervised_evaluator(model, metrics={"loss": Loss(nn.CrossEntropyLoss())})


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(loader)
    common.said("validation", evaluator.state.metrics["loss"])


trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: common.said("loss", engine.state.output))
trainer.run(loader, max_epochs=2)
common.weights(model)
