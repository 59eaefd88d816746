import common
import torch
from ema_pytorch import EMA
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

common.begin()
network = TransformerWrapper(
    num_tokens=32, max_seq_len=16, attn_layers=Decoder(dim=16, depth=2, heads=2, rotary_pos_emb=True)
)
model = AutoregressiveWrapper(network)
ema = EMA(model, beta=0.9, update_every=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(6):
    loss = model(torch.randint(32, (4, 17)))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    ema.update()
    common.said("loss", loss)
with torch.no_grad():
    print(model.generate(torch.zeros(1, 1, dtype=torch.long), 4, temperature=0.0).tolist())
common.weights(model, ema)
