"""The state of a training run as two files of the model folder: JSON for facts, safetensors for arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saffu import files
from saffu.errors import SaffuError
from saffu.files import Content
from saffu.interface import Array
from saffu.training.config import TrainingConfig

FACTS, ARRAYS = "checkpoint.json", "checkpoint.safetensors"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that a run needs, in addition to the best model so far, to continue from where it stands."""

    progress: Mapping[str, Any]
    source: Any  # where the text came from, as the caller described it
    text: Mapping[str, str]  # fingerprints of the corpora
    device: str
    arrays: Mapping[str, Array]  # of the weights being trained and of the optimizer
    settings: TrainingConfig | None = None  # of the paper's network; a companion's are in its model's config

    def files(self) -> dict[str, Content]:
        """The files to store in the model folder, by name."""
        facts = {"progress": self.progress, "source": self.source, "text": self.text, "device": self.device}
        if self.settings:
            facts["settings"] = self.settings.to_dict()
        return {FACTS: (json.dumps(facts, indent=2) + "\n").encode(), ARRAYS: self.arrays}


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the checkpoint of a model folder."""
    manifest = files.read_manifest(folder)
    if FACTS not in manifest["checksums"]:
        raise SaffuError(
            f"{folder} has no checkpoint to resume: its network was not trained, or training had not started yet; "
            "train again"
        )
    try:
        facts = json.loads(files.read_file(folder, FACTS, manifest))
        return Checkpoint(
            facts["progress"],
            facts["source"],
            facts["text"],
            facts["device"],
            files.read_arrays(folder, ARRAYS, manifest),
            TrainingConfig.from_dict(facts["settings"]) if "settings" in facts else None,
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise SaffuError(f"{folder / FACTS} is damaged ({error}); train again") from None
