"""What `bench` says must be true of what it measured; how long anything takes is not tested."""

import json

import pytest
import torch

import reference
from conftest import SMALL, sentences
from reference import as_corpus
from saffu import SaffuLM, bench, floors, peer
from saffu.cli import main
from saffu.config import SaffuConfig
from saffu.errors import SaffuError
from saffu.floors import Machine, Work

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def measured() -> bench.Bench:
    return bench.measure(sentences(0, 3000), SMALL, CPU, tokens=20_000, adam_seconds=0.01)


def test_facts_agree_with_each_other(measured):
    facts = json.loads(json.dumps(measured.facts()))
    parts = ["attention", "decoders", "final decoder", "tables and solving"]
    assert facts["explicit_seconds"] == pytest.approx(sum(facts["stages"][name]["seconds"] for name in parts))
    assert facts["explicit_tokens_per_second"] == pytest.approx(facts["tokens"] / facts["explicit_seconds"])
    assert facts["adam_to_explicit_ratio"] == pytest.approx(facts["adam_epoch_seconds"] / facts["explicit_seconds"])
    assert facts["tokens"] == measured.corpus.targets < 20_000
    assert facts["dev_bits_per_byte"] == pytest.approx(measured.lm.score(measured.dev).bits_per_byte)
    assert facts["peak_memory_bytes"] > 1 << 20
    for name in [*parts[:3], "explicit", "evaluate", "generate 64 at once"]:
        stage = facts["stages"][name]
        assert stage["times_floor"] == pytest.approx(stage["seconds"] / stage["floor_seconds"])
        assert stage["seconds"] > 0


def test_the_model_measured_is_the_model_fitted(measured):
    again = type(measured.lm)(SMALL, tokenizer=measured.lm.tokenizer_).fit(measured.corpus, references=False)
    for name, weight in again.network_.state_dict().items():
        assert torch.equal(weight, measured.lm.network_.state_dict()[name]), name


def test_slots_seen():
    documents = [[4, 5, 6, 7, 8], [], [9]]
    config = SaffuConfig(block=4, radius=2)
    examples = reference.block_examples(documents, 4)
    given = [sum(token != reference.PAD for token in example.slots) for example in examples]
    assert floors.slots_seen(config, as_corpus(documents), "block").tolist() == [min(4, n + 1) for n in given]
    examples = reference.radius_examples(documents, 2)
    given = [sum(token != reference.PAD for token in example.slots) for example in examples]
    assert floors.slots_seen(config, as_corpus(documents), "radius").tolist() == [min(2, n + 1) for n in given]


def test_a_floor_is_the_longer_of_arithmetic_and_memory():
    machine = Machine("made up", 1, operations_per_second=100.0, bytes_per_second=10.0, gathered_per_second=5.0)
    assert machine.floor(Work(200, 10)) == 2
    assert machine.floor(Work(200, 10) + Work(0, 20) * 2) == 5
    assert machine.floor(Work(200, 10, gathered=15)) == 3
    real = Machine.measured(CPU)
    assert real.operations_per_second > 1e8
    assert real.bytes_per_second > 1e7
    assert real.gathered_per_second > 1e7
    assert real.threads == torch.get_num_threads()


def test_work_grows_with_tokens_and_not_with_the_vocabulary():
    once, twice = as_corpus([[4, 5, 6, 7]]), as_corpus([[4, 5, 6, 7]] * 2)
    machine = Machine("made up", 1, operations_per_second=100.0, bytes_per_second=10.0, gathered_per_second=5.0)
    work = floors.explicit_work(SMALL, once, 100, machine)
    for name, more in floors.explicit_work(SMALL, twice, 100, machine).items():
        assert more.operations == 2 * work[name].operations
        assert more.bytes == 2 * work[name].bytes
    assert floors.explicit_work(SMALL, once, 10_000, machine) == work


def test_too_few_documents():
    with pytest.raises(SaffuError, match="too few"):
        bench.measure(["a b c d e f"] * 3, SMALL, CPU, None, 0)


def test_a_network_with_measured_exponents_is_measured_as_such():
    """The model that is timed is the one that `fit` gives."""
    config = SaffuConfig.preset("network", radius_dimension=24, kept_words=0)
    measured = bench.measure(sentences(0, 1000), config, CPU, tokens=None, adam_seconds=0)
    lm = SaffuLM(config, tokenizer=measured.lm.tokenizer_).fit(measured.corpus)
    assert measured.bits_per_byte == pytest.approx(lm.score(measured.dev).bits_per_byte)


@pytest.mark.parametrize("preset", ["paper", "calibrated"])
def test_command(preset, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences(1, 300)))
    arguments = ["bench", str(text), "--preset", preset, "--tokens", "2k", "--adam-seconds", "0"]
    if preset == "paper":
        arguments += ["--block", "8", "--hidden-dimension", "16", "--block-dimension", "16"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--json"])
    assert end.value.code == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["adam_epoch_seconds"] is None
    assert facts["stages"]["explicit"]["seconds"] == facts["explicit_seconds"]
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    table = capsys.readouterr().out
    assert f"{facts['tokens']:,} tokens" in table
    assert "bits per byte" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--adam-seconds", "-1"], "0 or more"), (["--device", "meta"], "cpu")],
)
def test_bad_input(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench", *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_a_peer_has_about_as_many_parameters_and_scores_the_same_targets(measured):
    transformers = pytest.importorskip("transformers")
    row = peer.trained(measured)
    assert row["parameters"] == pytest.approx(measured.lm.parameters_, rel=0.4)
    assert row["steps"] >= 1
    assert row["dev_bits_per_byte"] > 0
    assert transformers.GPT2Config


def test_the_peer_reads_every_document_after_its_mark():
    corpus = as_corpus([[4, 5], [], [6]])
    assert peer.sequence(corpus).tolist() == [1, 4, 5, 3, 1, 3, 1, 6, 3]
