"""A GPU gives what a CPU gives."""

import copy
from dataclasses import replace

import pytest
import torch

import saffu
from conftest import SMALL, sentences
from saffu import SaffuConfig, SaffuLM, TrainingConfig
from saffu.network import Network
from saffu.ngram import KneserNey, NgramCounts
from saffu.tokenizer import EOD

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SLOTS = SaffuConfig.preset("calibrated", radius=4, memory=0, classes=0, kept_words=0)
KINDS = {
    "paper": SMALL,
    "documents": replace(SMALL, documents=3),
    "straight": replace(SMALL, hidden_dimension=0),
    "tuned": replace(SMALL, tune=2),
    "measured": replace(SMALL, calibrate=True),
    "network": SaffuConfig.preset("network", radius_dimension=24, kept_words=0),
    "slots": SLOTS,
    "calibrated": SaffuConfig.preset("calibrated", classes=20, kept_words=0),
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request, train_text):
    config = KINDS[request.param]
    return SaffuLM(config, device="cpu").fit(train_text), SaffuLM(config, device="cuda").fit(train_text)


def test_the_same_model(pair, dev_text):
    cpu, gpu = pair
    assert gpu.network_.device.type == "cuda"
    assert gpu.score(dev_text).nll == pytest.approx(cpu.score(dev_text).nll, rel=1e-5)
    moved = copy.copy(cpu)
    moved.network_ = copy.deepcopy(cpu.network_).to("cuda")
    assert moved.score(dev_text).nll == pytest.approx(cpu.score(dev_text).nll, rel=1e-5)
    assert gpu.parameters_ == cpu.parameters_
    ours, theirs = gpu.network_.state_dict(), cpu.network_.state_dict()
    assert list(ours) == list(theirs)
    if not isinstance(cpu.network_, Network):
        for name, tensor in theirs.items():
            if name.startswith("counts."):
                assert torch.equal(ours[name].cpu().view(tensor.dtype), tensor), name
        assert torch.allclose(gpu.network_.exponents, cpu.network_.exponents, atol=1e-3)


def test_saved_there_and_read_here(pair, dev_text, tmp_path):
    _, gpu = pair
    gpu.save(tmp_path / "model")
    here, there = (saffu.load(tmp_path / "model", device=device) for device in ("cpu", "cuda"))
    assert here.score(dev_text).nll == pytest.approx(gpu.score(dev_text).nll, rel=1e-5)
    assert there.score(dev_text).nll == pytest.approx(gpu.score(dev_text).nll, rel=1e-6)


def test_it_writes_and_explains(pair):
    cpu, gpu = pair
    prompts = ["the", "a small dog", ""]
    assert len(gpu.generate_batch(prompts, seed=1)) == 3
    assert gpu.generate("the small", seed=2) == gpu.generate("the small", seed=2)
    assert gpu.explain("the small").likeliest(3) == cpu.explain("the small").likeliest(3)


def test_living_models(train_text, dev_text):
    for config in (replace(SMALL, counting="float64"), KINDS["calibrated"]):
        whole = SaffuLM(config, device="cuda").fit(train_text)
        more = sentences(5, 50)
        before = whole.score(dev_text).nll
        whole.update(more)
        assert whole.network_.device.type == "cuda"
        assert whole.score(dev_text).nll != before
        whole.forget(more)
        assert whole.score(dev_text).nll == before


def test_backpropagation_goes_on(train_text, dev_text):
    lm = SaffuLM(SMALL, device="cuda").fit(train_text)
    before = lm.perplexity(dev_text)
    lm.backprop(train_text, dev_text, TrainingConfig(max_folds=2, batch=256))
    assert lm.perplexity(dev_text) < before


@pytest.mark.parametrize("vocabulary", [300, 7131, 1 << 17])
def test_ngrams_are_the_same(vocabulary):
    """Of one word and of two, with the top bit set and without."""
    ids = torch.randint(EOD, vocabulary, (5000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    starts = torch.arange(0, 5001, 50)
    here = NgramCounts.count(ids, starts, 5, vocabulary)
    there = NgramCounts.count(ids.cuda(), starts.cuda(), 5, vocabulary)
    assert torch.equal(there.keys.cpu(), here.keys)
    assert torch.equal(there.counts.cpu(), here.counts)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(there.columns(), here.columns(), strict=True))
    contexts = torch.stack(here.columns()[3::-1], dim=1)[:200]
    p = KneserNey(there).distribution(contexts.cuda()) if vocabulary < 10_000 else None
    if p is not None:
        assert torch.allclose(p.cpu(), KneserNey(here).distribution(contexts), rtol=1e-9, atol=1e-15)
