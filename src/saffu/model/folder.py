"""The model folder: a fitted model as config.json and its other files, and back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saffu import living, store
from saffu.config import SaffuConfig
from saffu.errors import SaffuError
from saffu.explicit import Counts
from saffu.ledger import Ledger
from saffu.network import Network
from saffu.ngram import NgramCounts
from saffu.product import Product
from saffu.tokenizer import Tokenizer

if TYPE_CHECKING:
    from saffu.model import SaffuLM


def write(lm: "SaffuLM", folder: Path, beside: Mapping[str, bytes], facts: Mapping[str, Any]) -> None:
    """Write all of a model, and the files `beside` it; further `facts` go into config.json. Atomic."""
    manifest = {
        "model_type": "saffu",
        "config": lm.config.to_dict(),
        "vocabulary": len(lm.tokenizer_),
        "parameters": lm.parameters_,
        "trained_on": lm.trained_on_,
        **facts,
    }
    counts = {"frequencies": lm.frequencies_}
    for layer, sums in lm.counts_.items():
        counts |= {f"{layer}.F": sums.F, f"{layer}.norm": sums.norm, f"{layer}.targets": sums.targets}
    weights = lm.network_.state_dict()
    if lm.config.store == "float16":
        weights = store.narrowed(weights)
    files: dict[str, Any] = {
        "model.safetensors": lambda: store.to_safetensors(weights),
        "tokenizer.json": lm.tokenizer_.to_json().encode(),
        "counts.safetensors": lambda: store.to_safetensors(counts),
        "log.jsonl": "".join(json.dumps(row) + "\n" for row in lm.log_).encode(),
    }
    if lm.references_ is not None and not living.views_hold_references(lm):
        references = lm.references_.tensors()
        files["ngrams.safetensors"] = lambda: store.to_safetensors(references)
    if lm.ledger_ is not None:
        entries = lm.ledger_.tensors()
        files["ledger.safetensors"] = lambda: store.to_safetensors(entries)
    store.write_folder(folder, manifest, files | dict(beside))


def read(kind: "type[SaffuLM]", folder: Path, device: str) -> "SaffuLM":
    """The model that `write` wrote, its checksums tested."""
    while True:
        manifest = store.read_manifest(folder)
        try:
            return _read(kind, folder, manifest, device)
        except SaffuError:
            if store.read_manifest(folder) == manifest:  # else it was replaced while it was read
                raise


def _read(kind: "type[SaffuLM]", folder: Path, manifest: dict[str, Any], device: str) -> "SaffuLM":
    try:
        config, vocabulary = SaffuConfig.from_dict(manifest["config"]), int(manifest["vocabulary"])
        trained_on = dict(manifest["trained_on"])
        if not all(isinstance(trained_on[key], int) for key in ("documents", "tokens", "bytes")):
            raise TypeError("trained_on")
    except (KeyError, TypeError, ValueError) as error:
        raise SaffuError(f"{folder / store.MANIFEST} is damaged ({error}); train again") from None

    def tensors(name: str) -> dict[str, Tensor]:
        return store.from_safetensors(store.read_file(folder, name, manifest), str(folder / name))

    tokenizer = Tokenizer.from_json(store.read_file(folder, "tokenizer.json", manifest).decode())
    if len(tokenizer) != vocabulary:
        raise SaffuError(
            f"{folder} has a tokenizer of {len(tokenizer)} tokens for a vocabulary of {vocabulary}; train again"
        )
    lm = kind(config, tokenizer=tokenizer, device=device)
    lm.tokenizer_, lm.trained_on_ = tokenizer, trained_on
    recorded = manifest["checksums"]  # an exported model that transformers saved again has no log and no counts
    log = store.read_file(folder, "log.jsonl", manifest).decode() if "log.jsonl" in recorded else ""
    lm.log_ = [json.loads(line) for line in log.splitlines()]
    half = (torch.float16, torch.bfloat16)  # as transformers may have saved them
    weights = {n: w.float() if w.dtype in half else w for n, w in tensors("model.safetensors").items()}
    try:
        lm.network_ = loaded_network(config, vocabulary, weights)
    except (RuntimeError, KeyError):
        raise SaffuError(f"{folder} has weights that do not fit its config.json; train again") from None
    lm.network_ = lm.network_.to(lm.device)
    counts = tensors("counts.safetensors") if "counts.safetensors" in recorded else {}
    if "frequencies" not in counts:
        unknown = torch.full((vocabulary,), torch.nan, dtype=torch.float64)
        counts["frequencies"] = lm.network_.frequencies() if isinstance(lm.network_, Product) else unknown
    lm.frequencies_ = counts.pop("frequencies")
    layers = dict.fromkeys(name.rsplit(".", 1)[0] for name in counts)
    lm.counts_ = {layer: Counts(*(counts[f"{layer}.{part}"] for part in ("F", "norm", "targets"))) for layer in layers}
    lm.references_ = lm.network_.references() if isinstance(lm.network_, Product) else None
    if "ngrams.safetensors" in recorded:
        lm.references_ = NgramCounts.from_tensors(tensors("ngrams.safetensors"))
    lm.ledger_ = None
    if "ledger.safetensors" in recorded:
        lm.ledger_ = Ledger.from_tensors(tensors("ledger.safetensors"))
    return lm


def loaded_network(config: SaffuConfig, vocabulary: int, weights: dict[str, Tensor]) -> Network | Product:
    """The network that has these weights."""
    if config.solution == "calibrated":
        return Product.from_state(config, weights)
    units = [name for name in ("block", "radius") if getattr(config, name)]
    network = Network(config, {name: weights[f"units.{name}.E"].float() for name in units}, vocabulary)
    network.load_state_dict(weights)
    return network
