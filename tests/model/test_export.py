"""Exported models in transformers against saffu itself: the same tokens, the same probabilities, and back again."""

import atexit
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install torch")
os.environ["HF_HUB_OFFLINE"] = "1"
MODULES = tempfile.mkdtemp(prefix="saffu-modules-")  # where transformers copies modeling files to
atexit.register(shutil.rmtree, MODULES, ignore_errors=True)
os.environ["HF_MODULES_CACHE"] = MODULES  # read when transformers is imported
transformers = pytest.importorskip("transformers", reason="pip install transformers")
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoProcessor, AutoTokenizer  # noqa: E402

from companion_data import with_network  # noqa: E402
from conftest import CONFIGS, each, sentences  # noqa: E402
from reference import companion as reference  # noqa: E402
from saffu import CalibratedConfig, PaperConfig, SaffuError, SaffuLM, Tokenizer, load  # noqa: E402
from saffu.companion.config import CompanionConfig  # noqa: E402
from saffu.model.export import model_card  # noqa: E402
from saffu.text.tokenizer import EOD, FRG, PAD, SOD  # noqa: E402
from saffu.tools.generate import encode_prompt  # noqa: E402

transformers.utils.logging.disable_progress_bar()

KINDS = ("calibrated", "companion", "paper")
STRANGE = [
    "",
    "a  b   c ",
    "tab\there, CRLF\r\nhere\r\n\r\nand\n \t\nnewlines\n",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈, e\u0301 n\u0303 combining, ﷽, עברית, \u200b\ufeff",
    "NUL \x00\x00 and \x01\x1c\x7f\x85 bytes",
    "very long " * 5000 + "x" * 20_000,
    " leading and trailing ",
    "they ' ll don't we 've . , ! ? n't",  # what some decoders clean up
]


def load_model(folder: Path, **options):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options)


def load_tokenizer(folder: Path):
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def lm(kind, fitted, train_text, dev_text):
    return with_network(train_text, dev_text) if kind == "companion" else fitted(kind)


@pytest.fixture(scope="module")
def folder(lm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "hf"
    lm.export_hf(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_tokenizer(folder)


def saffu_log_probabilities(lm: SaffuLM, ids: list[int]) -> np.ndarray:
    """ln p of every token at the start of a document and after each of its tokens."""
    return lm.model_.next_log_probabilities([lm.model_.start(ids[:end]) for end in range(len(ids) + 1)])


@torch.no_grad()
def hf_log_probabilities(model, rows, **given) -> np.ndarray:
    return torch.log_softmax(model(input_ids=torch.tensor(rows), **given).logits, dim=-1).numpy()


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.allclose(found[..., EOD:], expected[..., EOD:], atol=1e-5, rtol=0)


def assert_same_model(lm: SaffuLM, model, texts: list[str]) -> None:
    for text in texts:
        ids = encode_prompt(lm.tokenizer_, text)
        found = hf_log_probabilities(model, [[SOD, *ids]])[0]
        assert_close(found, saffu_log_probabilities(lm, ids))
        if ids:
            assert_close(hf_log_probabilities(model, [ids])[0], found[1:])
            nll = -found[np.arange(len(ids) + 1), [*ids, EOD]].astype(np.float64).sum()
            assert nll == pytest.approx(lm.score([text]).nll, rel=1e-5)


def documents(dev_text: list[str]) -> list[str]:
    """Shorter than any window, longer than a block, several lines, and strange."""
    return ["", "the", *dev_text[:3], " ".join(dev_text[:6]), "\n".join(dev_text[:3]), STRANGE[3]]


def test_same_log_probabilities(lm, model, dev_text):
    assert_same_model(lm, model, documents(dev_text))


@each(
    "config",
    [
        PaperConfig(block=0, radius=4, radius_dimension=12, hidden_dimension=32),
        PaperConfig(block=8, radius=0, block_dimension=12, hidden_dimension=32),
        PaperConfig(block=8, radius=4, block_mode="cat", radius_mode="sum", hidden_dimension=32, document_shards=5),
        PaperConfig(block=8, radius=4, block_dimension=12, hidden_dimension=32, document_shards=0),
        CalibratedConfig(order=2, slots=2, word_classes=5, output_classes=4),
        CompanionConfig(order=2, slots=2, word_classes=5, output_classes=4, epochs=1),  # before its network is trained
    ],
)
def test_shapes(config, train_text, dev_text, tmp_path):
    lm = SaffuLM(config, tokenizer=Tokenizer.train(train_text)).fit(train_text[:200])
    lm.save(tmp_path / "model")
    load(tmp_path / "model").export_hf(tmp_path / "hf")
    assert_same_model(load(tmp_path / "model"), load_model(tmp_path / "hf"), documents(dev_text)[:5])
    base = AutoModel.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    assert base(torch.tensor([[SOD, 40]])).last_hidden_state.shape == (1, 2, base.config.hidden_size)


def test_probabilities_of_markers_and_sums(model, lm, dev_text):
    logits = model(torch.tensor([[SOD, *lm.tokenizer_.encode(dev_text[0])]])).logits
    assert torch.allclose(logits.exp().sum(-1), torch.ones(logits.shape[:2]), atol=1e-5)
    assert torch.isfinite(logits).all()
    assert (logits[..., :EOD].exp() == 0).all()


def test_padding_and_masks(model, lm, dev_text):
    rows = [[SOD, *lm.tokenizer_.encode(text)] for text in dev_text[:4]]
    width = max(len(row) for row in rows) + 3
    alone = [hf_log_probabilities(model, [row])[0] for row in rows]
    for side in ("left", "right"):
        padded, mask = [], []
        for row in rows:
            gap = width - len(row)
            padded.append([PAD] * gap + row if side == "left" else row + [PAD] * gap)
            mask.append([0] * gap + [1] * len(row) if side == "left" else [1] * len(row) + [0] * gap)
        square = torch.tensor(mask)[:, None].repeat(1, width, 1).tril()  # as some fine-tuning code has it
        for given in ({"attention_mask": torch.tensor(mask)}, {"attention_mask": square}, {}):
            together = hf_log_probabilities(model, padded, **given)
            for row, logs, kept in zip(together, alone, mask, strict=True):
                assert_close(row[np.array(kept, dtype=bool)], logs)
    row, junk = rows[0], 77
    holes = [junk, *row[:2], junk, FRG, *row[2:], junk]
    mask = torch.tensor([[0, 1, 1, 0, 1, *[1] * (len(row) - 2), 0]])
    kept = (mask[0] == 1) & (torch.tensor(holes) != FRG)
    assert_close(hf_log_probabilities(model, [holes], attention_mask=mask)[0, kept], alone[0])


def test_sod_starts_a_document_and_eod_ends_a_line(model, lm, dev_text):
    one, other = (lm.tokenizer_.encode(text) for text in dev_text[:2])
    alone = hf_log_probabilities(model, [[SOD, *other]])[0]
    assert_close(hf_log_probabilities(model, [[*one, EOD, SOD, *other]])[0][-len(alone) :], alone)
    running = hf_log_probabilities(model, [[SOD, *one, EOD, *other]])[0]
    assert_close(running, saffu_log_probabilities(lm, [*one, EOD, *other]))
    assert not np.allclose(running[-len(alone) :], alone, atol=1e-3)


def test_ids_outside_the_vocabulary(model, lm):
    for id in (-1, len(lm.tokenizer_)):
        with pytest.raises(IndexError, match="token ids must be from 0 to"):
            model(torch.tensor([[id]]))


def test_loss_is_the_score(model, lm, dev_text):
    score = lm.score([dev_text[0]])
    row = torch.tensor([[SOD, *lm.tokenizer_.encode(dev_text[0]), EOD]])
    assert float(model(row, labels=row).loss) == pytest.approx(score.nll / score.targets, abs=1e-5)
    padded = torch.nn.functional.pad(row, (2, 3), value=PAD)
    assert float(model(padded, labels=padded).loss) == pytest.approx(score.nll / score.targets, abs=1e-5)
    loss, logits = model(row, labels=row, return_dict=False)
    assert loss.ndim == 0
    assert logits.shape == (1, row.shape[1], len(lm.tokenizer_))


def test_logits_to_keep(model):
    row = torch.tensor([[SOD, 40, 50, 60, 70], [SOD, 41, 51, 61, 71]])
    whole = model(row).logits
    assert torch.allclose(model(row, logits_to_keep=2).logits, whole[:, -2:], atol=1e-5)
    assert torch.allclose(model(row, logits_to_keep=torch.tensor([1, 3])).logits, whole[:, [1, 3]], atol=1e-5)
    assert torch.equal(model(row.int()).logits, whole)
    with pytest.raises(ValueError, match="token ids"):
        model(inputs_embeds=torch.zeros(1, 2, 3))


def test_greedy_generation_is_saffus(model, tokenizer, lm):
    for prompt in ("the", "a small"):
        given = tokenizer(prompt, return_tensors="pt")
        for use_cache in ({}, {"use_cache": True}):  # there is none, and asking for it changes nothing
            written = model.generate(**given, do_sample=False, max_new_tokens=12, **use_cache)[0]
            line = lm.generate(prompt, temperature=0, max_tokens=12)
            end = "\n" if written[-1] == EOD else ""
            assert tokenizer.decode(written, skip_special_tokens=True) == prompt + line + end


def test_what_was_generated_is_not_read_again(model, tokenizer, monkeypatch):
    """Each step advances one state of every text."""
    inner, advanced = model.predictor.model, []
    advance = inner.advance
    monkeypatch.setattr(inner, "advance", lambda state, token: advanced.append(token) or advance(state, token))
    model(torch.tensor([[SOD]]))  # whatever was read before is forgotten
    given = tokenizer(["the small", "a king found"], padding=True, return_tensors="pt")
    written = model.generate(**given, do_sample=False, max_new_tokens=8, min_new_tokens=8)
    read = int(given["attention_mask"].sum()) - 2  # without <sod>
    assert len(advanced) == read + 2 * 7
    whole = model(written, attention_mask=torch.nn.functional.pad(given["attention_mask"], (0, 8), value=1)).logits
    model(torch.tensor([[SOD]]))
    again = model(written, attention_mask=torch.nn.functional.pad(given["attention_mask"], (0, 8), value=1)).logits
    assert torch.allclose(whole, again, atol=1e-5)


def test_generation_from_nothing_in_batches_and_by_sampling(model, tokenizer):
    prompts = ["the small dog", "a", "the king found the"]
    together = model.generate(
        **tokenizer(prompts, padding=True, return_tensors="pt"), do_sample=False, max_new_tokens=6
    )
    for prompt, row in zip(prompts, together, strict=True):
        alone = model.generate(**tokenizer(prompt, return_tensors="pt"), do_sample=False, max_new_tokens=6)[0]
        assert tokenizer.decode(row, skip_special_tokens=True) == tokenizer.decode(alone, skip_special_tokens=True)
    torch.manual_seed(1)
    new = model.generate(torch.full((50, 1), SOD), do_sample=True, top_k=0, temperature=1.5, max_new_tokens=8)[:, 1:]
    after_end = ((new == EOD).cumsum(1) - (new == EOD).long()) > 0
    assert (new[~after_end] >= EOD).all()  # no marker is ever sampled
    assert (new[after_end] == PAD).all()
    assert len({tuple(row) for row in new.tolist()}) > 5
    assert model.generate(max_new_tokens=2)[0, 0] == SOD


def test_beams(model, tokenizer):
    """The score of the best sequence is its log-probability, and no less than that of the greedy one."""
    given = tokenizer("the small", return_tensors="pt")
    settings = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "length_penalty": 0.0}
    found = model.generate(
        **given, num_beams=4, num_return_sequences=4, return_dict_in_generate=True, output_scores=True, **settings
    )
    assert len({tuple(row) for row in found.sequences.tolist()}) == 4
    length = given["input_ids"].shape[1]

    def log_probability(row):
        return float(model(row[None]).logits[0, length - 1 : -1].gather(1, row[length:, None]).sum())

    greedy = model.generate(**given, **{**settings, "length_penalty": 1.0})[0]
    assert float(found.sequences_scores[0]) == pytest.approx(log_probability(found.sequences[0]), abs=0.02)
    assert log_probability(found.sequences[0]) >= log_probability(greedy) - 1e-4


def test_pipeline(folder):
    write = transformers.pipeline("text-generation", model=str(folder), trust_remote_code=True)
    (one,) = write("the old king", max_new_tokens=8, do_sample=False)
    assert one["generated_text"].startswith("the old king")
    several = write(["the", "a small dog"], max_new_tokens=4, do_sample=True, batch_size=2)
    assert [written["generated_text"][:3] for (written,) in several] == ["the", "a s"]


def test_tokenizer_is_saffus_after_sod(folder, tokenizer, lm):
    assert tokenizer.is_fast
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (PAD, SOD, PAD)
    assert len(tokenizer) == len(lm.tokenizer_)
    for text in STRANGE:
        ids = lm.encode(text)
        assert tokenizer(text)["input_ids"] == tokenizer.encode(text) == [SOD, *ids]
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        for skip in (False, True):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == text.replace("\r", "").replace("\n \t\n", "\n\n")
    assert list(tokenizer("the")) == ["input_ids", "attention_mask"]
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True, padding_side="right")
    assert processor(["the", "the old king"], padding=True)["input_ids"][0][-1] == PAD


def test_special_tokens_in_text_and_pairs(tokenizer, lm):
    (the,) = lm.tokenizer_.encode("the")
    assert tokenizer("<sod>the", add_special_tokens=False)["input_ids"] == [SOD, the]
    assert tokenizer(tokenizer.bos_token + "the")["input_ids"] == [SOD, SOD, the]
    assert tokenizer("the", "the")["input_ids"] == [SOD, the, EOD, the]
    offsets = tokenizer("the", return_offsets_mapping=True)["offset_mapping"]
    assert [tuple(pair) for pair in offsets] == [(0, 0), (0, 3)]


@pytest.fixture(scope="module")
def running(train_text):
    """A model of running text, in which most lines follow others."""
    return SaffuLM(CONFIGS["calibrated"]()).fit(["\n".join(train_text[at : at + 50]) for at in range(0, 600, 50)])


@pytest.fixture(scope="module")
def running_folder(running, tmp_path_factory):
    folder = tmp_path_factory.mktemp("running") / "hf"
    running.export_hf(folder)
    return folder


def test_text_of_several_lines_has_the_same_score(running, running_folder, dev_text):
    model, tokenizer = load_model(running_folder), load_tokenizer(running_folder)
    one, two, three = dev_text[:3]
    for text in (f"{one}\n{two}\n{three}", f"{one}\r\n\n \t\n{two}", f"  {one}\n\t{two}"):
        row = tokenizer(text + "\n", return_tensors="pt")["input_ids"]
        score = running.score([text])
        assert row.shape[1] - 1 == score.targets
        assert float(model(row, labels=row).loss) * score.targets == pytest.approx(score.nll, rel=1e-5)


def test_running_text_is_generated_beyond_the_end_of_a_line(running, running_folder):
    """Where lines are documents, a text ends with its line; in running text, lines follow."""
    model, tokenizer = load_model(running_folder), load_tokenizer(running_folder)
    assert model.generation_config.eos_token_id is None
    written = model.generate(**tokenizer("the\nold", return_tensors="pt"), do_sample=False, max_new_tokens=60)[0]
    text = tokenizer.decode(written, skip_special_tokens=True)
    assert len(written) == 64
    assert text.count("\n") > 2
    assert text == "the\nold" + running.generate("the\nold", temperature=0, max_tokens=60, lines=60)
    write = transformers.pipeline("text-generation", model=str(running_folder), trust_remote_code=True)
    (one,) = write("the\nold", max_new_tokens=60, do_sample=False, clean_up_tokenization_spaces=False)
    assert one["generated_text"] == text


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_export_is_a_model_folder_without_counts(folder, lm, dev_text):
    names = contents(folder).keys()
    assert not {"sums.safetensors", "ledger.safetensors"} & names
    loaded = load(folder, check=True)
    assert loaded.score(dev_text) == lm.score(dev_text)
    assert loaded.tokenizer_.to_json() == lm.tokenizer_.to_json()
    assert np.array_equal(loaded.frequencies_, lm.frequencies_)
    assert loaded.ledger_ is None
    assert loaded.model_.sums is None
    assert loaded.references_ is None
    assert (lm.model_.sums is None) == (lm.config.preset == "paper")  # exporting changes nothing
    for change in (loaded.update, loaded.forget):
        with pytest.raises(SaffuError, match=r"cannot be updated: it was exported|are solved once"):
            change(dev_text)


def test_saved_loaded_and_saved_again(folder, model, tokenizer, lm, tmp_path, dev_text):
    tokenizer(["a", "the old dog"], padding=True, truncation=True, max_length=8)  # its backend remembers that
    for half in (model, tokenizer):
        half.save_pretrained(tmp_path / "one")
    for half in (load_model(tmp_path / "one"), load_tokenizer(tmp_path / "one")):
        half.save_pretrained(tmp_path / "two")
    saved, again = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert saved.keys() == again.keys() > {"model.safetensors", "tokenizer.json", "config.json", "modeling_saffu.py"}
    assert {name for name in saved if saved[name] != again[name]} <= {"tokenizer_config.json"}
    assert saved["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert "checksums" not in json.loads(saved["config.json"])
    for check in (False, True):
        loaded = load(tmp_path / "one", check=check)
        assert loaded.tokenizer_.to_json() == lm.tokenizer_.to_json()
        assert loaded.score(dev_text[:5]) == lm.score(dev_text[:5])
        assert np.array_equal(loaded.frequencies_, lm.frequencies_)
    assert_same_model(lm, load_model(tmp_path / "two"), dev_text[:2])
    again = load_model(tmp_path / "two")
    again.save_pretrained(tmp_path / "two")  # onto itself
    assert contents(tmp_path / "two").keys() == saved.keys()


def test_casts_and_copies_change_nothing(folder, model, lm, dev_text):
    ids = torch.tensor([[SOD, *lm.tokenizer_.encode(dev_text[0])]])
    expected = model(ids).logits
    for other in (load_model(folder, torch_dtype=torch.float16), copy.deepcopy(model), copy.deepcopy(model).half()):
        assert torch.allclose(other(ids).logits, expected, atol=1e-5)  # documents are read in steps or at once
        assert other.dtype == torch.float32
        assert not other.training
    assert model.num_parameters() == lm.parameters_
    assert model.device == torch.device("cpu")
    assert list(model.state_dict()) == []


def test_hidden_states(folder, kind, lm, dev_text):
    base = AutoModel.from_pretrained(folder, trust_remote_code=True)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    ids = lm.tokenizer_.encode(dev_text[0])
    hidden = base(torch.tensor([[SOD, *ids]])).last_hidden_state
    assert hidden.shape == (1, len(ids) + 1, config.hidden_size)
    assert hidden.dtype == torch.float32
    padded = base(torch.tensor([[PAD, PAD, SOD, *ids]]), torch.tensor([[0, 0, *[1] * (len(ids) + 1)]]))
    assert torch.allclose(padded.last_hidden_state[:, 2:], hidden, atol=1e-6)
    assert torch.equal(base(torch.tensor([[SOD, *ids]]), return_dict=False)[0], hidden)
    assert not torch.allclose(hidden[0, -1], hidden[0, -2])
    if kind == "paper":
        parts = len(lm.config.units()) + 1  # the document model
        assert torch.allclose(hidden.sum(-1), torch.full(hidden.shape[:2], float(parts)), atol=1e-5)
        return
    if kind == "companion":
        expected = reference.hidden(lm.model_.networks.weights[0], [EOD, *ids])
        assert len(ids) < lm.config.context
        np.testing.assert_allclose(hidden[0], expected, atol=1e-5)
        return
    vectors = lm.model_.vectors()["company"]
    width = vectors.shape[1]
    last, mean = hidden[0, -1, -2 * width : -width].numpy(), hidden[0, -1, -width:].numpy()
    assert np.allclose(last, vectors[ids[-1]] * width**0.5, atol=1e-5)
    assert np.allclose(mean, vectors[ids].mean(0) * width**0.5, atol=1e-5)
    classes = lm.model_.encoder.output_classes
    p = np.exp(saffu_log_probabilities(lm, ids)[-1])
    share = (lm.frequencies_ + 1.0)[EOD:]
    k = int(classes[p.argmax()])
    inside = classes[EOD:] == k
    evidence = np.log(p[EOD:][inside].sum() / (share[inside].sum() / share.sum()))
    assert evidence > 0
    assert float(hidden[0, -1, k]) == pytest.approx(evidence, abs=1e-5)


def test_a_classifier_on_top_learns(folder, tokenizer):
    """Whether a sentence ends with an exclamation mark."""
    base = AutoModel.from_pretrained(folder, trust_remote_code=True)
    texts = sentences(3, 40)
    labels = torch.tensor([int(text.endswith("!")) for text in texts])
    torch.manual_seed(0)
    head = torch.nn.Sequential(torch.nn.LayerNorm(base.config.hidden_size), torch.nn.Linear(base.config.hidden_size, 2))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(head(base(**inputs).last_hidden_state[:, -1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (head(base(**inputs).last_hidden_state[:, -1]).argmax(1) == labels).all()


LOAD = """
import sys
{before}
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained({folder!r}, trust_remote_code=True)
ids = tokenizer({text!r}, return_tensors="pt").input_ids
print(float(model(ids, labels=ids).loss) * (ids.shape[1] - 1))
"""


def run_python(code: str, cache: Path) -> subprocess.CompletedProcess:
    settings = os.environ | {"HF_MODULES_CACHE": str(cache)}
    return subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True)


@pytest.mark.slow
def test_in_a_fresh_process(folder, lm, dev_text, tmp_path):
    done = run_python(LOAD.format(before="", folder=str(folder), text=dev_text[0]), tmp_path)
    assert done.returncode == 0, done.stderr
    ids = lm.tokenizer_.encode(dev_text[0])
    expected = -saffu_log_probabilities(lm, ids)[np.arange(len(ids)), ids].sum()
    assert float(done.stdout) == pytest.approx(expected, rel=1e-5)


HIDE_SAFFU = """
class Hider:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "saffu":
            raise ModuleNotFoundError("No module named 'saffu'")
sys.meta_path.insert(0, Hider())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["calibrated"], indirect=True)
def test_without_saffu_its_name_is_reported(folder, tmp_path):
    missing = run_python(LOAD.format(before=HIDE_SAFFU, folder=str(folder), text=""), tmp_path)
    assert missing.returncode == 1
    assert "not found in your environment: saffu" in missing.stderr


def test_model_card(lm, kind):
    card = model_card(lm, "my-model")
    assert card.startswith("---\nlibrary_name: transformers\n")
    row = lm.log_[-1]
    assert f"| {row['stage']} | {row['dev_perplexity']:.2f} | {row['dev_bits_per_byte']:.4f} |" in card
    assert f"| {lm.parameters_:,} |" in card
    assert f"{lm.trained_on_['tokens']:,} tokens" in card
    assert ("Kneser–Ney" in card) == (kind == "calibrated")


def test_model_card_of_a_trained_model(fitted):
    lm = copy.copy(fitted("paper"))
    fold = {"dev_bits_per_byte": 1.0, "best": True}
    lm.log_ = [
        {"stage": "init", "dev_perplexity": 50.0, "dev_bits_per_byte": 2.0},
        {"stage": "explicit start", "fold": 0, "dev_perplexity": 50.0, **fold},
        {"stage": "train 1", "fold": 1, "dev_perplexity": 30.0, **fold},
        {"stage": "train 2", "fold": 2, "dev_perplexity": 20.0, **fold},
        {"stage": "train 3", "fold": 3, "dev_perplexity": 25.0, **fold, "best": False},
    ]
    card = model_card(lm, "x")
    assert "then trained by backpropagation" in card
    shown = [line.split(" | ")[0] for line in card.splitlines() if line.endswith("0000 |")]
    assert shown == ["| init", "| explicit start", "| train 2"]
    lm.log_ = []
    assert "perplexity" not in model_card(lm, "x")


def test_only_models_that_predict_without_their_counts(fitted, tmp_path):
    with pytest.raises(SaffuError, match="cannot be exported without them"):
        fitted("toy").export_hf(tmp_path / "hf")


def test_command(fitted, saffu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted("paper").save("model")
    assert "trust_remote_code=True" in saffu("export model --to hf --out hf").out
    first = contents(tmp_path / "hf")
    facts = json.loads(saffu("export model --out hf --force --json").out)
    assert facts["out"] == "hf"
    assert facts["bytes"] == sum(map(len, first.values()))
    assert facts["parameters"] == fitted("paper").parameters_
    assert contents(tmp_path / "hf") == first
    again = saffu("export model --to hf --out hf")
    assert (again.status, "not empty" in again.err) == (2, True)
    (tmp_path / "hf" / "notes.txt").write_text("mine")
    assert "notes.txt" in saffu("export model --out hf --force").err
    assert (tmp_path / "hf" / "notes.txt").read_text() == "mine"
    assert saffu("export nowhere --out new").status == 2
    assert saffu("export model --to onnx --out new").status == 2
    assert not (tmp_path / "new").exists()
    (tmp_path / "dev.txt").write_text("\n".join(sentences(2, 5)))
    assert "cannot update, forget, or merge" in saffu("info hf").out
    assert saffu("eval hf dev.txt").status == 0
    refused = saffu("update hf dev.txt")
    assert (refused.status, "is an exported copy" in refused.err) == (2, True)


def test_a_calibrated_export_is_not_exported_again(fitted, saffu, tmp_path):
    fitted("calibrated").export_hf(tmp_path / "hf")
    refused = saffu(["export", tmp_path / "hf", "--out", tmp_path / "again"])
    assert (refused.status, "is an exported copy" in refused.err) == (2, True)


def test_checkpoints(tmp_path, monkeypatch):
    """The recipe of the page, with a thousandth of its words."""
    monkeypatch.chdir(tmp_path)
    text = sentences(1, 60)
    (tmp_path / "text.txt").write_text("".join(line + "\n" for line in text))
    lm = SaffuLM(CONFIGS["calibrated"]()).fit(text)
    lm.save("model")
    page = (Path(__file__).parents[2] / "docs" / "ecosystem.md").read_text("utf-8").split("## Checkpoints")[1]
    exec(page.split("```python\n")[1].split("```")[0].replace("1_000_000", "100"), {})
    ends = np.cumsum([len(line.split()) for line in text])
    names = [f"chck_{size}M" for size in range(1, ends[-1] // 100 + 1)]
    assert sorted(path.name for path in Path("checkpoints").iterdir()) == names
    counted = text[: np.searchsorted(ends, 100) + 1]
    first = load("checkpoints/chck_1M")
    assert first.trained_on_["tokens"] == lm.tokenize(counted).targets and first.config == lm.config
    ids = torch.tensor([load_tokenizer("checkpoints/chck_3M")("the dog")["input_ids"]])
    assert load_model("checkpoints/chck_3M")(ids).logits.shape == (1, ids.shape[1], len(lm.tokenizer_))
