"""The grid: cells put together from parts equal models fitted whole, and nothing finished is done again."""

import json
from dataclasses import replace

import pytest
import torch

from conftest import sentences
from saffu import SaffuConfig, SaffuError, Tokenizer, ablate, cells, parts
from saffu.ablate import Ablation, Text
from saffu.cells import Results
from saffu.corpus import TokenCorpus
from saffu.evaluate import evaluate
from saffu.fit import ExplicitFit, stages
from saffu.grid import MODES, grid, parts_of

DIMENSIONS = {"block_dimension": [16], "radius_dimension": [12], "hidden_dimension": [32]}


@pytest.fixture(scope="module")
def text():
    train, dev = sentences(1, 300), sentences(2, 60)
    tokenizer = Tokenizer.train(train)
    return Text.of(*(TokenCorpus.build(documents, tokenizer) for documents in (train, dev)), tokenizer, sample=1000)


def small(blocks=(2, 8), radii=(2, 4), modes=MODES, documents=5, **settings):
    return grid(blocks, radii, modes, documents, DIMENSIONS | settings)


def separately(config: SaffuConfig, text: Text) -> dict[str, float]:
    """Perplexities of the model fitted whole, and how many numbers it has."""
    frequencies = text.train.frequencies(text.vocabulary)
    fit = ExplicitFit(config, frequencies, text.train.documents, text.train.fragments(config.block))
    for _ in stages(fit, text.train):
        pass
    scores = {name: evaluate(fit.network.double(), corpus).perplexity for name, corpus in text.samples.items()}
    return scores | {"parameters": fit.network.parameter_count()}


def assert_equals_separate_fits(found: list[cells.Cell], text: Text) -> None:
    for cell in found:
        expected = separately(cell.config, text)
        assert cell.train.perplexity == pytest.approx(expected["train"], rel=1e-6)
        assert cell.dev.perplexity == pytest.approx(expected["dev"], rel=1e-6)
        assert cell.parameters == expected["parameters"]


def test_every_cell_equals_a_model_fitted_whole(text, tmp_path):
    found = Ablation(Results(tmp_path), text).run(small())
    assert len(found) == 4 * 4 + 4
    assert len({round(cell.dev.nll, 6) for cell in found}) == len(found)
    assert_equals_separate_fits(found, text)


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden_dimension": [0], "documents": 0},
        {"attention": ["uniform"]},
        {"tune": [2], "fold": [700]},
        {"tune": [1], "accumulate": [False], "documents": 0},
        {"attention_priming": ["slots", "measured"], "decoder_priming": ["measured"], "documents": 0},
        {"variation_sign": [-1], "head": ["first"], "documents": 0},
        {"smoothing": [1e-6, 1.0]},
        {"radius_dimension": [12, 20], "block_dimension": [16, 24], "documents": 0},
    ],
    ids=str,
)
def test_sweeps_equal_models_fitted_whole(text, tmp_path, settings):
    found = Ablation(Results(tmp_path), text).run(small([4], [3], ["sum/cat"], **{"documents": 5, **settings}))
    assert_equals_separate_fits(found, text)


def test_results_do_not_depend_on_the_batches(text, tmp_path):
    chosen = small(radii=[4])
    whole = Ablation(Results(tmp_path / "a"), text).run(chosen)
    tiny = Ablation(Results(tmp_path / "b"), text, memory=800 * 10**6)
    assert ablate.batch_sizes(parts_of(chosen), text.vocabulary, 10**7) < ablate.batch_sizes(
        parts_of(chosen), text.vocabulary, ablate.MEMORY
    )
    for one, other in zip(whole, tiny.run(chosen), strict=True):
        assert one.dev.nll == pytest.approx(other.dev.nll, rel=1e-7)


def test_the_papers_grid_is_28_units_and_7_document_models(monkeypatch):
    assert len(grid()) == 245
    names = [part.name for part in parts_of(grid())]
    assert (names.count("block"), names.count("radius"), names.count("document")) == (14, 14, 7)


def test_parts_are_fitted_once(text, tmp_path, monkeypatch):
    fitted = count_calls(monkeypatch, parts.Parts, "fit")
    Ablation(Results(tmp_path), text).run(small())
    assert len(fitted) == 2 + 2 + 4  # document models bring their sum blocks along; cat blocks; radii


def test_finished_cells_are_not_done_again(text, tmp_path, monkeypatch):
    before = Ablation(Results(tmp_path), text).run(small())
    lines = (tmp_path / "cells.jsonl").read_text()
    fitted, told = count_calls(monkeypatch, parts.Parts, "fit"), count_calls(monkeypatch, ablate, "outputs")
    assert Ablation(Results(tmp_path), text).run(small()) == before
    assert (fitted, told) == ([], [])
    after = Ablation(Results(tmp_path), text).run(small(radii=[2, 4, 3]))
    assert len(after) == len(before) * 3 // 2
    assert [part.config.radius for _, part in fitted] == [3, 3]
    assert (tmp_path / "cells.jsonl").read_text().startswith(lines)


def test_an_interrupted_grid_goes_on(text, tmp_path, monkeypatch):
    expected = Ablation(Results(tmp_path / "whole"), text).run(small())
    monkeypatch.setattr(ablate, "BATCH", 128)
    monkeypatch.setattr(ablate, "batch_sizes", lambda *_: (256, 64))
    folder, fitted = tmp_path / "cut", count_calls(monkeypatch, parts.Parts, "fit")

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as context:
        context.setattr(parts.Parts, "fit", fails_at(3, parts.Parts.fit))
        Ablation(Results(folder), text).run(small())
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as context:
        context.setattr(Results, "save_partial", fails_at(3, Results.save_partial))
        Ablation(Results(folder), text).run(small())
    assert not (folder / "cells.jsonl").exists()
    stretches = sum(-(-corpus.targets // 256) for corpus in text.samples.values())
    told = count_calls(monkeypatch, ablate, "outputs")
    found = Ablation(Results(folder), text).run(small())
    assert len(told) == (stretches - 2) * len(parts_of(small()))  # two stretches were saved
    assert len(fitted) == 8  # none was fitted twice
    assert not (folder / "partial.json").exists()
    for cell, other in zip(found, expected, strict=True):
        assert (cell.config, cell.dev.nll) == (other.config, pytest.approx(other.dev.nll, rel=1e-7))


def test_damaged_lines_are_reported_and_done_again(text, tmp_path):
    before = Ablation(Results(tmp_path), text).run(small())
    path = tmp_path / "cells.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    facts = json.loads(lines[3])
    damaged = lines.copy()
    damaged[3] = lines[3].replace(
        str(facts["dev_nll"]), str(facts["dev_nll"] + 1)
    )  # still JSON, but not what was written
    damaged[5] = "\x00garbage\n"
    damaged[-1] = lines[-1][:40]  # cut short by a kill
    path.write_text("".join(damaged))
    results = Results(tmp_path)
    assert results.damaged == [4, 6, len(lines)]
    assert f"damaged at line 4, 6, {len(lines)}" in results.notes[0]
    after = Ablation(results, text).run(small())
    assert [c.config for c in after] == [c.config for c in before]
    kept = [line for n, line in enumerate(lines) if n not in (3, 5, len(lines) - 1)]
    assert path.read_text().startswith("".join(kept))
    assert len(path.read_text().splitlines()) == len(lines)
    for cell, other in zip(after, before, strict=True):
        assert cell.dev.nll == pytest.approx(other.dev.nll, rel=1e-7)


def test_a_damaged_part_is_fitted_again(text, tmp_path, monkeypatch):
    chosen = small(modes=["sum/cat"], documents=0)
    Ablation(Results(tmp_path), text).run(chosen)
    victim = sorted((tmp_path / "parts").glob("radius-*"))[0]
    victim.write_bytes(victim.read_bytes()[:1000])
    (tmp_path / "cells.jsonl").unlink()
    fitted = count_calls(monkeypatch, parts.Parts, "fit")
    Ablation(Results(tmp_path), text).run(chosen)
    assert len(fitted) == 1


def test_cells_of_other_text_are_refused(text, tmp_path):
    chosen = small([2], [2], ["sum/cat"], 0)
    Ablation(Results(tmp_path), text).run(chosen)
    with pytest.raises(SaffuError, match="other text"):
        Ablation(Results(tmp_path), replace(text, fingerprint="0" * 24))


def test_other_held_out_text_needs_no_new_fits(text, tmp_path, monkeypatch):
    chosen = small([2], [2], ["sum/cat"], 0)
    Ablation(Results(tmp_path), text).run(chosen)
    samples = text.samples | {"dev": text.samples["dev"].every(2)}
    (tmp_path / "run.json").unlink()
    fitted = count_calls(monkeypatch, parts.Parts, "fit")
    (cell,) = Ablation(Results(tmp_path), replace(text, samples=samples, fingerprint="0" * 24)).run(chosen)
    assert (fitted, cell.dev.targets) == ([], samples["dev"].targets)


def test_cells_of_other_text_never_mix(text, tmp_path):
    chosen = small([2], [2], ["sum/cat"], 0)
    (cell,) = Ablation(Results(tmp_path), text).run(chosen)
    (tmp_path / "run.json").unlink()  # all that told whose the cells are, but for the lines themselves
    other = replace(text, fingerprint="0" * 24, counted="1" * 24, train=text.train.every(2))
    (new,) = Ablation(Results(tmp_path), other).run(chosen)
    assert new.train.nll != cell.train.nll
    results = Results(tmp_path)
    assert list(results.cells.values()) == [new]
    assert "1 cells of another text" in results.notes[0]


def test_a_part_that_cannot_be_solved_fails_its_cells_only(text, tmp_path, monkeypatch):
    fit = parts.Parts.fit

    def unsolvable(self, part):
        if part.config.block == 8:
            raise SaffuError("V outgrew its bound")
        fit(self, part)

    monkeypatch.setattr(parts.Parts, "fit", unsolvable)
    found = Ablation(Results(tmp_path), text).run(small(modes=["sum/cat"], documents=0))
    assert [cell.failure for cell in found] == [None, "V outgrew its bound"] * 2
    assert [cell.dev is None for cell in Results(tmp_path).cells.values()].count(True) == 2


def test_least_attention_is_the_smallest_count(text, tmp_path):
    (cell,) = Ablation(Results(tmp_path), text).run(small([4], [3], ["sum/cat"], 0))
    frequencies = text.train.frequencies(text.vocabulary)
    fit = ExplicitFit(cell.config, frequencies, text.train.documents, text.train.fragments(4))
    fit.initialise(text.train)
    least = min(float(fit.counts[f"{unit}.attention"].F.min()) for unit in ("block", "radius")) / text.train.targets
    assert cell.least_attention == pytest.approx(least)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": [1]}, "1 is among `blocks`"),
        ({"radii": [4, 0]}, "0 is among `radii`"),
        ({"modes": ["sum/mean"]}, "unknown modes 'sum/mean'"),
        ({"documents": 1}, "at least 2 shards"),
        ({"settings": {"smoothing": [0.0]}}, "`smoothing` is 0.0"),
        ({"blocks": []}, "`blocks` has no value"),
    ],
    ids=str,
)
def test_grids_that_make_no_sense(arguments, message):
    with pytest.raises(SaffuError, match=message):
        grid(**arguments)


def test_memory_is_checked_up_front():
    ablate.require_memory(grid(), 3837, ablate.MEMORY)
    with pytest.raises(SaffuError, match=r"needs about \d\.\d GB, for its .*block of 128, and `memory` allows 1\.0 GB"):
        ablate.require_memory(grid(), 3837, 10**9)


def test_held_out_text_must_be_other_text(text):
    train = TokenCorpus(*(torch.clone(x) for x in (text.train.ids, text.train.starts, text.train.sizes)))
    with pytest.raises(SaffuError, match="is the training text"):
        Text.of(train, text.train, Tokenizer.train(["a"]))


def count_calls(monkeypatch, owner, name):
    """A list to which every call of a function adds its arguments."""
    calls, usual = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: (calls.append(arguments), usual(*arguments))[1])
    return calls


def fails_at(number, usual):
    calls = []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise KeyboardInterrupt
        return usual(*arguments)

    return call
