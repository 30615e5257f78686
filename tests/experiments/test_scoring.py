"""The grid: cells assembled from units equal models fitted as a whole, and finished work is not repeated."""

import json
import threading
from dataclasses import replace

import pytest

from conftest import each, sentences
from saffu.errors import SaffuError
from saffu.experiments import scoring
from saffu.experiments.grid import MODES, grid
from saffu.experiments.results import Cell, Results
from saffu.experiments.scoring import MEMORY_LIMIT, FittedUnits, GridCorpus, require_memory, run_grid
from saffu.paper.config import PaperConfig
from saffu.paper.fit import fit
from saffu.paper.parts import units_of
from saffu.text.corpus import TokenCorpus, lines_of
from saffu.text.tokenizer import Tokenizer
from saffu.tools.evaluate import evaluate

DIMENSIONS = {"block_dimension": [16], "radius_dimension": [12], "hidden_dimension": [32]}


@pytest.fixture(scope="module")
def text() -> GridCorpus:
    train, dev = sentences(1, 300), sentences(2, 60)
    tokenizer = Tokenizer.train(train)
    corpora = [TokenCorpus.build(lines_of(documents), tokenizer) for documents in (train, dev)]
    return GridCorpus.build(*corpora, tokenizer, eval_tokens=1000)


def small(blocks=(2, 8), radii=(2, 4), modes=MODES, document_shards=5, **settings):
    return grid(blocks, radii, modes, document_shards, DIMENSIONS | settings)


def fitted_whole(config: PaperConfig, text: GridCorpus) -> dict[str, float]:
    """Perplexities and size of the model fitted in one piece."""
    *_, stage = fit(text.train, text.vocabulary, config)
    scores = {name: evaluate(stage.model, corpus).perplexity for name, corpus in text.samples.items()}
    return scores | {"parameters": stage.model.size}


def assert_equal_to_whole_fits(cells: list[Cell], text: GridCorpus) -> None:
    for cell in cells:
        expected = fitted_whole(cell.config, text)
        assert cell.train.perplexity == pytest.approx(expected["train"], rel=3e-6)
        assert cell.dev.perplexity == pytest.approx(expected["dev"], rel=3e-6)
        assert cell.parameters == expected["parameters"]


def test_every_cell_equals_a_model_fitted_whole(text, tmp_path):
    cells = run_grid(tmp_path, small(), text)
    assert len(cells) == 4 * 4 + 4
    assert len({round(cell.dev.nll, 6) for cell in cells}) == len(cells)
    assert_equal_to_whole_fits(cells, text)


@each(
    "settings",
    [
        {"attention": ["uniform"]},
        {"tune_folds": [2], "fold_tokens": [700]},
        {"attention_priming": ["slots", "measured"], "decoder_priming": ["measured"], "document_shards": 0},
        {"variation_sign": [-1], "variation_shift": ["smallest"], "document_shards": 0},
        {"smoothing": [1e-6, 1.0], "hidden_targets": ["normalized"]},
        {"radius_dimension": [12, 20], "block_dimension": [16, 24], "document_shards": 0},
        {"block_advance": ["whole", "shifted"], "pad_side": ["left", "right"]},
    ],
)
def test_sweeps_equal_models_fitted_whole(text, tmp_path, settings):
    cells = run_grid(tmp_path, small([4, 6], [3], ["sum/cat"], **{"document_shards": 5, **settings}), text)
    assert_equal_to_whole_fits(cells, text)


def test_results_do_not_depend_on_the_batches(text, tmp_path):
    chosen = small(radii=[4])
    whole = run_grid(tmp_path / "a", chosen, text)
    tiny = run_grid(tmp_path / "b", chosen, text, memory_limit=800 * 10**6)
    sizes = [scoring.batch_sizes(units_of(chosen), text.vocabulary, memory, 1024) for memory in (10**7, MEMORY_LIMIT)]
    assert sizes[0] < sizes[1]
    for one, other in zip(whole, tiny, strict=True):
        assert one.dev.nll == pytest.approx(other.dev.nll, rel=1e-7)


def test_the_units_of_the_papers_grid():
    cells = grid()
    assert len(cells) == 245
    names = [unit.name for unit in units_of(cells)]
    assert (names.count("block"), names.count("radius"), names.count("document")) == (14, 14, 1)


def test_units_are_fitted_once(text, tmp_path, monkeypatch):
    fitted = count_calls(monkeypatch, FittedUnits, "fit")
    run_grid(tmp_path, small(), text)
    assert len(fitted) == 1 + 1 + 2 + 4  # the document model with a sum block; the other one; cat blocks; radii


def test_finished_cells_are_not_repeated(text, tmp_path, monkeypatch):
    before = run_grid(tmp_path, small(), text)
    lines = (tmp_path / "results.jsonl").read_text()
    fitted, computed = count_calls(monkeypatch, FittedUnits, "fit"), count_calls(monkeypatch, scoring, "outputs")
    (tmp_path / ".text.json.writing-0123456789ab").write_text("half")  # as a killed process leaves it
    (tmp_path / ".text.json.lock").touch()
    unit = next((tmp_path / "units").iterdir())
    unit.with_name(f".{unit.name}.lock").touch()
    assert run_grid(tmp_path, small(), text) == before
    assert not list(tmp_path.rglob(".*"))
    assert (fitted, computed) == ([], [])
    after = run_grid(tmp_path, small(radii=[2, 4, 3]), text)
    assert len(after) == len(before) * 3 // 2
    assert [unit.config.radius for _, unit in fitted] == [3] * 2
    assert (tmp_path / "results.jsonl").read_text().startswith(lines)


def test_an_interrupted_grid_continues(text, tmp_path, monkeypatch):
    expected = run_grid(tmp_path / "whole", small(), text)
    monkeypatch.setitem(scoring.BATCH, "cpu", 128)
    monkeypatch.setattr(scoring, "batch_sizes", lambda *_: (256, 64))
    folder, fitted = tmp_path / "cut", count_calls(monkeypatch, FittedUnits, "fit")

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as context:
        context.setattr(FittedUnits, "fit", fails_at(3, FittedUnits.fit))
        run_grid(folder, small(), text)
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as context:
        context.setattr(Results, "save_unfinished", fails_at(3, Results.save_unfinished))
        run_grid(folder, small(), text)
    assert not (folder / "results.jsonl").exists()
    stretches = sum(-(-corpus.targets // 256) for corpus in text.samples.values())
    computed = count_calls(monkeypatch, scoring, "outputs")
    cells = run_grid(folder, small(), text)
    assert len(computed) == (stretches - 2) * len(units_of(small()))  # two stretches were saved
    assert len(fitted) == 8  # none was fitted twice
    assert not (folder / "unfinished.json").exists()
    for cell, other in zip(cells, expected, strict=True):
        assert (cell.config, cell.dev.nll) == (other.config, pytest.approx(other.dev.nll, rel=1e-7))


def test_damaged_lines_are_reported_and_repeated(text, tmp_path):
    before = run_grid(tmp_path, small(), text)
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    facts = json.loads(lines[3])
    damaged = lines.copy()
    damaged[3] = lines[3].replace(str(facts["dev_nll"]), str(facts["dev_nll"] + 1))  # still JSON, but not as written
    damaged[5] = "\x00garbage\n"
    damaged[-1] = lines[-1][:40]  # cut short by a kill
    path.write_text("".join(damaged))
    results = Results(tmp_path)
    assert results.damaged == [4, 6, len(lines)]
    assert f"damaged at line 4, 6, {len(lines)}" in results.damage
    after = run_grid(tmp_path, small(), text)
    assert [c.config for c in after] == [c.config for c in before]
    kept = [line for n, line in enumerate(lines) if n not in (3, 5, len(lines) - 1)]
    assert path.read_text().startswith("".join(kept))
    assert len(path.read_text().splitlines()) == len(lines)
    for cell, other in zip(after, before, strict=True):
        assert cell.dev.nll == pytest.approx(other.dev.nll, rel=1e-7)


def test_a_damaged_unit_is_fitted_again(text, tmp_path, monkeypatch):
    chosen = small(modes=["sum/cat"], document_shards=0)
    run_grid(tmp_path, chosen, text)
    victim = sorted((tmp_path / "units").glob("radius-*"))[0]
    victim.write_bytes(victim.read_bytes()[:1000])
    (tmp_path / "results.jsonl").unlink()
    fitted = count_calls(monkeypatch, FittedUnits, "fit")
    run_grid(tmp_path, chosen, text)
    assert len(fitted) == 1


def test_another_text_is_rejected(text, tmp_path):
    chosen = small([2], [2], ["sum/cat"], 0)
    run_grid(tmp_path, chosen, text)
    with pytest.raises(SaffuError, match="different text"):
        run_grid(tmp_path, chosen, replace(text, fingerprint="0" * 24))


def test_two_ablations_cannot_share_a_folder_at_once(text, tmp_path, monkeypatch):
    """While one run is fitting, a second one of another text in the same folder fails, and the first is unharmed."""
    chosen, errors = small([2], [2], ["sum/cat"], 0), []
    usual = FittedUnits.fit

    def other_run():
        try:
            run_grid(tmp_path, chosen, replace(text, fingerprint="0" * 24))
        except SaffuError as error:
            errors.append(str(error))

    def fit_meanwhile(self, unit):
        if not errors:
            other = threading.Thread(target=other_run)
            other.start()
            other.join()
        usual(self, unit)

    monkeypatch.setattr(FittedUnits, "fit", fit_meanwhile)
    (cell,) = run_grid(tmp_path, chosen, text)
    assert len(errors) == 1 and "another saffu process is writing" in errors[0]
    assert list(Results(tmp_path).cells.values()) == [cell]


def test_other_held_out_text_needs_no_new_fits(text, tmp_path, monkeypatch):
    chosen = small([2], [2], ["sum/cat"], 0)
    run_grid(tmp_path, chosen, text)
    samples = text.samples | {"dev": text.samples["dev"].every_nth(2)}
    (tmp_path / "text.json").unlink()
    (tmp_path / "results.jsonl").unlink()
    fitted = count_calls(monkeypatch, FittedUnits, "fit")
    (cell,) = run_grid(tmp_path, chosen, replace(text, samples=samples, fingerprint="0" * 24))
    assert (fitted, cell.dev.targets) == ([], samples["dev"].targets)


def test_cells_of_different_texts_never_mix(text, tmp_path):
    chosen = small([2], [2], ["sum/cat"], 0)
    (cell,) = run_grid(tmp_path, chosen, text)
    (tmp_path / "text.json").unlink()  # now only the lines themselves say which text they belong to
    with pytest.raises(SaffuError, match="different text"):
        run_grid(tmp_path, chosen, replace(text, fingerprint="0" * 24))
    assert run_grid(tmp_path, chosen, text) == [cell]


def test_a_unit_that_cannot_be_solved_fails_only_its_cells(text, tmp_path, monkeypatch):
    usual = FittedUnits.fit

    def unsolvable(self, unit):
        if unit.config.block == 8:
            raise SaffuError("V outgrew its bound")
        usual(self, unit)

    monkeypatch.setattr(FittedUnits, "fit", unsolvable)
    cells = run_grid(tmp_path, small(modes=["sum/cat"], document_shards=0), text)
    assert [cell.failure for cell in cells] == [None, "V outgrew its bound"] * 2
    assert [cell.dev is None for cell in Results(tmp_path).cells.values()].count(True) == 2


def test_least_attention_is_the_smallest_count(text, tmp_path):
    (cell,) = run_grid(tmp_path, small([4], [3], ["sum/cat"], 0), text)
    (stage,) = fit(text.train, text.vocabulary, cell.config)
    assert cell.least_attention == pytest.approx(min(stage.facts["least_attention"].values()))


@each(
    "arguments, message",
    [
        ({"blocks": [1]}, "`blocks` must be at least 2, got 1"),
        ({"radii": [4, 0]}, "`radii` must be at least 2, got 0"),
        ({"modes": ["sum/mean"]}, "unknown `modes` 'sum/mean'"),
        ({"document_shards": 1}, "`document_shards` is 1"),
        ({"settings": {"smoothing": [0.0]}}, r"`smoothing` is 0\.0"),
        ({"settings": {"seed": [1]}}, "cannot sweep `seed`"),
        ({"blocks": []}, "`blocks` is empty"),
    ],
)
def test_invalid_grids(arguments, message):
    with pytest.raises(SaffuError, match=message):
        grid(**arguments)


def test_memory_is_checked_up_front():
    require_memory(grid(), 3837, MEMORY_LIMIT)
    message = r"needs about \d\.\d GB for its .*block of 128, but `memory_limit` is 1\.0 GB"
    with pytest.raises(SaffuError, match=message):
        require_memory(grid(), 3837, 10**9)


def test_held_out_text_must_differ(text):
    copy = TokenCorpus(text.train.ids.copy(), text.train.starts.copy(), text.train.sizes.copy())
    with pytest.raises(SaffuError, match="is the training text"):
        GridCorpus.build(copy, text.train, Tokenizer.train(["a"]))


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
