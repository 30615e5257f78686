"""Plain misuses of the Python API: each is one clear line, not an error from deep inside."""

import copy
from pathlib import Path

import numpy as np
import pytest

import saffu
from conftest import each
from saffu import (
    CalibratedConfig,
    PaperConfig,
    SaffuError,
    SaffuLM,
    Sampling,
    Tokenizer,
    TokenizerConfig,
    TrainingConfig,
)

MISUSES = {
    # settings
    "order 0": lambda lm, tmp: CalibratedConfig(order=0),
    "order as text": lambda lm, tmp: CalibratedConfig(order="5"),
    "order None": lambda lm, tmp: CalibratedConfig(order=None),
    "order true": lambda lm, tmp: CalibratedConfig(order=True),
    "order 2.5": lambda lm, tmp: CalibratedConfig(order=2.5),
    "order 10^23": lambda lm, tmp: CalibratedConfig(order=10**23),
    "unknown setting": lambda lm, tmp: CalibratedConfig(depth=3),
    "no units": lambda lm, tmp: PaperConfig(block=0, radius=0),
    "block 2^32": lambda lm, tmp: PaperConfig(block=2**32),
    "smoothing nan": lambda lm, tmp: PaperConfig(smoothing=float("nan")),
    "smoothing 1e308": lambda lm, tmp: PaperConfig(smoothing=1e308),
    "mode": lambda lm, tmp: PaperConfig(block_mode="mean"),
    "learning rate 1e308": lambda lm, tmp: TrainingConfig(learning_rate=1e308),
    "learning rate inf": lambda lm, tmp: TrainingConfig(learning_rate=float("inf")),
    "batch 0": lambda lm, tmp: TrainingConfig(batch_size=0),
    "preset": lambda lm, tmp: saffu.preset("magic"),
    "preset None": lambda lm, tmp: saffu.preset(None),
    "preset's setting": lambda lm, tmp: saffu.preset("paper", order=3),
    "top_p 2": lambda lm, tmp: Sampling(top_p=2),
    "epochs 1e25": lambda lm, tmp: saffu.preset("companion", epochs=1e25),
    "minutes 1e25": lambda lm, tmp: saffu.preset("companion", minutes=1e25),
    "decay 1e308": lambda lm, tmp: saffu.preset("companion", decay=1e308),
    "batch 2^63": lambda lm, tmp: saffu.preset("companion", batch_tokens=2**63),
    "bpe words": lambda lm, tmp: TokenizerConfig(bpe_words=0),
    # the constructor
    "config is a name": lambda lm, tmp: SaffuLM("paper"),
    "config is a dict": lambda lm, tmp: SaffuLM({"order": 3}),
    "config is a class": lambda lm, tmp: SaffuLM(CalibratedConfig),
    "config of a tokenizer": lambda lm, tmp: SaffuLM(TokenizerConfig()).fit(["a b c"] * 9),
    "tokenizer is a name": lambda lm, tmp: SaffuLM(tokenizer="gpt2"),
    "encoder is a path": lambda lm, tmp: SaffuLM(encoder=str(tmp)),
    "encoder is not fitted": lambda lm, tmp: SaffuLM(encoder=SaffuLM()),
    "encoder and config": lambda lm, tmp: SaffuLM(CalibratedConfig(), encoder=lm),
    "device": lambda lm, tmp: SaffuLM(device="gpu").fit(["a b c"] * 9),
    "device of the paper's network": lambda lm, tmp: SaffuLM(PaperConfig(), device="gpu").fit(["a b c"] * 9),
    "device of a network": lambda lm, tmp: SaffuLM(saffu.preset("companion"), device="cuda:99").fit(["a b c"] * 9),
    "device to train on": lambda lm, tmp: SaffuLM(device="gpu").train(["a b c"] * 9, ["a b"], epochs=1),
    "device of a network None": lambda lm, tmp: SaffuLM(saffu.preset("companion"), device=None).fit(["a b c"] * 9),
    "device None": lambda lm, tmp: SaffuLM(device=None).fit(["a b c"] * 9),
    "parameter": lambda lm, tmp: SaffuLM().set_params(order=3),
    # fit
    "fit a string": lambda lm, tmp: SaffuLM().fit("some text"),
    "fit None": lambda lm, tmp: SaffuLM().fit(None),
    "fit nothing": lambda lm, tmp: SaffuLM().fit([]),
    "fit blanks": lambda lm, tmp: SaffuLM().fit(["", " "]),
    "fit a number": lambda lm, tmp: SaffuLM().fit(3),
    "fit numbers": lambda lm, tmp: SaffuLM().fit([1, 2]),
    "fit a path": lambda lm, tmp: SaffuLM().fit(Path("a.txt")),
    "fit bytes": lambda lm, tmp: SaffuLM().fit([b"text"]),
    "fit surrogates": lambda lm, tmp: SaffuLM().fit(["a\ud800"]),
    "fit a dict": lambda lm, tmp: SaffuLM().fit({"text": "a"}),
    "fit dicts without text": lambda lm, tmp: SaffuLM().fit([{"body": "a"}]),
    "fit with dev a string": lambda lm, tmp: SaffuLM().fit(["a b c"] * 9, "a b"),
    "fit with empty dev": lambda lm, tmp: SaffuLM().fit(["a b c"] * 9, []),
    "fit tokens without tokenizer": lambda lm, tmp: SaffuLM().fit(lm.tokenize(["the dog"])),
    "calibrated with training": lambda lm, tmp: SaffuLM().fit(["a b c"] * 9, training=TrainingConfig()),
    # not fitted
    "score unfitted": lambda lm, tmp: SaffuLM().score(["a"]),
    "generate unfitted": lambda lm, tmp: SaffuLM().generate("a"),
    "save unfitted": lambda lm, tmp: SaffuLM().save(tmp / "m"),
    "update unfitted": lambda lm, tmp: SaffuLM().update(["a"]),
    "merge unfitted": lambda lm, tmp: copy.copy(lm).merge(SaffuLM()),
    "export unfitted": lambda lm, tmp: SaffuLM().export_hf(tmp / "m"),
    # use
    "score a string": lambda lm, tmp: lm.score("text"),
    "score nothing": lambda lm, tmp: lm.score([]),
    "perplexity of nothing": lambda lm, tmp: lm.perplexity([]),
    "perplexity of None": lambda lm, tmp: lm.perplexity(None),
    "references of nothing": lambda lm, tmp: lm.reference_scores([]),
    "complete a number": lambda lm, tmp: lm.complete_word(3),
    "generate from a number": lambda lm, tmp: lm.generate(3),
    "generate from None": lambda lm, tmp: lm.generate(None),
    "generate from bytes": lambda lm, tmp: lm.generate(b"the"),
    "generate from surrogates": lambda lm, tmp: lm.generate("\ud800"),
    "batch of a string": lambda lm, tmp: lm.generate_batch("abc"),
    "batch of numbers": lambda lm, tmp: lm.generate_batch([1, 2]),
    "batch of None": lambda lm, tmp: lm.generate_batch(None),
    "temperature -1": lambda lm, tmp: lm.generate("a", temperature=-1),
    "temperature as text": lambda lm, tmp: lm.generate("a", temperature="hot"),
    "unknown sampling": lambda lm, tmp: lm.generate("a", beams=4),
    "no tokens": lambda lm, tmp: lm.generate("a", max_tokens=0),
    "no lines": lambda lm, tmp: lm.generate("a", lines=0),
    "1.5 lines": lambda lm, tmp: lm.generate("a", lines=1.5),
    "lines as text": lambda lm, tmp: lm.generate("a", lines="two"),
    "seed -1": lambda lm, tmp: lm.generate("a", seed=-1),
    "stream from None": lambda lm, tmp: list(lm.stream(None)),
    "surprisals of a list": lambda lm, tmp: lm.surprisals(["the dog"]),
    "complete to no words": lambda lm, tmp: lm.complete_word("the d", 0),
    "complete to 2.5 words": lambda lm, tmp: lm.complete_word("the d", 2.5),
    "limit as text": lambda lm, tmp: saffu.memory_limit("500M").__enter__(),
    "limit 1": lambda lm, tmp: saffu.memory_limit(1).__enter__(),
    "explain a number": lambda lm, tmp: lm.explain(3),
    "decode unknown ids": lambda lm, tmp: lm.tokenizer_.decode([10**6]),
    "encode a number": lambda lm, tmp: lm.tokenizer_.encode(3),
    "vector of an unknown kind": lambda lm, tmp: lm.word_vectors_.of("aura"),
    "vector of nothing": lambda lm, tmp: lm.word_vectors_[""],
    "neighbors -1": lambda lm, tmp: lm.word_vectors_.neighbors("the", -1),
    "tokenizer of a string": lambda lm, tmp: Tokenizer.train("the dog"),
    "tokenizer from junk": lambda lm, tmp: Tokenizer.from_json("junk"),
    "tokenizer from None": lambda lm, tmp: Tokenizer.from_json(None),
    # change
    "update with a string": lambda lm, tmp: copy.copy(lm).update("text"),
    "update with nothing": lambda lm, tmp: copy.copy(lm).update([]),
    "forget nothing": lambda lm, tmp: copy.copy(lm).forget([]),
    "forget the unknown": lambda lm, tmp: copy.copy(lm).forget(["never seen"]),
    "merge a path": lambda lm, tmp: lm.merge("model"),
    "backprop calibrated": lambda lm, tmp: lm.backprop(["a"], ["b"]),
    # folders
    "load nowhere": lambda lm, tmp: saffu.load(tmp / "nowhere"),
    "load a file": lambda lm, tmp: saffu.load(__file__),
    "load an empty folder": lambda lm, tmp: saffu.load(tmp),
    "load None": lambda lm, tmp: saffu.load(None),
    "load an empty name": lambda lm, tmp: saffu.load(""),
    "save above": lambda lm, tmp: lm.save(".."),
    "save the root": lambda lm, tmp: lm.save("/"),
    "save onto a file": lambda lm, tmp: lm.save(__file__),
    "save over others' files": lambda lm, tmp: lm.save(Path(__file__).parent),
    "save None": lambda lm, tmp: lm.save(None),
    "escape": lambda lm, tmp: lm.save(tmp / "m", {"../x": b""}),
    "replace config.json": lambda lm, tmp: lm.save(tmp / "m", {"config.json": b""}),
    "resume nothing": lambda lm, tmp: SaffuLM.resume(tmp, ["a"], ["b"]),
}


WRONG_TYPES = ("None", "number", "numbers", "bytes", "path", "text", "setting", "parameter")


@each("misuse", MISUSES)
def test_misuse_is_one_line(fitted, tmp_path, monkeypatch, misuse):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SaffuError, TypeError)) as raised:
        MISUSES[misuse](fitted("calibrated"), tmp_path)
    message = str(raised.value)
    assert message.strip()
    assert "\n" not in message
    if isinstance(raised.value, TypeError):  # only for what is plainly of a wrong type
        assert misuse.split()[-1] in WRONG_TYPES
    assert list(tmp_path.iterdir()) == []
    assert Path.cwd() == tmp_path


@each("kind", ["calibrated", "paper"])
@each("token", [10**6, -1])
def test_a_step_to_a_token_that_does_not_exist(fitted, kind, token):
    lm = fitted(kind)
    with pytest.raises(SaffuError, match=f"token {token} is outside .*; encode text with this tokenizer"):
        lm.step(lm.start("the"), token)


def test_nothing_is_changed_by_misuse(fitted, dev_text):
    lm = copy.copy(fitted("calibrated"))
    before = lm.perplexity(dev_text)
    for documents in (["never seen"], [], "text", None):
        with pytest.raises((SaffuError, TypeError)):
            lm.forget(documents)
    with pytest.raises(TypeError):
        lm.set_params(colour=3)
    with pytest.raises(SaffuError, match=r"saffu\.preset"):
        lm.set_params(config="paper")
    assert lm.perplexity(dev_text) == before
    assert np.isfinite(before)


def test_settings_take_numbers_of_numpy():
    config = CalibratedConfig(order=np.int64(3))
    assert (config, type(config.order)) == (CalibratedConfig(order=3), int)
    sampling = Sampling(temperature=np.float32(0.5), seed=np.uint8(7))
    assert (sampling, type(sampling.temperature)) == (Sampling(temperature=0.5, seed=7), float)
    with pytest.raises(SaffuError, match=r"`order` is 2.5; it must be an integer from 2 to 9"):
        CalibratedConfig(order=np.float32(2.5))


def test_limits_are_stated_exactly():
    with pytest.raises(SaffuError, match=r"from 1 to 16777216$"):
        TrainingConfig(batch_size=2**25)
    with pytest.raises(SaffuError, match=r"from 0 to 0.99$"):
        TrainingConfig(dropout=1.0)
