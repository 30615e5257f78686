"""The state of a run of backpropagation as two files of the model folder, and back: JSON and safetensors only."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saffu import store
from saffu.config import TrainingConfig
from saffu.corpus import TokenCorpus
from saffu.errors import SaffuError

if TYPE_CHECKING:
    from saffu.train import Backprop

STATE, TENSORS = "training.json", "training.safetensors"


def fingerprint(corpus: TokenCorpus) -> str:
    """Tells whether a corpus is the one a run began with."""
    digest = hashlib.sha256(corpus.starts.numpy().tobytes())
    for chunk in corpus.ids.split(1 << 22):
        digest.update(chunk.numpy().tobytes())
    return digest.hexdigest()


def files(run: "Backprop") -> dict[str, Any]:
    """What a folder must hold, beside the model, for the run to go on from where it stands."""
    state = {
        "settings": run.settings.to_dict(),
        "progress": asdict(run.progress),
        "text": run.text,
        "fingerprint": run.fingerprint,
        "device": str(run.device),
    }
    tensors: dict[str, Tensor] = {f"network.{name}": weight for name, weight in run.network.named_parameters()}
    for number, moments in run.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": moment for name, moment in moments.items()}
    tensors["random_state"] = run.random_state()
    return {STATE: (json.dumps(state, indent=2) + "\n").encode(), TENSORS: store.to_safetensors(tensors)}


def read_state(folder: Path) -> dict[str, Any]:
    """training.json of a model folder, its settings made a TrainingConfig."""
    manifest = store.read_manifest(folder)
    if STATE not in manifest.get("checksums", {}) or not (folder / STATE).exists():
        raise SaffuError(
            f"{folder} holds no training to resume: it was made without backpropagation, or was stopped before "
            "that began; train again"
        )
    try:
        state: dict[str, Any] = json.loads(store.read_file(folder, STATE, manifest))
        state["settings"] = TrainingConfig.from_dict(state["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise SaffuError(f"{folder / STATE} is damaged ({error}); train again") from None
    return state


def restore(run: "Backprop", folder: Path, state: dict[str, Any]) -> None:
    """Bring a new run to where the saved one stood."""
    if run.fingerprint != state["fingerprint"]:
        raise SaffuError(f"the text is not the text that {folder} was trained on so far; name that text, or train anew")
    tensors = store.from_safetensors(
        store.read_file(folder, TENSORS, store.read_manifest(folder)), str(folder / TENSORS)
    )
    try:
        for name, value in state["progress"].items():
            setattr(run.progress, name, type(getattr(run.progress, name))(value))
        with torch.no_grad():
            for name, weight in run.network.named_parameters():
                weight.copy_(tensors.pop(f"network.{name}"))
        run.resumed_random_state = tensors.pop("random_state")
        optimizer = run.optimizer.state_dict()
        for key, moment in tensors.items():
            _, number, name = key.split(".")
            optimizer["state"].setdefault(int(number), {})[name] = moment
        run.optimizer.load_state_dict(optimizer)
    except (KeyError, ValueError, RuntimeError) as error:
        raise SaffuError(f"the training state in {folder} is damaged ({error}); train again") from None
