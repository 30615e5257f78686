"""ARPA files: KenLM, and a plain reader of the format, give the probabilities of Kneser–Ney."""

import math

import numpy as np
import pytest

from conftest import sentences
from saffu import CalibratedConfig, SaffuError, SaffuLM, Tokenizer
from saffu.calibrated.kneser_ney import KneserNey
from saffu.calibrated.ngrams import NgramCounts
from saffu.tools.arpa import bisect, token_names, write_arpa

NEW = ["the small dog saw the sea .", "a zebra !", "the", "and went home . the the king", "x"]


def read_arpa(path):
    """Probabilities and backoffs by n-gram; the header's counts are checked."""
    listed, section, header = {}, 0, {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("ngram "):
            n, size = line.removeprefix("ngram ").split("=")
            header[int(n)] = int(size)
        elif line.endswith("-grams:"):
            section = int(line[1])
        elif "\t" in line:
            p, ngram, *backoff = line.split("\t")
            words = tuple(ngram.split(" "))
            assert len(words) == section and words not in listed
            listed[words] = float(p), float(backoff[0]) if backoff else 0.0
    assert header == {n: sum(len(words) == n for words in listed) for n in header}
    assert path.read_text("utf-8").endswith("\n\\end\\\n")
    return listed


def log10(listed, context, word, order):
    """The definition of the format."""
    context = tuple(context)[max(0, len(context) - order + 1) :]
    if (*context, word) in listed:
        return listed[(*context, word)][0]
    return listed.get(context, (0, 0.0))[1] + log10(listed, context[1:], word, order)


def names_of(tokenizer, line):
    return [token_names(tokenizer)[token] for token in tokenizer.encode(line)]


@pytest.fixture(scope="module", params=["line", "file"])
def text(request):
    """Lines as documents, and as running text, whose n-grams across lines are left out."""
    return (
        sentences(1, 600) if request.param == "line" else ["\n".join(sentences(5, 300)), "\n".join(sentences(6, 300))]
    )


@pytest.fixture(scope="module")
def model(text):
    return SaffuLM(CalibratedConfig(order=6, slots=2, word_classes=20, output_classes=8, cache=0)).fit(text)


@pytest.mark.parametrize("order", [2, 3, 6])
def test_the_format_gives_the_probabilities_of_kneser_ney(model, tmp_path, order):
    path = tmp_path / "deep" / "model.arpa"
    sizes = write_arpa(model.references_, model.tokenizer_, path, order)
    listed = read_arpa(path)
    assert len(sizes) == order and sizes[0] == len(model.tokenizer_) - 3 + 2
    assert listed[("<s>",)][0] == listed[("<unk>",)][0] == -99
    expected = KneserNey(model.references_, order).log_probabilities(model.tokenize(NEW)) / math.log(10)
    found = []
    for line in NEW:
        words = ["<s>", *names_of(model.tokenizer_, line), "</s>"]
        found += [log10(listed, words[:at], words[at], order) for at in range(1, len(words))]
    assert found == pytest.approx(expected.tolist(), abs=1e-5)
    assert [entry.name for entry in path.parent.iterdir()] == ["model.arpa"]


@pytest.mark.parametrize("prune", [0, 2])
def test_kenlm(model, tmp_path, prune):
    kenlm = pytest.importorskip("kenlm", reason="pip install kenlm, which needs a compiler")
    write_arpa(model.references_, model.tokenizer_, tmp_path / "model.arpa", prune=prune)
    loaded = kenlm.Model(str(tmp_path / "model.arpa"))
    assert loaded.order == 6
    listed = read_arpa(tmp_path / "model.arpa")
    for line in NEW:
        words = names_of(model.tokenizer_, line)
        scores = [score for score, _, unknown in loaded.full_scores(" ".join(words)) if not unknown]
        sentence = ["<s>", *words, "</s>"]
        assert scores == pytest.approx(
            [log10(listed, sentence[:at], sentence[at], 6) for at in range(1, len(sentence))], abs=1e-5
        )
        if not prune:
            expected = KneserNey(model.references_).log_probabilities(model.tokenize([line])) / math.log(10)
            assert scores == pytest.approx(expected.tolist(), abs=1e-5)


def test_pruned_models_are_smaller_and_add_up_to_1(model, tmp_path):
    whole = write_arpa(model.references_, model.tokenizer_, tmp_path / "whole.arpa", 4)
    pruned = write_arpa(model.references_, model.tokenizer_, tmp_path / "pruned.arpa", 4, prune=9)
    assert pruned[:2] == whole[:2] and pruned[2] < whole[2] and pruned[3] < whole[3]
    listed = read_arpa(tmp_path / "pruned.arpa")
    assert all(words[:-1] in listed for words in listed if len(words) > 1)  # which readers rely on
    vocabulary = [words[0] for words in listed if len(words) == 1 and words[0] not in ("<s>", "<unk>")]
    for context in (["<s>"], ["<s>", "the"], *(["<s>", *names_of(model.tokenizer_, line)] for line in NEW[:2])):
        total = sum(10 ** log10(listed, context, word, 4) for word in vocabulary)
        assert total == pytest.approx(1, abs=1e-5)


def test_names_have_no_white_space_and_are_not_reserved():
    tokenizer = Tokenizer.from_merges([("<", "s"), ("<s", ">"), ("Ġ", "a")])
    names = token_names(tokenizer)
    assert len(set(names[3:])) == len(names) - 3 and not any(c.isspace() for name in names for c in name)
    assert "‹s>" in names and "<s>" not in names and "Ġa" in names


def test_what_a_killed_writer_left_is_removed(model, tmp_path):
    (tmp_path / ".a.writing-0123456789ab").write_text("half")
    write_arpa(model.references_, model.tokenizer_, tmp_path / "a", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_misuse(model, fitted, tmp_path):
    for order in (1, 7):
        with pytest.raises(SaffuError, match="from 2 to 6"):
            write_arpa(model.references_, model.tokenizer_, tmp_path / "a", order)
    with pytest.raises(SaffuError, match="no n-gram counts"):
        write_arpa(None, model.tokenizer_, tmp_path / "a")
    short = NgramCounts.count(model.tokenize(NEW), 3, len(model.tokenizer_))
    assert len(write_arpa(short, model.tokenizer_, tmp_path / "a")) == 3


def test_bisect_finds_values_within_ranges():
    rng = np.random.default_rng(1)
    rows = [np.unique(rng.integers(0, 30, size)) for size in (0, 1, 5, 20)]
    values, ends = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
    for row, low, high in zip(rows, ends[:-1], ends[1:], strict=True):
        wanted = np.arange(30)
        found = bisect(values, np.full(30, low), np.full(30, high), wanted)
        assert [low <= place < high and values[place] == w for place, w in zip(found, wanted, strict=True)] == [
            w in row for w in wanted
        ]
