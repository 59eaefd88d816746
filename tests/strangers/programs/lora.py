import common
import peft
import torch
import transformers

common.begin()
config = transformers.LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
)
model = peft.get_peft_model(
    transformers.LlamaForCausalLM(config), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.01)
for _ in range(6):
    tokens = torch.randint(64, (2, 8))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    common.said("loss", loss)
common.weights(model)
