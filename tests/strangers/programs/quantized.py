"""torch's own quantization-aware test model and the loop that torch's tests train it with."""

import common
import torch
from torch.ao.quantization import prepare_qat
from torch.testing._internal.common_quantization import ManualLinearQATModel, test_only_train_fn

common.begin()
torch.backends.quantized.engine = "fbgemm"
model = prepare_qat(ManualLinearQATModel("fbgemm"))
data = [(torch.rand(2, 5), torch.randint(0, 5, (2,))) for _ in range(4)]
for loss in test_only_train_fn(model, data)[1:]:
    print("of the pass", repr(loss))
common.weights(model)
