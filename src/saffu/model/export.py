"""Export to transformers: a folder that `AutoModelForCausalLM`, `AutoModel`, and `AutoTokenizer` load, and saffu too.

An export is a saffu model folder without counts and ledger, plus what transformers needs: more keys in config.json, a
tokenizer that puts `<sod>` in front and reads newlines as `<eod>`, `modeling_saffu.py`, which calls saffu for
predictions, and a model card.
"""

from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers
from tokenizers.processors import TemplateProcessing

from saffu.commit import export
from saffu.errors import SaffuError
from saffu.files import Content
from saffu.model import folder as folders
from saffu.model.solutions import solution
from saffu.text.tokenizer import EOD, FRG, PAD, SOD, SPECIAL_TOKENS, Tokenizer, WordTokenizer
from saffu.tools.generate import uncounted

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM

MODULE = resources.files("saffu.model.transformers")
MODELING = "modeling_saffu.py"
SCORES = """
Scores on held-out text; the last stage is this model:

| stage | perplexity | bits per byte |
| --- | --- | --- |
{}
Perplexity is per token, `<eod>` included; bits per byte can be compared between models.
"""
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
NEWLINE = Regex(r"\r?\n(?:[^\S\n]+(?=\n))?")  # with the white space of a blank line after it, as in a corpus
VECTORS = "vectors.safetensors"  # token vectors of a calibrated model, which are made from counts that an export lacks


def export_hf(lm: SaffuLM, folder: str | Path) -> None:
    """Write a folder for transformers."""
    if isinstance(lm.tokenizer_, WordTokenizer):
        raise SaffuError("models of words cannot be exported to transformers; train without --words-as-tokens")
    folders.require_export(Path(folder))
    folders.verify_and_load(lm)
    model = lm.model_
    running = lm.scorer_.follows
    vectors = model.hidden_vectors()
    files: dict[str, Content] = {
        folders.TOKENIZER: tokenizer_json(lm.tokenizer_).encode(),
        MODELING: MODULE.joinpath(MODELING).read_bytes(),
        "generation_config.json": as_json(generation_settings(running, uncounted(lm.model_).tolist())),
        "tokenizer_config.json": as_json(tokenizer_settings()),
        "README.md": model_card(lm, Path(folder).resolve().name).encode(),
    }
    if vectors is not None:
        files[VECTORS] = {"vectors": vectors}
    settings = model_settings(
        len(lm.tokenizer_), model.hidden_size + (0 if vectors is None else 2 * vectors.shape[1]), running
    )
    folders.write(without_counts(lm), Path(folder), files, settings, export)


def without_counts(lm: SaffuLM) -> SaffuLM:
    """A copy that predicts the same, without the counts, n-grams, and ledger of the training text."""
    bare = copy.copy(lm)
    bare.model_ = lm.model_.without_counts()
    bare.ledger_ = None
    bare.statistics_ = folders.Statistics(lm.frequencies_, None)
    return bare


def token_ids(running: bool) -> dict[str, int | None]:
    """Special tokens by role. In running text, where most lines are followed by others, no token ends a text."""
    return {"pad_token_id": PAD, "bos_token_id": SOD, "eos_token_id": None if running else EOD}


def model_settings(vocabulary: int, hidden: int, running: bool) -> dict[str, Any]:
    """The keys of config.json in addition to saffu's own."""
    module = Path(MODELING).stem
    classes = {"AutoConfig": "SaffuConfig", "AutoModel": "SaffuModel", "AutoModelForCausalLM": "SaffuForCausalLM"}
    return {
        "architectures": [classes["AutoModelForCausalLM"]],
        "auto_map": {auto: f"{module}.{name}" for auto, name in classes.items()},
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        **token_ids(running),
        "tokenizer_class": TOKENIZER_CLASS,
        "tie_word_embeddings": False,
        "use_cache": False,
    }


def generation_settings(running: bool, never: list[int]) -> dict[str, Any]:
    settings = {"use_cache": False, "suppress_tokens": sorted({PAD, SOD, FRG, *never})}
    return {"_from_model_config": False, **token_ids(running), **settings}


def tokenizer_settings() -> dict[str, Any]:
    """`<sod>` and the other special tokens are recognized in text, as evaluation code expects.

    `<eod>` must not be the EOS token, which transformers leaves out of the text it decodes. lm_eval needs one, though,
    so it is `<pad>`, which nothing predicts.
    """
    pad, sod, frg, _ = SPECIAL_TOKENS
    return {
        "tokenizer_class": TOKENIZER_CLASS,
        "pad_token": pad,
        "bos_token": sod,
        "eos_token": pad,
        "additional_special_tokens": [frg],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
    }


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """saffu's tokenizer.json, with `<sod>` in front of a text, and `<eod>` for newlines and between texts of a pair.

    `<eod>` is text, not a special token that is left out of what is decoded: it is decoded as a newline.
    """
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    sod = SPECIAL_TOKENS[SOD]
    eod = SPECIAL_TOKENS[EOD]
    backend.normalizer = normalizers.Replace(NEWLINE, eod)
    backend.add_tokens([AddedToken(eod, normalized=True, special=False)])
    backend.decoder = decoders.Sequence([decoders.Replace(Regex(rf"\A{eod}\z"), "\n"), decoders.ByteLevel()])
    backend.post_processor = TemplateProcessing(
        single=f"{sod} $A", pair=f"{sod} $A {eod} $B", special_tokens=[(sod, SOD), (eod, EOD)]
    )
    return str(backend.to_str())


def as_json(settings: dict[str, Any]) -> bytes:
    return (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()


def model_card(lm: SaffuLM, name: str) -> str:
    """README.md: what the model is, the scores in its log, and how to load it."""
    rows = scored_stages(lm.log_)
    trained = ", then trained by backpropagation" if rows and rows[-1].get("fold") else ""
    scores = [f"| {row['stage']} | {row['dev_perplexity']:.2f} | {row['dev_bits_per_byte']:.4f} |\n" for row in rows]
    return Template(MODULE.joinpath("model_card.md").read_text("utf-8")).substitute(
        name=name,
        description=solution(lm.config.preset).description + trained,
        parameters=f"{lm.parameters_:,}",
        vocabulary=f"{len(lm.tokenizer_):,}",
        tokens=f"{lm.trained_on_['tokens']:,}",
        bytes=f"{lm.trained_on_['bytes']:,}",
        scores=SCORES.format("".join(scores)) if rows else "",
    )


def scored_stages(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a log that led to the model: the stages of the fit, and the best fold of backpropagation."""
    scored = [row for row in log if "dev_perplexity" in row]
    best = [row for row in scored if row.get("best") and row["fold"]]
    return [row for row in scored if not row.get("fold")] + best[-1:]
