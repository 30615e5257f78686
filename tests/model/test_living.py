"""Models that change: update, forget and merge against counting the same documents at once with the same encoder."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import saffu
from conftest import SMALL, sentences
from saffu import SaffuConfig, SaffuError, SaffuLM, TrainingConfig, living, lock, store
from saffu.cli import main
from saffu.corpus import TokenCorpus
from saffu.ledger import Ledger

CALIBRATED = SaffuConfig.preset("calibrated", radius=6, memory=4, classes=20)
EXACT = replace(SMALL, counting="float64")
KINDS = {
    "paper": EXACT,
    "quick": SMALL,  # counted in float32
    "documents": replace(EXACT, documents=3, radius_mode="sum"),
    "straight": replace(EXACT, hidden_dimension=0, decoder_priming="measured"),
    "calibrated": CALIBRATED,
    "slots": replace(CALIBRATED, memory=2, classes=0),  # whose references are counted apart
}
SHARDS = [sentences(1, 200), [*sentences(3, 60), "the zyx quaffed wvut ."], sentences(4, 40)]


@pytest.fixture(scope="module", params=KINDS)
def fitted(request):
    """A model of each kind, fitted on the first shard; tests take copies."""
    return SaffuLM(KINDS[request.param]).fit(SHARDS[0])


@pytest.fixture
def lm(fitted, tmp_path):
    fitted.save(tmp_path / "base")
    return saffu.load(tmp_path / "base")


def recounted(encoder, *shards):
    return SaffuLM(encoder=encoder).fit([text for shard in shards for text in shard])


def everything(lm):
    """All that depends on the documents, as bytes: weights, counts behind them, references, facts, documents."""
    state = {name: tensor.numpy().tobytes() for name, tensor in lm.network_.state_dict().items()}
    for layer in living.decoder_layers(lm):
        state |= {f"{layer}.{part}": value.numpy().tobytes() for part, value in vars(lm.counts_[layer]).items()}
    state |= {name: tensor.numpy().tobytes() for name, tensor in lm.references_.tensors().items()}
    return state | {"frequencies": lm.frequencies_.numpy().tobytes(), "on": lm.trained_on_}


def assert_same(one, other):
    """Bit for bit; but where units decode straight to the vocabulary, sums of other portions may differ in the last.

    And what is counted in float32 depends a little on the portions it is counted in.
    """
    quick = one.config.solution == "paper" and one.config.counting == "float32"
    if one.config.solution == "calibrated" or (one.config.hidden_dimension and not quick):
        assert everything(one) == everything(other)
        return
    for layer in living.decoder_layers(one):
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if quick else {"rtol": 0, "atol": 1e-9}
        torch.testing.assert_close(one.counts_[layer].F, other.counts_[layer].F, **tolerance)
        assert one.counts_[layer].targets == other.counts_[layer].targets
    atol = 2e-2 if quick else 1e-6  # the logarithm of a small count
    torch.testing.assert_close(one.network_.state_dict(), other.network_.state_dict(), rtol=1e-6, atol=atol)
    assert everything(one).keys() == everything(other).keys()
    for name in {"keys", "counts", "frequencies", "on", "log_prior"} & everything(one).keys():
        assert everything(one)[name] == everything(other)[name], name


# Equality


def test_an_encoder_finds_its_own_decoder_again(lm):
    assert everything(recounted(lm, SHARDS[0])) == everything(lm)
    assert not living.difference(lm, recounted(lm, SHARDS[1]))


def test_update_then_forget_gives_back_every_bit(lm):
    before = everything(lm)
    lm.update(SHARDS[1])
    assert everything(lm) != before
    lm.forget(SHARDS[1])
    assert everything(lm) == before


def test_forgetting_in_other_portions(lm, fitted):
    """And in another order than it was learnt in."""
    lm.update(SHARDS[1]).update(SHARDS[2])
    assert_same(lm, recounted(lm, *SHARDS))
    assert lm.forget(SHARDS[2][::-1][:25]) == 25
    assert lm.forget([*SHARDS[2][::-1][25:], *SHARDS[1][30:]]) == 15 + 31
    lm.forget(SHARDS[1][:30])
    assert_same(lm, fitted)
    assert lm.ledger_.documents == 200
    assert [row["stage"] for row in lm.log_[1:]] == ["update", "update", "forget", "forget", "forget"]


def test_merged_shards_equal_one_fit(lm, fitted, tmp_path):
    """Three fitted apart, saved and loaded; then the one that was the encoder's own text is forgotten."""
    for number, shard in enumerate(SHARDS[1:]):
        recounted(lm, shard).save(tmp_path / str(number))
    one, other = (saffu.load(tmp_path / str(number)) for number in range(2))
    merged = other.merge(lm, one)
    assert_same(merged, recounted(lm, *SHARDS))
    assert merged.ledger_.documents == 301
    merged.forget(SHARDS[0])
    assert_same(merged, recounted(lm, SHARDS[1], SHARDS[2]))
    assert everything(lm) == everything(fitted), "merging changed what was merged"


def test_a_rare_string_is_unknown_again(lm, tmp_path):
    """Every file equals that of a model which never saw the document, and nothing of it is found in any."""
    secret = SHARDS[1][-1]
    never = recounted(lm, SHARDS[0], SHARDS[1][:-1])
    lm.update(SHARDS[1])
    assert lm.perplexity([secret]) < never.perplexity([secret])
    lm.forget([secret])
    quick = lm.config == SMALL  # counted in float32: the same, but for rounding
    assert lm.perplexity([secret]) == pytest.approx(never.perplexity([secret]), rel=1e-3 if quick else 1e-6)
    assert_same(lm, never)
    lm.log_[-1]["sample"] = never.log_[-1]["sample"] = ""
    lm.save(tmp_path / "forgot")
    never.save(tmp_path / "never")
    for path in (tmp_path / "forgot").iterdir():
        assert b"quaff" not in path.read_bytes()
        straight = lm.config.solution == "paper" and not lm.config.hidden_dimension
        if not (straight or quick) and path.name not in {"config.json", "log.jsonl", "ledger.safetensors"}:
            assert path.read_bytes() == (tmp_path / "never" / path.name).read_bytes(), path.name
    assert lm.ledger_.documents == never.ledger_.documents
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_samples_of_before_are_not_kept(lm):
    assert "sample" in lm.log_[0]
    lm.forget(SHARDS[0][:1])
    assert not any("sample" in row for row in lm.log_)
    assert lm.log_[0]["stage"] in {"init", "calibrated"}


# The ledger


def corpus_of(numbers):
    """A tokenised corpus of documents that consist of one number each."""
    ids = torch.tensor([token for number in numbers for token in (number + 4, 3)], dtype=torch.int32)
    return TokenCorpus(ids, torch.arange(0, len(ids) + 1, 2), torch.ones(len(numbers), dtype=torch.int64))


documents = st.lists(st.integers(0, 5), max_size=8)


@settings(max_examples=60, deadline=None)
@given(documents, documents, documents, st.booleans())
def test_a_ledger_is_a_multiset(one, other, struck, merged):
    ledger = Ledger.of(corpus_of(one)) + Ledger.of(corpus_of(other))
    if not merged:
        ledger = Ledger.of(corpus_of(one)).with_added(corpus_of(other))
    ledger = Ledger.from_tensors(ledger.tensors())
    held, wanted = Counter(one + other), Counter(struck)
    assert ledger.documents == held.total()
    assert len(ledger.counted(corpus_of(struck))) == (held & wanted).total()
    if wanted <= held:
        left = ledger.without(corpus_of(struck))
        assert left.documents == held.total() - wanted.total()
        assert len(left.counted(corpus_of(one + other))) == left.documents
    else:
        some = rf"{(wanted - held).total()} of {len(struck)} documents"
        with pytest.raises(SaffuError, match=some if wanted & held else "nothing of the text is counted"):
            ledger.without(corpus_of(struck))


def test_hashes_are_salted():
    one, other = Ledger.of(corpus_of([1, 2])), Ledger.of(corpus_of([1, 2]))
    hashes = [set(next(iter(ledger.pages.values()))) for ledger in (one, other)]
    assert len(hashes[0]) == len(hashes[1]) == 2
    assert not hashes[0] & hashes[1]
    assert one.shared_with(other) == 0
    assert one.shared_with(one.with_added(corpus_of([3]))) == 2
    narrow = corpus_of([1, 3])
    narrow = replace(narrow, ids=narrow.ids.to(torch.uint16))
    assert one.counted(narrow).tolist() == [0]


@pytest.mark.parametrize("fitted", ["paper", "calibrated"], indirect=True)
def test_counted_twice_is_forgotten_twice_and_no_more(lm):
    fact = "the old king found a small sea ."
    lm.update([fact, fact])
    once = everything(recounted(lm, SHARDS[0], [fact]))
    lm.forget([fact])
    assert everything(lm) == once
    before = everything(lm)
    with pytest.raises(SaffuError, match=r"1 of 2 documents was never counted, .* document 2 of .* `skip_uncounted`"):
        lm.forget([fact, fact])
    with pytest.raises(SaffuError, match="nothing of the text is counted; give documents exactly as"):
        lm.forget(["the king is naked ."])
    assert everything(lm) == before
    assert lm.forget(["nothing of the kind", fact, fact], skip_uncounted=True) == 1
    assert lm.forget(["nothing of the kind", fact], skip_uncounted=True) == 0
    assert everything(lm) == everything(recounted(lm, SHARDS[0]))
    with pytest.raises(SaffuError, match="nothing would be left"):
        lm.forget(SHARDS[0])
    with pytest.raises(SaffuError, match="no documents"):
        lm.update([])


def test_counts_below_zero_are_refused(lm):
    """Even if a ledger were wrong."""
    lm.ledger_ = lm.ledger_.with_added(lm.tokenize(["zzz zzz"]))
    before = everything(lm)
    with pytest.raises(SaffuError, match="never counted"):
        lm.forget(["zzz zzz"])
    assert everything(lm) == before


# What cannot change or merge


def test_trained_and_tuned_models_cannot_change(train_text, dev_text):
    tuned = SaffuLM(replace(SMALL, tune=1)).fit(train_text)
    with pytest.raises(SaffuError, match=r"tuning counted .* --encoder"):
        tuned.update(dev_text)
    assert recounted(tuned, train_text).update(dev_text).trained_on_["documents"] == 700
    trained = SaffuLM(SMALL).fit(train_text).backprop(train_text, dev_text, TrainingConfig(max_folds=1))
    for change in (lambda: trained.forget(train_text[:1]), lambda: trained.merge(trained)):
        with pytest.raises(SaffuError, match="trained by backpropagation"):
            change()
    plain = SaffuLM(SMALL).fit(train_text)
    plain.ledger_ = None
    with pytest.raises(SaffuError, match="keeps no ledger"):
        plain.update(dev_text)


def test_only_models_of_one_encoder_merge():
    base = SaffuLM(SMALL).fit(SHARDS[0])
    others = {
        "tokenizers differ": SaffuLM(SMALL).fit(["quite another text, with other words"] * 9),
        "radius is 4 in one and 5 in the other": SaffuLM(replace(SMALL, radius=5), tokenizer=base.tokenizer_),
        "different text": SaffuLM(SMALL, tokenizer=base.tokenizer_),
    }
    for reason, other in others.items():
        if not hasattr(other, "network_"):
            other.fit(SHARDS[1])
        with pytest.raises(SaffuError, match=f"model 3 cannot be merged with the first: .*{reason}"):
            base.merge(recounted(base, SHARDS[2]), other)
    with pytest.raises(SaffuError, match="leave out"):
        SaffuLM(SMALL, encoder=base)
    with pytest.raises(SaffuError, match="no training"):
        SaffuLM(encoder=base).fit(SHARDS[1], training=TrainingConfig())


# The command


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """`saffu` in a folder with three shards and a model of the first; gives status, output and errors."""
    monkeypatch.chdir(tmp_path)
    for number, shard in enumerate(SHARDS):
        (tmp_path / f"{number}.txt").write_text("\n".join(shard) + "\n")

    def run(line):
        with pytest.raises(SystemExit) as exit:
            main(line.split())
        captured = capsys.readouterr()
        return exit.value.code, captured.out, captured.err

    assert run("train 0.txt --hold-out 0 --classes 20 --out base")[0] == 0
    return run


def test_the_whole_way(command, tmp_path):
    for number in (1, 2):
        assert command(f"train {number}.txt --encoder base --hold-out 0 --out shard{number}")[0] == 0
    status, out, err = command("merge base shard1 shard2 --out all")
    assert (status, err) == (0, "")
    assert out.startswith("merged 3 models: 301 documents, ")
    status, out, _ = command("forget all 0.txt --json")
    facts = json.loads(out)
    assert (status, facts["forgotten"], facts["trained_on"]["documents"]) == (0, 200, 101)
    assert command("train 1.txt 2.txt --encoder base --hold-out 0 --out rest")[0] == 0
    assert everything(saffu.load("all")) == everything(saffu.load("rest")) | {"on": facts["trained_on"]}
    held = 40 + len([text for text in SHARDS[0] + SHARDS[1] if text in SHARDS[2]])
    status, out, _ = command("update all 0.txt")
    assert "counted 200 documents more, " in out
    assert "all now counts 301 documents, " in out
    (tmp_path / "twice.txt").write_text((tmp_path / "2.txt").read_text() * 2)
    status, out, _ = command("forget all twice.txt --skip-uncounted")
    assert f"forgot {held} of 80 documents; all now counts {301 - held} documents" in out
    assert "can update, forget and merge" in command("info all")[1]
    assert json.loads(command("info base --json")[1])["encoder"] == json.loads(command("info all --json")[1])["encoder"]
    shutil.copytree("base", "copy")
    assert "merged 1 model: 200 documents, " in command("merge base --out alone")[1]
    (tmp_path / "one.txt").write_text("a small dog found the sea .\n")
    assert command("update alone one.txt")[1].startswith("counted 1 document more, ")
    assert "update       1 document\n" in command("info alone")[1]
    assert "200 documents are in more than one" in command("merge base copy --out twice")[2]
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_refusals_are_one_line_and_change_nothing(command, tmp_path):
    command("train 1.txt --hold-out 0 --classes 20 --out foreign")
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "foreign.txt").write_text("never seen\nnor this\n")
    newer = shutil.copytree("base", "newer")
    manifest = json.loads((tmp_path / newer / "config.json").read_text())
    (tmp_path / newer / "config.json").write_text(json.dumps(manifest | {"format": store.FORMAT + 1}))
    shutil.copytree("base", "damaged")
    (tmp_path / "damaged" / "ledger.safetensors").write_bytes(b"x")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for line, message in {
        "forget base foreign.txt": "nothing of the text is counted",
        "forget base 1.txt": " of 61 documents were never counted, ",
        "forget base 0.txt": "nothing would be left",
        "forget nowhere 0.txt": "no model folder",
        "forget no/where 0.txt": "no model folder",
        "update base nothing.txt": "no such file",
        "update base blank.txt": "no documents",
        "update base": "required: text",
        "update damaged 1.txt": "damaged",
        "merge base foreign --out m": "tokenizers differ",
        "merge base newer --out m": "upgrade saffu",
        "merge base base --out m": "named twice",
        "merge base --out foreign": "not empty",
        "train 1.txt --encoder base --radius 3 --out m": "--radius cannot go with --encoder",
        "train 1.txt --encoder base --preset paper --out m": "--preset cannot go",
        "train 1.txt --encoder nowhere --out m": "no model folder",
    }.items():
        status, out, err = command(line)
        assert (status, out) == (2, ""), line
        assert message in err, line
        assert len(err.splitlines()) == 1, line
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, line


# Locks, and processes that are killed


def test_a_swap_cut_in_two_is_put_right(command, tmp_path):
    """Where folders cannot be swapped in one step: the old one is aside, the new one not yet in its place."""
    (tmp_path / "base").rename(tmp_path / ".base.writing-x-old")
    (tmp_path / ".base.writing-x").mkdir()
    assert command("update base 1.txt")[0] == 0
    assert saffu.load("base").trained_on_["documents"] == 261
    assert list(tmp_path.glob(".*")) == []


def test_a_reader_meets_the_folder_being_replaced(command, monkeypatch):
    old, new = saffu.load("base"), saffu.load("base").update(SHARDS[1])
    read_file = store.read_file

    def replaced_meanwhile(folder, name, manifest):
        if name == "counts.safetensors":
            monkeypatch.setattr(store, "read_file", read_file)
            new.save("base")
        return read_file(folder, name, manifest)

    monkeypatch.setattr(store, "read_file", replaced_meanwhile)
    assert everything(saffu.load("base")) == everything(new) != everything(old)


SERVER = """
import os, signal, sys
import torch, saffu.model, saffu.commands.merge
from saffu.cli import main

torch.set_num_threads(1)
OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "ctypes.dlopen", "fcntl.flock"}

def child(folder, when, *words):
    if os.fork():
        return
    operations = 0
    def count(event, _):
        nonlocal operations
        if event in OPERATIONS:
            operations += 1
            if str(operations) == when:
                os.kill(os.getpid(), signal.SIGKILL)
    if "." in when:
        signal.setitimer(signal.ITIMER_REAL, float(when))  # nothing handles SIGALRM, so it kills as suddenly
    os.chdir(folder)
    sys.stderr = sys.stdout
    sys.addaudithook(count)
    try:
        main(words)
    except SystemExit as exit:
        print("operations", operations, flush=True)
        os._exit(exit.code)  # without the second that torch takes to leave

for line in sys.stdin:
    folder, *commands = line.split("|")
    for command in commands:
        child(folder, *command.split())
    print("ended", *sorted(os.waitpid(-1, 0)[1] for _ in commands), flush=True)
"""


@pytest.fixture(scope="module")
def server():
    """Runs commands in forked processes, several at once if need be, each killed at its nth file operation or after
    a fraction of a second (0: never); gives what they printed and, last, "ended" and how."""
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


def test_one_writer_at_a_time(tmp_path, command, server):
    with lock.exclusive(tmp_path / "base", wait=False):
        with lock.exclusive(tmp_path / "base", wait=False):  # the same thread may
            saffu.load("base").save("base")
        for line in ("train 1.txt --out base --force", "merge base --out base --force"):
            lines = server(tmp_path, f"0 {line}")
            assert lines[0] == "saffu: another saffu is writing to base; wait until it has ended\n"
            assert lines[-1] == f"ended {2 << 8}\n"
    assert not (tmp_path / ".base.lock").exists()
    (tmp_path / ".base.lock").touch()  # as a process that was killed leaves it
    assert server(tmp_path, *[f"0 update base {number}.txt" for number in (1, 2)])[-1] == "ended 0 0\n"
    assert everything(saffu.load("base")) == everything(recounted(saffu.load("base"), *SHARDS)) | {
        "on": saffu.load("base").trained_on_
    }
    assert saffu.load("base").trained_on_["documents"] == 301
    assert list(tmp_path.glob(".*")) == []


KILLS = int(os.environ.get("SAFFU_KILLS", "4"))  # for each verb


def test_killed_at_any_moment(server, command, tmp_path):
    """The old model or the new one is there, whole; the next writer cleans up."""
    command("train 1.txt --encoder base --hold-out 0 --out other")
    chance = random.Random(0)
    for line, changed in {
        "update base 1.txt": "base",
        "forget base 2.txt --skip-uncounted": "base",
        "merge base other --out base --force": "base",
        "merge base other --out all": "all",
    }.items():
        folder, kept = tmp_path / changed, tmp_path / "kept"
        if folder.exists():
            shutil.copytree(folder, kept)
        old = everything(saffu.load(folder)) if folder.exists() else None
        began = time.perf_counter()
        *_, operations, ended = server(tmp_path, f"0 {line}")
        seconds = time.perf_counter() - began
        assert ended == "ended 0\n"
        new = everything(saffu.load(folder))
        for attempt in range(KILLS):
            shutil.rmtree(folder, ignore_errors=True)
            if kept.exists():
                shutil.copytree(kept, folder)
            moment = chance.randint(1, int(operations.split()[1])) if attempt % 3 else chance.uniform(0.0001, seconds)
            ended = server(tmp_path, f"{moment} {line}")[-1]
            assert ended == f"ended {signal.SIGKILL}\n" or "." in str(moment)
            if old is None and not folder.exists():
                continue
            assert everything(saffu.load(folder)) in (old, new), (line, moment)
        assert server(tmp_path, f"0 {line} {'--force' if changed == 'all' else ''}")[-1] == "ended 0\n"
        assert list(tmp_path.glob(".*")) == []
        shutil.rmtree(kept, ignore_errors=True)
