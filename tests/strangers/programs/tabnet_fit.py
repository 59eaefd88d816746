import common
import numpy
from pytorch_tabnet.tab_model import TabNetClassifier

common.begin()
x = numpy.random.randn(64, 5).astype("float32")
y = (x[:, 0] > 0).astype("int64")
model = TabNetClassifier(n_d=4, n_a=4, n_steps=2, seed=0, verbose=0, device_name="cpu")
model.fit(x, y, eval_set=[(x[:16], y[:16])], max_epochs=2, batch_size=16, virtual_batch_size=8, drop_last=False)
for loss in model.history["loss"]:
    common.said("loss", loss)
common.weights(model.network)
