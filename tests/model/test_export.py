"""Exported models in transformers against saffu itself: the same tokens, the same probabilities, and back again."""

import ast
import atexit
import copy
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
MODULES = tempfile.mkdtemp(prefix="saffu-modules-")  # where transformers copies modeling files to
atexit.register(shutil.rmtree, MODULES, ignore_errors=True)
os.environ["HF_MODULES_CACHE"] = MODULES  # read when transformers is imported
transformers = pytest.importorskip("transformers", reason="pip install 'saffu[hf]'")
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

import saffu  # noqa: E402
from conftest import SMALL, sentences  # noqa: E402
from saffu import SaffuConfig, SaffuLM, Tokenizer  # noqa: E402
from saffu.cli import main  # noqa: E402
from saffu.corpus import TokenCorpus  # noqa: E402
from saffu.export import export_hf, model_card  # noqa: E402
from saffu.network import Network  # noqa: E402
from saffu.product import Product  # noqa: E402
from saffu.tokenizer import EOD, PAD, SOD  # noqa: E402

transformers.utils.logging.disable_progress_bar()

CALIBRATED = SaffuConfig.preset("calibrated", radius=6, memory=4, classes=20, kept_words=0)
STRANGE = [
    "",
    "a  b   c ",
    "tab\there, CRLF\r\nhere\r\n\r\nand\n\nnewlines\n",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈, e\u0301 n\u0303 combining, ﷽, עברית, \u200b\ufeff",
    "NUL \x00\x00 and \x01\x1c\x7f\x85 bytes",
    "<sod>the <pad> text <eod> has <frg> markers </s> [UNK]",
    "very long " * 5000 + "x" * 20_000,
    " leading and trailing ",
    "they ' ll don't we 've . , ! ? n't",  # what some decoders tidy up
]


def exported(lm: SaffuLM, folder: Path) -> Path:
    lm.export_hf(folder)
    return folder


def load_model(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


def load_tokenizer(folder: Path):
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


@pytest.fixture(scope="module")
def fitted(small_lm, train_text, dev_text):
    """One model of each kind."""
    text = train_text[:300]
    return {
        "network": small_lm,
        "straight": SaffuLM(replace(SMALL, hidden_dimension=0)).fit(text, dev_text),
        "calibrated": SaffuLM(CALIBRATED).fit(train_text, dev_text),
    }


@pytest.fixture(scope="module")
def folders(fitted, tmp_path_factory):
    return {name: exported(lm, tmp_path_factory.mktemp(name) / "hf") for name, lm in fitted.items()}


@pytest.fixture(scope="module", params=["network", "straight", "calibrated"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def lm(fitted, kind):
    return fitted[kind]


@pytest.fixture(scope="module")
def folder(folders, kind):
    return folders[kind]


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


@torch.no_grad()
def saffu_log_probabilities(network: Network | Product, corpus: TokenCorpus) -> torch.Tensor:
    """log p(· | what precedes) of every target, (targets, N)."""
    batches = corpus.batches(network.batch_size(), network.lookback)
    return torch.cat([torch.log_softmax(network(targets), dim=1) for targets in batches])


@torch.no_grad()
def hf_log_probabilities(model, rows, **given) -> torch.Tensor:
    return torch.log_softmax(model(input_ids=torch.tensor(rows), **given).logits, dim=-1)


def assert_same_model(lm: SaffuLM, model, texts: list[str]) -> None:
    """The same score in float32; and every log-probability, in float64 where a network's logits are large."""
    for text in texts:
        ids = lm.tokenizer_.encode(text)
        logs = hf_log_probabilities(model, [[SOD, *ids]])[0].gather(1, torch.tensor([*ids, EOD])[:, None])
        assert -float(logs.double().sum()) == pytest.approx(
            lm.score(TokenCorpus.build([text], lm.tokenizer_)).nll, rel=1e-5
        )
    network, exact = lm.network_, model
    if isinstance(network, Network):
        network, exact = copy.deepcopy(network).double(), copy.deepcopy(model).double()
    for text in texts:
        ids = lm.tokenizer_.encode(text)
        expected = saffu_log_probabilities(network, TokenCorpus.build([text], lm.tokenizer_))[:, EOD:]
        found = hf_log_probabilities(exact, [[SOD, *ids]])[0, :, EOD:]
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-5, rtol=0), text[:40]
        if ids:
            assert torch.allclose(hf_log_probabilities(exact, [ids])[0, :, EOD:], found[1:], atol=1e-5, rtol=0)


def documents(dev_text: list[str]) -> list[str]:
    """Shorter than any window, longer than a block, and strange."""
    return ["", "the", *dev_text[:3], " ".join(dev_text[:6]), STRANGE[3]]


def test_same_log_probabilities(lm, model, dev_text):
    assert_same_model(lm, model, documents(dev_text))


@pytest.mark.parametrize(
    "change",
    [
        {"block": 0},
        {"radius": 0},
        {"documents": 5},
        {"calibrate": True},
        {"calibrate": True, "hidden_dimension": 0, "store": "float16"},
        {"block_mode": "cat", "radius_mode": "sum", "head": "first"},
        {"block": 2, "radius": 2},
        {"block": 40, "radius": 20},
    ],
    ids=str,
)
def test_shapes_of_networks(change, train_text, dev_text, tmp_path):
    lm = SaffuLM(replace(SMALL, **change), tokenizer=Tokenizer.train(train_text)).fit(train_text[:100])
    assert_same_model(lm, load_model(exported(lm, tmp_path / "hf")), documents(dev_text))


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (["a a a a a a a"] * 50, {}),
        (["ab"], {}),
        (["x", "y"] * 40, {}),
        (["a b c d e f"] * 30, {"memory": 0}),
        (["a b c d e f"] * 30, {"memory": 2, "classes": 0}),
        (["a b c d e f"] * 30, {"radius": 0}),
        (["a b c d e f", "b c a"] * 30, {"radius": 2, "memory": 9}),  # n-grams that take two words
    ],
    ids=["one word", "one document", "short documents", "slots only", "bigrams", "memory only", "long memory"],
)
def test_shapes_of_products(text, change, tmp_path):
    config = SaffuConfig.preset("calibrated", **{"classes": 10, "radius": 4, **change})
    lm = SaffuLM(config, tokenizer=Tokenizer.from_merges([])).fit(text)
    assert_same_model(lm, load_model(exported(lm, tmp_path / "hf")), [*text[:2], "zebra f e", "a b a b a b c d e"])


@torch.no_grad()
def test_attention_with_a_bias(folders, fitted):
    """A unit may have a bias in its attention: A = −log softmax(QW + b)."""
    lm = fitted["network"]
    config = transformers.AutoConfig.from_pretrained(folders["network"], trust_remote_code=True)
    config.tensors = {**config.tensors, "units.radius.b": ["float32", SMALL.radius]}
    model = type(load_model(folders["network"]))(config)
    bias = torch.tensor([0.5, -1.0, 0.0, 2.0])
    model.load_state_dict({**lm.network_.state_dict(), "units.radius.b": bias})
    unit, ids = lm.network_.units["radius"], torch.tensor([[PAD, 9, 20, 31]])
    Q = unit.E[ids[0, -1]] @ unit.E[ids[0]].T
    A = -torch.log_softmax(Q @ unit.W + bias, dim=0)
    expected = (A[:, None] * unit.E[ids[0]]).flatten() @ unit.U
    assert torch.allclose(model.next_logits.unit_logits("radius", ids, ids[:, -1])[0], expected, atol=1e-4)


def test_weights_that_the_modeling_file_does_not_know(small_lm, tmp_path):
    lm = SaffuLM(SMALL)
    lm.__dict__.update(small_lm.__dict__)
    lm.network_ = copy.deepcopy(small_lm.network_)
    lm.network_.units["radius"].register_buffer("new", torch.ones(1))
    with pytest.raises(NotImplementedError, match=r"units\.radius\.new"):
        export_hf(lm, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_probabilities_of_markers_and_sums(model, lm, dev_text):
    p = hf_log_probabilities(model, [[SOD, *lm.tokenizer_.encode(dev_text[0])]]).exp()
    assert torch.allclose(p.sum(-1), torch.ones(p.shape[:2]), atol=1e-5)
    assert torch.isfinite(p.log().where(p > 0, 0) * p).all()
    assert (p[..., :EOD] < 1e-2).all()


def test_padding_and_masks(model, lm, dev_text):
    rows = [lm.tokenizer_.encode(text) for text in dev_text[:4]]
    width = max(len(row) for row in rows) + 3
    alone = [hf_log_probabilities(model, [row])[0] for row in rows]
    for side in ("left", "right"):
        padded, mask = [], []
        for row in rows:
            gap = width - len(row)
            padded.append([PAD] * gap + row if side == "left" else row + [PAD] * gap)
            mask.append([0] * gap + [1] * len(row) if side == "left" else [1] * len(row) + [0] * gap)
        for given in ({"attention_mask": torch.tensor(mask)}, {}):  # padding is known by its token, too
            together = hf_log_probabilities(model, padded, **given)
            for row, logs, kept in zip(together, alone, mask, strict=True):
                assert torch.allclose(row[torch.tensor(kept, dtype=torch.bool)], logs, atol=1e-5)
    row, junk = rows[0], 77
    holes = [junk, *row[:2], junk, junk, *row[2:], junk]
    mask = torch.tensor([[0, 1, 1, 0, 0, *[1] * (len(row) - 2), 0]])
    logs = hf_log_probabilities(model, [holes], attention_mask=mask)[0, mask[0] == 1]
    assert torch.allclose(logs, alone[0], atol=1e-5)


def test_documents_in_one_row_do_not_see_each_other(model, lm, dev_text):
    one, other = (lm.tokenizer_.encode(text) for text in dev_text[:2])
    alone = hf_log_probabilities(model, [[SOD, *other]])[0]
    for between in ([EOD], [SOD], [EOD, SOD]):
        logs = hf_log_probabilities(model, [[*one, *between, *other]])[0]
        assert torch.allclose(logs[-len(alone) :], alone, atol=1e-5)


@torch.no_grad()
def test_loss_is_the_score(model, lm, dev_text):
    text, score = dev_text[0], lm.score([dev_text[0]])
    row = torch.tensor([[SOD, *lm.tokenizer_.encode(text), EOD]])
    assert float(model(row, labels=row).loss) == pytest.approx(score.nll / score.targets, abs=1e-5)
    padded = torch.nn.functional.pad(row, (2, 3), value=PAD)
    assert float(model(padded, labels=padded).loss) == pytest.approx(score.nll / score.targets, abs=1e-5)
    labels = row.clone()
    labels[:, :3] = -100
    assert float(model(row, labels=labels).loss) != pytest.approx(score.nll / score.targets, abs=1e-3)
    loss, logits = model(row, labels=row, return_dict=False)
    assert loss.ndim == 0
    assert logits.shape == (1, row.shape[1], len(lm.tokenizer_))


def test_logits_to_keep(model):
    row = torch.tensor([[SOD, 40, 50, 60, 70], [SOD, 41, 51, 61, 71]])
    with torch.no_grad():
        whole = model(row).logits
        assert torch.equal(model(row, logits_to_keep=2).logits, whole[:, -2:])
        assert torch.equal(model(row, logits_to_keep=torch.tensor([1, 3])).logits, whole[:, [1, 3]])
        assert torch.equal(model(row.int()).logits, whole)
    with pytest.raises(ValueError, match="token ids"):
        model(inputs_embeds=torch.zeros(1, 2, 3))


def test_greedy_generation_is_saffus(model, folder, lm):
    tokenizer = load_tokenizer(folder)
    for prompt in ("the", "a small"):
        given = tokenizer(prompt, return_tensors="pt")
        for use_cache in (None, True):  # there is none, and asking for it changes nothing
            more = {} if use_cache is None else {"use_cache": use_cache}
            written = model.generate(**given, do_sample=False, max_new_tokens=12, **more)[0]
            assert tokenizer.decode(written, skip_special_tokens=True) == prompt + lm.generate(
                prompt, temperature=0, max_tokens=12
            )


def test_generation_from_nothing_in_batches_and_by_sampling(model, folder):
    tokenizer = load_tokenizer(folder)
    prompts = ["the small dog", "a", "the king found the"]
    batch = tokenizer(prompts, padding=True, return_tensors="pt")
    together = model.generate(**batch, do_sample=False, max_new_tokens=6)
    for prompt, row in zip(prompts, together, strict=True):
        alone = model.generate(**tokenizer(prompt, return_tensors="pt"), do_sample=False, max_new_tokens=6)[0]
        assert tokenizer.decode(row, skip_special_tokens=True) == tokenizer.decode(alone, skip_special_tokens=True)
    torch.manual_seed(1)
    start = torch.full((50, 1), SOD)
    drawn = model.generate(start, do_sample=True, top_k=0, temperature=1.5, max_new_tokens=8)
    new = drawn[:, 1:]
    after_end = ((new == EOD).cumsum(1) - (new == EOD).long()) > 0
    assert (new[~after_end] >= EOD).all()  # no marker is ever drawn
    assert (new[after_end] == PAD).all()
    assert len({tuple(row) for row in new.tolist()}) > 5
    assert model.generate(max_new_tokens=2)[0, 0] == SOD


@torch.no_grad()
def test_beams(model, folder, lm):
    """The score of the best sequence is its log-probability, and no less than that of the greedy one."""
    given = load_tokenizer(folder)("the small", return_tensors="pt")
    settings = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "length_penalty": 0.0}
    found = model.generate(
        **given, num_beams=4, num_return_sequences=4, return_dict_in_generate=True, output_scores=True, **settings
    )
    assert (found.sequences[:, given["input_ids"].shape[1] :] > EOD).all()
    assert len({tuple(row) for row in found.sequences.tolist()}) == 4

    def log_probability(row):
        logs = torch.log_softmax(model(row[None]).logits[0], dim=-1)[:-1].gather(1, row[1:, None])
        return float(logs[given["input_ids"].shape[1] - 1 :].sum())

    greedy = model.generate(**given, **{**settings, "length_penalty": 1.0})[0]
    assert float(found.sequences_scores[0]) == pytest.approx(log_probability(found.sequences[0]), abs=0.02)
    assert log_probability(found.sequences[0]) >= log_probability(greedy) - 1e-4


def test_pipeline(folder):
    write = transformers.pipeline("text-generation", model=str(folder), trust_remote_code=True)
    (one,) = write("the old king", max_new_tokens=8, do_sample=False)
    assert one["generated_text"].startswith("the old king")
    prompts = ["the", "a small dog"]
    several = write(prompts, max_new_tokens=4, do_sample=True, batch_size=2)
    for prompt, (written,) in zip(prompts, several, strict=True):
        assert written["generated_text"].startswith(prompt)


def test_tokenizer_is_saffus(folder, lm):
    tokenizer = load_tokenizer(folder)
    assert tokenizer.is_fast
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (PAD, SOD, EOD)
    assert len(tokenizer) == len(lm.tokenizer_)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    for text in STRANGE:
        ids = lm.tokenizer_.encode(text)
        assert tokenizer(text)["input_ids"] == ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text
    assert tokenizer(STRANGE)["input_ids"] == lm.tokenizer_.encode_batch(STRANGE)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_back_to_saffu_byte_for_byte(folder, lm, tmp_path, dev_text):
    lm.save(tmp_path / "before")
    loaded = saffu.load(folder)
    loaded.save(tmp_path / "after")
    before = contents(tmp_path / "before")
    assert contents(tmp_path / "after") == before
    for name in ("model.safetensors", "tokenizer.json"):
        assert (folder / name).read_bytes() == before[name]
    assert loaded.score(dev_text) == lm.score(dev_text)


def test_saved_loaded_and_saved_again(folder, model, lm, kind, tmp_path, dev_text):
    for part in (model, load_tokenizer(folder)):
        part.save_pretrained(tmp_path / "one")
    for part in (load_model(tmp_path / "one"), load_tokenizer(tmp_path / "one")):
        part.save_pretrained(tmp_path / "two")
    saved = contents(tmp_path / "one")
    assert saved.keys() == contents(tmp_path / "two").keys() > {"model.safetensors", "tokenizer.json", "config.json"}
    for name, content in contents(tmp_path / "two").items():
        assert content == saved[name], name
    for name in ("model.safetensors", "modeling_saffu.py"):
        assert saved[name] == (folder / name).read_bytes()
    loaded = saffu.load(tmp_path / "one")
    assert loaded.tokenizer_.to_json() == lm.tokenizer_.to_json()
    assert loaded.score(dev_text[:5]) == lm.score(dev_text[:5])
    assert loaded.frequencies_.isnan().all() if kind != "calibrated" else loaded.frequencies_.equal(lm.frequencies_)
    loaded.save(tmp_path / "saffu")
    assert (tmp_path / "saffu" / "model.safetensors").read_bytes() == saved["model.safetensors"]
    assert (tmp_path / "one" / "config.json").read_text().count("checksums") == 0


def test_what_a_tokenizer_picked_up_in_use_stays_behind(folders, fitted, tmp_path):
    model, tokenizer = load_model(folders["network"]), load_tokenizer(folders["network"])
    tokenizer(["a", "the old dog"], padding=True, truncation=True, max_length=8)  # its backend remembers that
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert saffu.load(tmp_path).tokenizer_.to_json() == fitted["network"].tokenizer_.to_json()


def test_nothing_but_what_transformers_has_is_imported(folder):
    tree = ast.parse((folder / "modeling_saffu.py").read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} == {"collections", "numpy", "torch", "transformers", "typing"}


def test_half_precision_is_for_storage(folder, model, lm, dev_text, tmp_path):
    half = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, torch_dtype=torch.float16).eval()
    assert half.dtype == torch.float16
    ids = [[SOD, *lm.tokenizer_.encode(dev_text[0])]]
    exact, rounded = hf_log_probabilities(model, ids), hf_log_probabilities(half, ids)
    assert rounded.dtype == torch.float32
    assert float((exact.exp() - rounded.exp()).abs().max()) < 0.05
    half.save_pretrained(tmp_path)
    load_tokenizer(folder).save_pretrained(tmp_path)
    assert saffu.load(tmp_path).perplexity(dev_text[:5]) == pytest.approx(lm.perplexity(dev_text[:5]), rel=0.05)


def test_gradients_reach_the_weights(folder, lm, train_text):
    model = load_model(folder).train()
    rows = [[SOD, *lm.tokenizer_.encode(text), EOD] for text in train_text[:8]]
    width = max(map(len, rows))
    batch = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_other_counts_are_solved_anew(folders, fitted, train_text, dev_text, tmp_path):
    """A state that is loaded into a model in use takes effect."""
    lm = fitted["calibrated"]
    model = load_model(folders["calibrated"])
    hf_log_probabilities(model, [[SOD, 40]])
    state = model.state_dict()
    state["counts.memory.counts"] = torch.from_numpy(state["counts.memory.counts"].numpy()[::-1].copy())
    before = hf_log_probabilities(model, [[SOD, *lm.tokenizer_.encode(dev_text[0])]])
    model.load_state_dict(state)
    assert not torch.equal(before, hf_log_probabilities(model, [[SOD, *lm.tokenizer_.encode(dev_text[0])]]))


def test_model_card(lm, kind):
    card = model_card(lm, "my-model")
    assert card.startswith("---\nlibrary_name: transformers\n")
    row = lm.log_[-1]
    assert f"| {row['stage']} | {row['dev_perplexity']:.2f} | {row['dev_bits_per_byte']:.4f} |" in card
    assert f"| {lm.parameters_:,} |" in card
    assert f"{lm.trained_on_['tokens']:,} tokens" in card
    assert ("Kneser–Ney" in card) == (kind == "calibrated")


def test_model_card_of_a_trained_model(small_lm):
    lm = SaffuLM(SMALL)
    lm.__dict__.update(small_lm.__dict__)
    fold = {"dev_bits_per_byte": 1.0, "best": True}
    lm.log_ = [
        {"stage": "init", "dev_perplexity": 50.0, "dev_bits_per_byte": 2.0},
        {"stage": "warm start", "fold": 0, "dev_perplexity": 50.0, **fold},
        {"stage": "train 1", "fold": 1, "dev_perplexity": 30.0, **fold},
        {"stage": "train 2", "fold": 2, "dev_perplexity": 20.0, **fold},
        {"stage": "train 3", "fold": 3, "dev_perplexity": 25.0, **fold, "best": False},
    ]
    card = model_card(lm, "x")
    assert "then trained by backpropagation" in card
    assert [line.split(" | ")[0] for line in card.splitlines() if line.endswith("0000 |")] == [
        "| init",
        "| warm start",
        "| train 2",
    ]
    lm.log_ = []
    assert "perplexity" not in model_card(lm, "x")


def run(*arguments):
    with pytest.raises(SystemExit) as exit:
        main([str(argument) for argument in arguments])
    return exit.value.code


def test_command(small_lm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_lm.save("model")
    assert run("export", "model", "--to", "hf", "--out", "hf") == 0
    assert "trust_remote_code=True" in capsys.readouterr().out
    first = contents(tmp_path / "hf")
    assert run("export", "model", "--out", "hf", "--force", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["out"] == "hf"
    assert facts["bytes"] == sum(path.stat().st_size for path in (tmp_path / "hf").iterdir())
    assert facts["parameters"] == small_lm.parameters_
    assert run("export", "model", "--to", "hf", "--out", "hf") == 2
    assert "not empty" in capsys.readouterr().err
    assert run("export", "model", "--out", "hf", "--force") == 0
    assert contents(tmp_path / "hf") == first
    assert run("export", "hf", "--out", "again/hf") == 0  # an export can be exported
    assert contents(tmp_path / "again" / "hf") == first
    (tmp_path / "hf" / "notes.txt").write_text("mine")
    assert run("export", "model", "--out", "hf", "--force") == 2
    assert "notes.txt" in capsys.readouterr().err
    assert (tmp_path / "hf" / "notes.txt").read_text() == "mine"
    assert run("export", "model", "--out", ".", "--force") == 2
    assert run("export", "nowhere", "--out", "new") == 2
    assert run("export", "model", "--to", "onnx", "--out", "new") == 2
    assert not (tmp_path / "new").exists()
    capsys.readouterr()
    assert run("info", "again/hf") == 0
    (tmp_path / "dev.txt").write_text("\n".join(sentences(2, 5)))
    assert run("eval", "again/hf", "dev.txt") == 0
    assert "trigram" in capsys.readouterr().out


def test_folder_saved_by_transformers_is_not_replaced(small_lm, folders, tmp_path, capsys):
    model = load_model(folders["network"])
    model.save_pretrained(tmp_path / "tuned")
    small_lm.save(tmp_path / "model")
    assert run("info", tmp_path / "tuned") == 2  # no tokenizer was saved there
    assert "tokenizer.json is missing" in capsys.readouterr().err
    assert run("export", tmp_path / "model", "--out", tmp_path / "tuned", "--force") == 2
    assert (tmp_path / "tuned" / "model.safetensors").exists()
