"""Export to transformers: a model folder that `AutoModelForCausalLM` and `AutoTokenizer` load, and saffu too.

It is a model folder as `SaffuLM.save` writes it, with the same weights and tokenizer, byte for byte. What transformers
needs is added: keys in config.json, a modeling file that does not import saffu, and a model card.
"""

import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor

from saffu.model import SaffuLM
from saffu.tokenizer import EOD, FRG, PAD, SOD, SPECIAL_TOKENS
from saffu.views import views_of
from saffu.wording import number_of

MODELING = "modeling_saffu.py"
UNDERSTOOD = {"E", "W", "b", "U", "D", "M", "log_prior", "exponents", "prior", "classes", "counts"}
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
TOKEN_IDS = {"pad_token_id": PAD, "bos_token_id": SOD, "eos_token_id": EOD}


def export_hf(lm: SaffuLM, folder: str | Path) -> None:
    """Write a folder for transformers. Atomic."""
    files = {
        MODELING: resources.files("saffu.hf").joinpath(MODELING).read_bytes(),
        "generation_config.json": as_json(generation_settings(lm)),
        "tokenizer_config.json": as_json(tokenizer_settings()),
        "README.md": model_card(lm, Path(folder).resolve().name).encode(),
    }
    lm.save(folder, files, model_settings(lm))


def model_settings(lm: SaffuLM) -> dict[str, Any]:
    """What config.json says beyond saffu's own manifest."""
    module, model = Path(MODELING).stem, "SaffuForCausalLM"
    weights = lm.network_.state_dict()
    foreign = [name for name in weights if not UNDERSTOOD & set(name.split("."))]
    if foreign:
        raise NotImplementedError(f"{MODELING} does not know {foreign[0]}: its predictions would be wrong")
    settings: dict[str, Any] = {
        "architectures": [model],
        "auto_map": {"AutoConfig": f"{module}.SaffuConfig", "AutoModelForCausalLM": f"{module}.{model}"},
        "vocab_size": len(lm.tokenizer_),
        **TOKEN_IDS,
        "torch_dtype": "float32",  # newer releases of transformers read it as `dtype`
        "tokenizer_class": TOKENIZER_CLASS,  # older releases look for it here
        "tie_word_embeddings": False,
        "use_cache": False,
        "tensors": {name: shape_of(tensor) for name, tensor in weights.items()},
    }
    if lm.config.solution == "calibrated":
        settings["views"] = [asdict(view) for view in views_of(lm.config)]
    return settings


def shape_of(tensor: Tensor) -> list[Any]:
    """float32 (3, 2) → ["float32", 3, 2]"""
    return [str(tensor.dtype).removeprefix("torch."), *tensor.shape]


def generation_settings(lm: SaffuLM) -> dict[str, Any]:
    """No cache, and no markers: a network gives them a tiny probability, which `saffu generate` leaves out, too."""
    return {"_from_model_config": False, **TOKEN_IDS, "use_cache": False, "suppress_tokens": [PAD, SOD, FRG]}


def tokenizer_settings() -> dict[str, Any]:
    """The same ids as saffu's: "<eod>" in a text is five characters, never the token, and no token is added."""
    pad, sod, frg, eod = SPECIAL_TOKENS
    return {
        "tokenizer_class": TOKENIZER_CLASS,
        "pad_token": pad,
        "bos_token": sod,
        "eos_token": eod,
        "additional_special_tokens": [frg],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
    }


def as_json(settings: dict[str, Any]) -> bytes:
    return (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()


def model_card(lm: SaffuLM, name: str) -> str:
    """README.md: what the model is, the numbers of its log, and how to load it."""
    seen, solution = lm.trained_on_, lm.config.solution
    what = (
        "a calibrated product of counted views of the context: Kneser–Ney models of single tokens, of the nearest"
        " tokens together and of their classes, each with a measured exponent"
        if solution == "calibrated"
        else "a network of self-attentive feed-forward units (SAFFU) whose weights were solved from co-occurrences"
    )
    rows = scored_stages(lm.log_)
    trained = bool(rows and rows[-1].get("fold"))
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags:",
        "- saffu",
        "---",
        f"# {name}",
        "",
        f"A language model made by saffu: {what}" + (", then trained by backpropagation." if trained else "."),
        "",
        "| | |",
        "| --- | --- |",
        f"| parameters | {lm.parameters_:,} |",
        f"| vocabulary | {len(lm.tokenizer_):,} tokens, byte-level BPE |",
        f"| counted | {seen['tokens']:,} tokens, {number_of(seen['documents'], 'document')}, {seen['bytes']:,} bytes |",
        "",
    ]
    if rows:
        lines += ["On held-out text, from the log of its making; the last stage is this model:", ""]
        lines += ["| stage | perplexity | bits per byte |", "| --- | --- | --- |"]
        lines += [f"| {row['stage']} | {row['dev_perplexity']:.2f} | {row['dev_bits_per_byte']:.4f} |" for row in rows]
        lines += ["", "Perplexity is by token, `<eod>` included; bits per byte can be compared between models.", ""]
    return "\n".join(lines) + USAGE.format(name=name)


def scored_stages(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a log that led to the model: all stages of the fit, the start of backpropagation, its best fold."""
    scored = [row for row in log if "dev_perplexity" in row]
    best = [row for row in scored if row.get("best") and row["fold"]]
    return [row for row in scored if not row.get("fold")] + best[-1:]


USAGE = """
## Use
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained("{name}", trust_remote_code=True)
prompt = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, do_sample=True, max_new_tokens=40)[0]))
```
`modeling_saffu.py` runs on your machine; read it before you trust it. With saffu: `saffu.load("{name}")`.

A document begins with the first token of a row; put `tokenizer.bos_token_id` in front to have the first token predicted
as well. Documents end with `<eod>`. A context is short and nothing is cached, so `use_cache` has no effect.

## Limits
A small model of the last few words. It writes locally plausible text and understands nothing.
"""
