"""Models that change: update, forget, and merge against counting the same documents at once with the same encoder."""

import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import saffu as package
from conftest import CONFIGS, corpus_of, part, sentences
from saffu import SaffuError, SaffuLM, TokenizerConfig, TrainingConfig
from saffu.commit import changing
from saffu.model import living
from saffu.model.checking import check_model
from saffu.model.ledger import Ledger, Page, Tally
from saffu.model.matching import Matches
from saffu.tools.generate import uncounted
from toy_model import ToyConfig

SHARDS = [sentences(1, 200), [*sentences(3, 60), "the zyx quaffed wvut ."], sentences(4, 40)]
KINDS = {
    "toy": CONFIGS["toy"],
    "calibrated": CONFIGS["calibrated"],
    "slots": lambda: replace(CONFIGS["calibrated"](), order=2, word_classes=0),
}


@pytest.fixture(scope="module", params=KINDS)
def base(request):
    """A model of each kind, fitted to the first shard; tests take copies."""
    return SaffuLM(KINDS[request.param]()).fit(SHARDS[0])


@pytest.fixture
def lm(base, tmp_path):
    """The same, saved and loaded."""
    base.save(tmp_path / "base")
    return package.load(tmp_path / "base")


def recounted(encoder, *shards):
    return SaffuLM(encoder=encoder).fit([text for shard in shards for text in shard])


def everything(lm):
    """All that depends on the documents, as bytes: the model, its sums, baselines, and facts."""
    parts = {"model": lm.model_.arrays(), "sums": lm.model_.sums.arrays(), "statistics": lm.statistics_.arrays()}
    stored = {f"{part}.{name}": array.tobytes() for part, arrays in parts.items() for name, array in arrays.items()}
    return stored | {"trained_on": lm.trained_on_, "documents": lm.ledger_.documents}


# Equality


def test_an_encoder_gives_its_own_decoder_again(lm):
    assert everything(recounted(lm, SHARDS[0])) == everything(lm)
    assert not living.difference(lm, recounted(lm, SHARDS[1]))
    assert living.fingerprints(lm) == living.fingerprints(recounted(lm, SHARDS[1]))


def test_update_then_forget_restores_every_bit(lm, tmp_path):
    before = everything(lm)
    lm.update(SHARDS[1])
    assert everything(lm) != before
    assert everything(lm) == everything(recounted(lm, SHARDS[0], SHARDS[1]))
    lm.forget(SHARDS[1])
    assert everything(lm) == before
    lm.save(tmp_path / "again")
    for name in ("model", "sums", "references", "ledger"):  # the ledger too: its salt is the same
        file = f"{name}.safetensors"
        assert part(tmp_path / "again", file).name == part(tmp_path / "base", file).name, file


def test_forgetting_in_other_portions_and_another_order(lm, base):
    lm.update(SHARDS[1]).update(SHARDS[2])
    assert everything(lm) == everything(recounted(lm, *SHARDS))
    assert lm.forget(SHARDS[2][::-1][:25]) == 25
    assert lm.forget([*SHARDS[2][::-1][25:], *SHARDS[1][30:]]) == 15 + 31
    lm.forget(SHARDS[1][:30])
    assert everything(lm) == everything(base)
    assert lm.ledger_.documents == 200
    assert [row["stage"] for row in lm.log_[1:]] == ["update", "update", "forget", "forget", "forget"]


def test_merged_shards_equal_one_fit(lm, base, tmp_path):
    """Three models fitted separately, saved, and loaded; then the encoder's own text is forgotten."""
    for number, shard in enumerate(SHARDS[1:]):
        recounted(lm, shard).save(tmp_path / str(number))
    one, other = (package.load(tmp_path / str(number)) for number in range(2))
    merged = other.merge(lm, one)
    assert everything(merged) == everything(recounted(lm, *SHARDS))
    assert merged.ledger_.documents == 301
    merged.forget(SHARDS[0])
    assert everything(merged) == everything(recounted(lm, SHARDS[1], SHARDS[2]))
    assert everything(lm) == everything(base), "merging changed what was merged"


def test_a_rare_string_is_unknown_again(lm, tmp_path):
    """Every file equals that of a model which never saw the document, and no file contains it."""
    secret = SHARDS[1][-1]
    never = recounted(lm, SHARDS[0], SHARDS[1][:-1])
    lm.update(SHARDS[1])
    assert lm.perplexity([secret]) < never.perplexity([secret])
    lm.forget([secret])
    assert lm.perplexity([secret]) == never.perplexity([secret])
    assert everything(lm) == everything(never)
    lm.save(tmp_path / "forgot")
    never.save(tmp_path / "never")
    for path in (tmp_path / "forgot").iterdir():
        assert b"quaff" not in path.read_bytes()
    for name in ("model.safetensors", "sums.safetensors", "references.safetensors", "tokenizer.json"):
        assert part(tmp_path / "forgot", name).name == part(tmp_path / "never", name).name, name
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_nothing_is_generated_that_is_no_longer_counted(lm):
    """Whatever the encoder was fitted to."""
    secret = "xyzzy xyzzy xyzzy plugh plugh"
    fresh = SaffuLM(lm.config).fit([*SHARDS[0], secret, secret])
    known = set(fresh.encode(f"{secret} {secret}"))
    fresh.forget([secret, secret])
    gone = known - set(fresh.encode("\n".join(SHARDS[0])))
    assert gone and gone <= set(uncounted(fresh.model_).tolist())
    assert "xyz" not in "".join(fresh.complete_word("x", 50)) + fresh.generate("xy", top_k=0, seed=1, max_tokens=30)


def test_samples_from_before_are_not_kept(lm):
    assert "sample" in lm.log_[0]
    lm.forget(SHARDS[0][:1])
    assert not any("sample" in row for row in lm.log_)


def test_nothing_of_held_out_text_remains_after_forgetting(saffu, tmp_path):
    """A hash of the lengths of all held-out lines would confirm a guess of those that are forgotten."""
    texts = sentences(5, 200)
    (tmp_path / "all.txt").write_text("\n".join(texts))
    (tmp_path / "some.txt").write_text("\n".join(texts[:40]))
    assert saffu(f"train {tmp_path / 'all.txt'} --split line --out {tmp_path / 'm'} --order 3 --slots 1").status == 0
    before = json.loads((tmp_path / "m" / "config.json").read_text())["source"]
    assert saffu(f"forget {tmp_path / 'm'} {tmp_path / 'some.txt'}").status == 0
    assert before["dev"] not in "".join(path.read_text() for path in (tmp_path / "m").glob("*.json*"))
    after = json.loads((tmp_path / "m" / "config.json").read_text())["source"]
    assert {**after, "dev": before["dev"]} == before


def test_documents_of_several_lines_are_forgotten_as_a_whole(lm):
    before = everything(lm)
    document = "\n".join(SHARDS[1][:3])
    lm.update([document])
    with pytest.raises(SaffuError, match="this document is not in the model; 0 of its 4 lines match"):
        lm.forget([document + "\nand more"])
    assert lm.trained_on_["lines"] == 203
    assert lm.forget([document]) == 1
    assert everything(lm) == before


# The ledger

documents = st.lists(st.integers(0, 5), max_size=8)


def corpus(numbers):
    """A corpus of documents that consist of one number each."""
    return corpus_of([[number + 4] for number in numbers])


@settings(max_examples=60, deadline=None)
@given(documents, documents, documents, st.booleans())
def test_a_ledger_is_a_multiset(one, other, removed, merged):
    ledger = Ledger.of(corpus(one)) + Ledger.of(corpus(other))
    if not merged:
        ledger = Ledger.of(corpus(one)).with_added(corpus(other))
    ledger = Ledger.from_arrays(ledger.arrays())
    held, requested = Counter(one + other), Counter(removed)
    assert ledger.documents == held.total()
    counted = ledger.counted(corpus(removed))
    assert Counter(removed[number] for number in counted) == held & requested
    matches = Matches.of(corpus(removed), ledger, every=0)
    if requested <= held:
        matches.require_exact() if removed else None
        _, left = matches.left()
        assert left.documents == held.total() - requested.total()
        assert len(left.counted(corpus(one + other))) == left.documents
    else:
        some = rf"{(requested - held).total()} of {len(removed)} documents"
        none = "none of these documents is" if len(removed) > 1 else "this document is not"
        with pytest.raises(SaffuError, match=some if requested & held else none):
            matches.require_exact()


def test_documents_have_one_hash_in_all_models():
    one, other = Ledger.of(corpus([1, 2])), Ledger.of(corpus([2, 2, 3]))
    hashes = [set(ledger.arrays()["0.hashes"].view("S16").ravel().tolist()) for ledger in (one, other)]
    assert len(hashes[0] & hashes[1]) == 1 and len(hashes[0] | hashes[1]) == 3
    assert one.shared_with(other) == 1
    assert one.shared_with(one.with_added(corpus([3]))) == 2
    wide = corpus_of([[5], [7]], np.int32)
    assert one.counted(wide).tolist() == [0]


def test_lines_belong_to_their_document():
    ledger = Ledger.of(corpus_of([[[5], [6]], [7]]))
    assert ledger.documents == 2
    assert ledger.counted(corpus_of([[5], [6], [7]])).tolist() == [2]
    assert ledger.counted(corpus_of([[[5], [6]]])).tolist() == [0]


@pytest.mark.parametrize("base", ["toy", "calibrated"], indirect=True)
def test_counted_twice_is_forgotten_twice_and_no_more(lm):
    fact = "the old king found a small sea ."
    lm.update([fact, fact])
    once = everything(recounted(lm, SHARDS[0], [fact]))
    lm.forget([fact])
    assert everything(lm) == once
    with pytest.raises(
        SaffuError, match=r"1 of 2 documents was never counted, .* document 2, “the old .+…”\); .* `skip"
    ):
        lm.forget([fact, fact])
    with pytest.raises(SaffuError, match=r"this document is not in the model; pass it as it was counted"):
        lm.forget(["the king is naked ."])
    assert everything(lm) == once
    assert lm.forget(["nothing of the kind", fact, fact], skip_uncounted=True) == 1
    assert lm.forget(["nothing of the kind", fact], skip_uncounted=True) == 0
    assert everything(lm) == everything(recounted(lm, SHARDS[0]))
    with pytest.raises(SaffuError, match="remove every document"):
        lm.forget(SHARDS[0])
    with pytest.raises(SaffuError, match="no text to count"):
        lm.update([])


def test_counts_below_zero_are_refused(lm):
    """Even if a ledger were wrong."""
    before = everything(lm)
    lm.ledger_ = lm.ledger_.with_added(lm.tokenize(["zzz zzz"]))
    with pytest.raises(SaffuError, match=r"(never|not) counted"):
        lm.forget(["zzz zzz"])
    _, lm.ledger_ = lm.ledger_.without(lm.tokenize(["zzz zzz"]), "counted")
    assert everything(lm) == before


# What cannot change or merge


def test_models_of_the_paper_do_not_change(train_text, dev_text, tmp_path):
    solved = SaffuLM(CONFIGS["paper"]()).fit(train_text)
    solved.save(tmp_path / "m")
    loaded = package.load(tmp_path / "m")
    trained = copy.copy(solved).backprop(train_text, dev_text, TrainingConfig(max_folds=1))
    for model in (solved, loaded, trained):
        before = {name: array.copy() for name, array in model.model_.arrays().items()}
        assert model.ledger_ is None
        for change in (
            lambda lm: lm.update(dev_text),
            lambda lm: lm.forget(train_text[:1]),
            lambda lm: lm.merge(lm),
            lambda lm: SaffuLM(encoder=lm).fit(dev_text),
        ):
            with pytest.raises(SaffuError, match="solved once"):
                change(model)
        assert all(np.array_equal(array, before[name]) for name, array in model.model_.arrays().items())


def test_threads_that_change_one_model_take_turns(monkeypatch):
    lm = package.SaffuLM(package.CalibratedConfig(order=2, slots=1, word_classes=0)).fit(["a b c", "b c d"])
    solved, entered = type(lm.model_).solved, threading.Barrier(2)

    def slow(model, sums):
        with suppress(threading.BrokenBarrierError):
            entered.wait(0.2)  # until the other thread has read the model too, if it may
        return solved(model, sums)

    monkeypatch.setattr(type(lm.model_), "solved", slow)
    threads = [threading.Thread(target=lm.update, args=([text],)) for text in ("c d e", "d e f")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lm.trained_on_["documents"] == lm.ledger_.documents == 4


def test_a_model_is_saved_as_it_was_at_one_time(monkeypatch, tmp_path):
    """Another thread may update it meanwhile."""
    lm = package.SaffuLM(package.CalibratedConfig(order=2, slots=1, word_classes=0)).fit(["a b c", "b c d"])
    usual = type(lm.config).to_dict
    threads = []

    def updated(config):  # which is called while a folder is written
        if not threads:
            threads.append(threading.Thread(target=lm.update, args=(["c d e"],)))
            threads[0].start()
            threads[0].join()
        return usual(config)

    monkeypatch.setattr(type(lm.config), "to_dict", updated)
    lm.save(tmp_path / "m")
    saved = package.load(tmp_path / "m", check=True)
    check_model(saved)
    assert (saved.trained_on_["documents"], lm.trained_on_["documents"]) == (2, 3)


def test_a_document_may_be_counted_more_than_two_billion_times():
    ledger = Ledger({b"s" * 16: Page(Tally.of(np.array([b"h" * 16], "S16"), np.array([2**31])))})
    again = Ledger.from_arrays(ledger.arrays())
    assert again.documents == 2**31 and (again + ledger).documents == 2**32


def test_a_model_without_a_ledger_cannot_change():
    plain = SaffuLM(ToyConfig()).fit(SHARDS[0])
    plain.ledger_ = None
    with pytest.raises(SaffuError, match="no ledger"):
        plain.update(SHARDS[1])


def test_only_models_of_one_encoder_merge():
    base = SaffuLM(ToyConfig()).fit(SHARDS[0])
    others = {
        "tokenizers differ": SaffuLM(ToyConfig()).fit(["quite another text, with other words"] * 9),
        "one is toy, the other counted": SaffuLM(tokenizer=base.tokenizer_).fit(SHARDS[0]),
        "smoothing is 4.0 in one and 5.0": SaffuLM(ToyConfig(smoothing=5.0), tokenizer=base.tokenizer_).fit(SHARDS[0]),
        "different text": SaffuLM(ToyConfig(), tokenizer=base.tokenizer_).fit(SHARDS[1]),
    }
    for reason, other in others.items():
        with pytest.raises(SaffuError, match=f"model 3 cannot be merged with the first: .*{reason}"):
            base.merge(recounted(base, SHARDS[2]), other)
        assert living.fingerprints(base) != living.fingerprints(other)


def test_merging_reports_documents_in_several_models(tmp_path):
    base = SaffuLM(ToyConfig()).fit(SHARDS[0])
    assert base.merge(copy.copy(base).update(SHARDS[1])).log_[-1]["shared"] == 200
    shared = (Counter(SHARDS[0]) & Counter(SHARDS[1])).total()
    assert shared and base.merge(recounted(base, SHARDS[1])).log_[-1]["shared"] == shared
    assert recounted(base, SHARDS[1]).merge(recounted(base, ["of no other"])).log_[-1]["shared"] == 0
    assert base.merge().trained_on_ == base.trained_on_


# The command


@pytest.fixture
def shards(saffu, monkeypatch, tmp_path):
    """`saffu` in a folder with three shards and a model of the first."""
    monkeypatch.chdir(tmp_path)
    for number, shard in enumerate(SHARDS):
        (tmp_path / f"{number}.txt").write_text("\n".join(shard) + "\n")
    result = saffu("train 0.txt --split line --hold-out 0 --word-classes 20 --out base")
    assert result.status == 0, result.err
    return saffu


def test_train_merge_forget_update_end_to_end(shards, tmp_path):
    for number in (1, 2):
        assert shards(f"train {number}.txt --split line --encoder base --hold-out 0 --out shard{number}").status == 0
    assert shards("merge base shard1 shard2 --out all").status == 0
    facts = json.loads(shards("forget all 0.txt --split line --json").out)
    assert (facts["removed"], facts["trained_on"]["documents"]) == (200, 101)
    assert shards("train 1.txt 2.txt --split line --encoder base --hold-out 0 --out rest").status == 0
    assert everything(package.load("all")) == everything(package.load("rest"))
    assert shards("update all 0.txt --split line").status == 0
    assert package.load("all").trained_on_["documents"] == 301
    (tmp_path / "twice.txt").write_text((tmp_path / "2.txt").read_text() * 2)
    held = 40 + len([text for text in SHARDS[0] + SHARDS[1] if text in SHARDS[2]])
    assert shards("forget all twice.txt --split line --skip-uncounted").status == 0
    assert package.load("all").trained_on_["documents"] == 301 - held
    shutil.copytree("base", "copy")
    assert "200 documents are in more than one" in shards("merge base copy --out twice").err
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_refusals_are_one_line_and_change_nothing(shards, tmp_path):
    shards("train 1.txt --split line --hold-out 0 --word-classes 20 --out foreign")
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "foreign.txt").write_text("never seen\nnor this\n")
    shutil.copytree("base", "damaged")
    part(tmp_path / "damaged", "ledger.safetensors").write_bytes(b"x")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for line, message in {
        "forget base foreign.txt --split line": "none of these documents",
        "forget base 1.txt --split line": " of 61 documents were never counted, ",
        "forget base 0.txt --split line": "remove every document",
        "forget nowhere 0.txt": "no model in nowhere",
        "update base nothing.txt": "no such file",
        "update base blank.txt": "the text is empty",
        "update damaged 1.txt": "damaged",
        "merge base foreign --out m": "tokenizers differ",
        "merge base foreign --out damaged": "not empty",
        "train 1.txt --encoder nowhere --out m": "no model in nowhere",
    }.items():
        result = shards(line)
        assert (result.status, result.out) == (2, ""), line
        assert message in result.err, line
        assert len(result.err.splitlines()) == 1, line
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, line


# Processes that are killed

SERVER = """
import os, signal, sys
import saffu.model.language_model, saffu.calibrated.model
from saffu.cli.main import main

OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "ctypes.dlopen", "fcntl.flock"}

def child(folder, when, *words):
    if os.fork():
        return
    operations = 0
    def count(event, _):
        nonlocal operations
        if event in OPERATIONS:
            operations += 1
            if operations == int(when):
                os.kill(os.getpid(), signal.SIGKILL)
    os.chdir(folder)
    sys.stderr = sys.stdout
    sys.addaudithook(count)
    try:
        main(words)
    except SystemExit as exit:
        print("operations", operations, flush=True)
        os._exit(exit.code)

for line in sys.stdin:
    folder, *commands = line.split("|")
    for command in commands:
        child(folder, *command.split())
    print("ended", *sorted(os.waitpid(-1, 0)[1] for _ in commands), flush=True)
"""


@pytest.fixture(scope="module")
def server():
    """Run commands in forked processes, several at once if need be, each killed at its nth file operation (0: never).

    Returns what they printed and, as the last line, "ended" and their exit statuses.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", SERVER], text=True, **pipes) as process:

        def run(folder, *commands):
            print(folder, *commands, sep="|", file=process.stdin, flush=True)
            lines = []
            while not (lines and lines[-1].startswith("ended")):
                lines.append(process.stdout.readline())
                assert lines[-1], "the server died"
            return lines

        yield run


@pytest.mark.slow
def test_one_writer_at_a_time(tmp_path, shards, server):
    with changing(tmp_path / "base", wait=False):
        with changing(tmp_path / "base", wait=False):  # the same thread may
            package.load("base").save("base")
        shutil.copytree("base", "copy")
        shutil.copytree("base", "other")
        for line in ("train 1.txt --out base --force", "merge copy other --out base --force"):
            lines = server(tmp_path, f"0 {line}")
            assert "another saffu process is writing to base" in lines[0]
            assert lines[-1] == f"ended {2 << 8}\n"
    assert server(tmp_path, *[f"0 update base {number}.txt --split line" for number in (1, 2)])[-1] == "ended 0 0\n"
    assert package.load("base").trained_on_["documents"] == 301
    assert everything(package.load("base")) == everything(recounted(package.load("base"), *SHARDS))


KILLS = int(os.environ.get("SAFFU_KILLS", "4"))  # for each command


@pytest.mark.slow
def test_killed_at_any_file_operation(server, shards, tmp_path):
    """The old model or the new one is there, whole; the next writer cleans up."""
    assert shards("train 1.txt --split line --encoder base --hold-out 0 --out other").status == 0
    shutil.copytree("other", "old")
    chance = random.Random(0)
    for line, changed in {
        "update base 1.txt --split line": "base",
        "forget base 2.txt --split line --skip-uncounted": "base",
        "merge base other --out old --force": "old",
        "merge base other --out all": "all",
    }.items():
        folder, kept = tmp_path / changed, tmp_path / "kept"
        if folder.exists():
            shutil.copytree(folder, kept)
        old = everything(package.load(folder)) if folder.exists() else None
        *_, operations, ended = server(tmp_path, f"0 {line}")
        assert ended == "ended 0\n"
        new = everything(package.load(folder))
        for _ in range(KILLS):
            shutil.rmtree(folder, ignore_errors=True)
            if kept.exists():
                shutil.copytree(kept, folder)
            moment = chance.randint(1, int(operations.split()[1]))
            assert server(tmp_path, f"{moment} {line}")[-1] == f"ended {signal.SIGKILL}\n"
            if old is not None or folder.exists():
                assert everything(package.load(folder)) in (old, new), (line, moment)
        assert server(tmp_path, f"0 {line} {'--force' if changed == 'all' else ''}")[-1] == "ended 0\n"
        shutil.rmtree(kept, ignore_errors=True)


def test_tokenizer_settings_travel(tmp_path):
    lm = SaffuLM(ToyConfig(), tokenizer=TokenizerConfig(bpe_kept_words=9)).fit(SHARDS[0])
    lm.save(tmp_path / "m")
    assert package.load(tmp_path / "m").tokenizer_settings_["bpe_kept_words"] == 9


def test_a_model_with_a_network_is_called_by_what_made_it(saffu, tmp_path):
    """Its preset has a name of its own, which nobody chooses."""
    golden = Path(__file__).parents[1] / "golden"
    refused = saffu(f"merge {golden / 'calibrated'} {golden / 'companion'} --out {tmp_path / 'x'}")
    message = refused.err.replace(str(golden / "companion"), "X")
    assert refused.status == 2 and "counted, with a network" in message and "companion" not in message
