"""Vectors: where they come from in the model, words of several tokens, neighbours."""

import json
from dataclasses import replace

import numpy as np
import pytest

from conftest import SMALL
from saffu import SaffuConfig, SaffuError, SaffuLM
from saffu.cli import main


@pytest.fixture(scope="module")
def calibrated(train_text):
    return SaffuLM(SaffuConfig.preset("calibrated", classes=20)).fit(train_text)


def test_kin_are_neighbours(calibrated):
    vectors = calibrated.embeddings_
    assert vectors.kinds == ["context"]
    assert vectors.neighbours("dog", 1)[0][0] in {" cat", " girl", " king"}
    assert vectors.similarity("dog", "cat") > vectors.similarity("dog", "saw")
    assert vectors.similarity("dog", "dog") == pytest.approx(1, abs=1e-5)


def test_slots_only(train_text):
    lm = SaffuLM(SaffuConfig.preset("calibrated", memory=0)).fit(train_text)
    assert lm.embeddings_.vectors.shape[0] == len(lm.tokenizer_)
    assert lm.embeddings_.neighbours("dog", 1)[0][0] in {" cat", " girl", " king"}


def test_kinds_of_a_network(small_lm):
    network, vectors = small_lm.network_, small_lm.embeddings_
    state = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    assert vectors.kinds == ["decoder", "block.U", "radius.U", "block.E", "radius.E"]
    assert np.array_equal(vectors.vectors, state["M"].T)
    assert np.array_equal(vectors.of("radius.E").vectors, state["units.radius.E"])
    block = state["units.block.E"] @ state["units.block.U"]
    assert np.allclose(vectors.of("block.U").vectors, block, atol=1e-5)
    nearest = state["units.radius.E"] @ state["units.radius.U"][-12:]
    assert np.allclose(vectors.of("radius.U").vectors, nearest, atol=1e-5)
    with pytest.raises(SaffuError, match="choose one of decoder"):
        vectors.of("soul")


def test_without_hidden_bits(train_text):
    lm = SaffuLM(replace(SMALL, hidden_dimension=0)).fit(train_text, references=False)
    U = [lm.network_.units[name].U.detach().numpy().T for name in ("block", "radius")]
    assert np.array_equal(lm.embeddings_.vectors, np.concatenate(U, axis=1))


def test_words_of_several_tokens_are_their_mean(calibrated):
    vectors, tokenizer = calibrated.embeddings_, calibrated.tokenizer_
    ids = vectors.tokens("xylophone")
    assert len(ids) > 1
    assert np.allclose(vectors["xylophone"], vectors.vectors[ids].mean(0))
    assert vectors.tokens("dog") == tokenizer.encode(" dog")
    (dog,) = vectors.tokens("dog")
    assert np.array_equal(vectors["dog"], vectors.vectors[dog])
    with pytest.raises(SaffuError, match="empty"):
        vectors["  "]


def test_neighbours_by_plain_loops(small_lm):
    vectors = small_lm.embeddings_
    f, rows = small_lm.frequencies_.numpy(), vectors.vectors.astype(np.float64)
    rows = rows - (f / f.sum()) @ rows
    (dog,) = vectors.tokens(".")
    cosines = {
        token: float(rows[dog] @ rows[token] / np.linalg.norm(rows[dog]) / np.linalg.norm(rows[token]))
        for token in range(4, len(rows))
        if f[token] > 0 and token != dog
    }
    expected = sorted(cosines, key=lambda token: -cosines[token])[:5]
    found = vectors.neighbours(".", 5)
    assert [token for token, _ in found] == [small_lm.tokenizer_.token(token) for token in expected]
    assert [cosine for _, cosine in found] == pytest.approx([cosines[token] for token in expected], abs=1e-4)


def test_the_verb(calibrated, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibrated.save("model")

    def run(*arguments):
        with pytest.raises(SystemExit) as exit:
            main(["embed", "model", *arguments])
        captured = capsys.readouterr()
        return exit.value.code, captured.out, captured.err

    status, out, err = run("dog", "xylophone", "dog saw", "--top", "3")
    assert status == 0
    assert len(out.splitlines()) == 12
    assert err.splitlines() == [
        "saffu: 'xylophone' does not occur in what the model has counted; its vector tells little",
        "saffu: 'dog▁saw' is no token of this model; its vector is the mean of its 2 pieces",
    ]
    facts = json.loads(run("dog", "--json")[1])
    assert facts["words"][0]["vector"] == pytest.approx(calibrated.embeddings_["dog"].tolist(), abs=1e-5)
    assert run("--out", "all.txt")[0] == 0
    lines = (tmp_path / "all.txt").read_text("utf-8").split("\n")[:-1]
    count, size = map(int, lines[0].split(" "))
    assert (count, size) == calibrated.embeddings_.vectors.shape
    assert len(lines) == count + 1
    assert all(len(line.split(" ")) == size + 1 for line in lines[1:])
    assert "▁dog" in {line.split(" ")[0] for line in lines}
    for bad in ([], [""], ["dog", "--kind", "soul"], ["dog", "--top", "0"], ["dog", "--out", "model"]):
        status, out, err = run(*bad)
        assert (status, out) == (2, "")
        assert len(err.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.txt", "model"]
