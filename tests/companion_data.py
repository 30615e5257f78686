"""A small text whose lines need a longer memory than counts of pairs have, and models of it."""

import random

import torch

from saffu import SaffuLM
from saffu.companion.config import CompanionConfig, resolved
from saffu.companion.torch_networks import TorchNetworks
from saffu.companion.train import Training
from saffu.text.corpus import TokenCorpus, lines_of

CONFIG = CompanionConfig(
    order=2,
    slots=1,
    word_classes=0,
    output_classes=4,
    cache=0,
    epochs=12,
    depth=1,
    context=32,
    batch_tokens=512,
)
NAMES = ("ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal")


def texts(seed: int, number: int) -> list[str]:
    """Documents of twelve lines, in which a name comes back after four other words: too far for pairs of tokens."""
    draw = random.Random(seed)
    lines = [f"{name} saw {draw.choice(NAMES)} and {name} ran" for name in draw.choices(NAMES, k=number)]
    return ["\n".join(lines[first : first + 12]) for first in range(0, number, 12)]


def counted_model() -> SaffuLM:
    return SaffuLM(CONFIG).fit(texts(1, 600))


def dev_corpus(lm: SaffuLM) -> TokenCorpus:
    return TokenCorpus.build(lines_of(texts(2, 120)), lm.tokenizer_)


def training(lm: SaffuLM, dev: TokenCorpus, spellings=None, seconds=0.0, **changes) -> Training:
    """A run on the text that the model has counted."""
    corpus = lm.tokenize(texts(1, 600))
    config = resolved(CompanionConfig(**CONFIG.to_dict() | {"network_dropout": 0.2} | changes), corpus.targets, "cpu")
    model = lm.model_.with_parts(config=config)
    return Training(model, corpus, dev, spellings=spellings, seconds=seconds)


def with_network(text: list[str], dev: list[str]) -> SaffuLM:
    """A counted model with an untrained network, which has half of the say."""
    shape = {"order": 3, "slots": 2, "word_classes": 5, "output_classes": 4, "depth": 1, "context": 16}
    lm = SaffuLM(CompanionConfig(**shape, class_first=True, epochs=1)).fit(text, dev)
    torch.manual_seed(0)
    networks = TorchNetworks.start(lm.config, lm.model_.counted, torch.device("cpu"))
    torch.nn.init.zeros_(networks.gates.bias)
    lm.model_ = lm.model_.with_parts(networks=networks.without_torch(lm.model_.counted))
    return lm
