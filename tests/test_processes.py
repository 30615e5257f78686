"""Several processes against one: the same counts, the same model; and a process that dies."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import saffu
from conftest import SMALL, sentences
from saffu import SaffuConfig, SaffuLM, Tokenizer, TrainingConfig
from saffu.corpus import TokenCorpus
from saffu.distributed import ALONE, Ranks

KINDS = {
    "tuned": replace(SMALL, documents=3, tune=2, fold=1500, counting="float64"),
    "straight": replace(SMALL, hidden_dimension=0, radius_mode="sum", counting="float64"),
    "calibrated": SaffuConfig.preset("calibrated", radius=6, memory=4, classes=20),
    "slots": SaffuConfig.preset("calibrated", radius=3, memory=2, classes=0),
}
PROCESSES = os.environ.get("SAFFU_PROCESSES", "2")
TRAINING = TrainingConfig(batch=100, max_folds=2, dropout=0.0)
LIMIT = 4_000  # tokens, reached within a document that another process tokenises

WORKER = """
import sys
from pathlib import Path
from test_distributed import KINDS, LIMIT, SMALL, TRAINING
from conftest import sentences
from saffu import SaffuLM, distributed
from saffu.train import Backprop

out = Path(sys.argv[1])
distributed.DOCUMENTS = 30
with distributed.together("cpu") as ranks:
    tokenizer = ranks.train_tokenizer(sentences(1, 250), SMALL.words, SMALL.kept_words, SMALL.count_by)
    (scratch := out / f"scratch{ranks.rank}").mkdir()
    corpus = ranks.build_corpus(sentences(1, 250), tokenizer, scratch, LIMIT, "tokenise")
    for name, config in KINDS.items():
        lm = SaffuLM(config, tokenizer=tokenizer).fit(corpus, ranks=ranks)
        if ranks.is_first:
            lm.save(out / name)
    lm = SaffuLM(SMALL, tokenizer=tokenizer).fit(corpus, training=TRAINING, ranks=ranks)
    Backprop(lm, corpus, lm.tokenize(sentences(2, 40)), TRAINING, ranks=ranks).run(out / "trained")
"""


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What several processes made of the text, started as `torchrun` starts them."""
    out = tmp_path_factory.mktemp("together")
    (out / "worker.py").write_text(WORKER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", PROCESSES]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, out / "worker.py", out], check=True, env=environment, timeout=300)
    return out


@pytest.fixture(scope="module")
def corpus(together):
    tokenizer = Tokenizer.train(sentences(1, 250))
    return TokenCorpus.build(sentences(1, 250), tokenizer, limit=LIMIT), tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_model_as_of_one_process(together, corpus, kind):
    found, alone = saffu.load(together / kind), SaffuLM(KINDS[kind], tokenizer=corpus[1]).fit(corpus[0])
    assert found.tokenizer_.to_json() == corpus[1].to_json()
    assert found.trained_on_ == alone.trained_on_
    for layer, counts in alone.counts_.items():
        torch.testing.assert_close(found.counts_[layer].F, counts.F, rtol=1e-9, atol=1e-9)
        assert found.counts_[layer].targets == counts.targets
    torch.testing.assert_close(found.network_.state_dict(), alone.network_.state_dict(), rtol=1e-6, atol=1e-6)
    assert np.array_equal(found.references_.keys, alone.references_.keys)
    assert np.array_equal(found.references_.counts, alone.references_.counts)
    if alone.ledger_ is not None:
        assert len(found.ledger_.counted(corpus[0])) == found.ledger_.documents == corpus[0].documents


def test_backpropagation_takes_the_same_steps(together, corpus):
    """Without dropout; each batch falls into parts, one for each process."""
    found, alone = saffu.load(together / "trained"), SaffuLM(SMALL, tokenizer=corpus[1])
    alone.fit(corpus[0], training=TRAINING).backprop(corpus[0], sentences(2, 40), TRAINING)
    start = SaffuLM(SMALL, tokenizer=corpus[1]).fit(corpus[0])
    for name, weight in alone.network_.named_parameters():
        moved = (weight - dict(start.network_.named_parameters())[name]).abs().max()
        assert (weight - found.network_.get_parameter(name)).abs().max() < 1e-3 * moved, name
    ours, theirs = ([row for row in lm.log_ if "fold" in row] for lm in (alone, found))
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for key in ("dev_perplexity", "train_perplexity"):
        assert ours[-1][key] == pytest.approx(theirs[-1][key], rel=1e-5)


def test_shares_are_whole_documents_and_all_of_them(corpus):
    assert ALONE.share(corpus[0]).documents == corpus[0].documents
    for size in (2, 5, 700):  # also more processes than documents
        shares = [Ranks(rank, size).share(corpus[0]) for rank in range(size)]
        assert torch.equal(torch.cat([share.ids for share in shares]), corpus[0].ids)
        assert all(share.targets == share.starts[-1] for share in shares)
        firsts = [share.first_document for share in shares if share.documents]
        assert firsts == sorted(set(firsts))


def test_a_process_that_dies_ends_the_run(tmp_path):
    """The other one says so, with status 2, and leaves what was saved before, whole."""
    (tmp_path / "train.txt").write_text("\n".join(sentences(1, 120)))
    small = "--block 8 --radius 2 --block-dimension 12 --radius-dimension 12 --hidden-dimension 16 --fold 500"
    line = f"train train.txt --out model --preset paper --tune 1000000 {small}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "saffu", *line.split()],
            env={**environment, "RANK": rank, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in "01"
    ]
    shown = ""
    while "tune 2" not in shown:
        shown = ranks[0].stdout.readline()
    ranks[1].send_signal(signal.SIGKILL)
    _, errors = ranks[0].communicate(timeout=120)
    ranks[1].communicate()
    assert ranks[0].returncode == 2
    (message,) = [line for line in errors.splitlines() if line.startswith("saffu: ")]
    assert "another process of this run has ended" in message
    assert saffu.load(tmp_path / "model").log_[2]["stage"] == "tune 2"
    assert [path.name for path in tmp_path.glob(".*")] == []
