import common
import torch
from sentence_transformers import InputExample, SentenceTransformer
from sentence_transformers.sentence_transformer import losses, modules
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from torch.utils.data import DataLoader

common.begin()
WORDS = ["a", "step", "of", "training", "and", "its", "loss", "rank"]


class Said(losses.CosineSimilarityLoss):
    def forward(self, *arguments, **keywords):
        loss = super().forward(*arguments, **keywords)
        common.said("loss", loss)
        return loss


words = modules.WordEmbeddings(WhitespaceTokenizer(WORDS, stop_words=[]), torch.randn(len(WORDS), 8), True)
model = SentenceTransformer(modules=[words, modules.Pooling(8), modules.Dense(8, 4)], device="cpu")
pairs = [(WORDS[i % 8], WORDS[i * 3 % 8], i % 4 / 4) for i in range(16)]
examples = [InputExample(texts=[left, right], label=score) for left, right, score in pairs]
evaluator = EmbeddingSimilarityEvaluator(*zip(*pairs), write_csv=False)
model.old_fit(
    [(DataLoader(examples, batch_size=4), Said(model))],
    epochs=2,
    warmup_steps=2,
    show_progress_bar=False,
)
print({name: float(score) for name, score in evaluator(model).items()})
common.weights(model)
