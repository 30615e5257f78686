"""The state of a training run as two files of the model folder: JSON for facts, safetensors for arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from saffu import files
from saffu.errors import SaffuError
from saffu.files import Content
from saffu.interface import Array

FACTS, ARRAYS = "checkpoint.json", "checkpoint.safetensors"
LARGEST = 2**53  # of an integer

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that a run needs, in addition to the best model so far, to continue from where it stands."""

    progress: Mapping[str, Any]
    source: Any  # where the text came from, as the caller described it
    text: Mapping[str, str]  # fingerprints of the corpora
    device: str
    arrays: Mapping[str, Array]  # of the weights being trained and of the optimizer
    settings: Mapping[str, Any] | None = None  # of the run, unless they are in the model's config

    def files(self) -> dict[str, Content]:
        """The files to store in the model folder, by name."""
        facts = {"progress": self.progress, "source": self.source, "text": self.text, "device": self.device}
        if self.settings is not None:
            facts["settings"] = self.settings
        return {FACTS: (json.dumps(facts, indent=2) + "\n").encode(), ARRAYS: self.arrays}


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the checkpoint of a model folder."""
    manifest = files.read_manifest(folder)
    if not files.holds(manifest, FACTS):
        raise SaffuError(
            f"{folder} has nothing to resume: its training is complete or never began; "
            "to train longer, start again with more time, or train it further on new text with `saffu update`"
        )
    try:
        facts = json.loads(files.read_file(folder, FACTS, manifest))
        if type(facts["progress"]["steps"]) is not int or type(facts["device"]) is not str:
            raise TypeError("the number of steps or the device")
        return Checkpoint(
            facts["progress"],
            facts["source"],
            facts["text"],
            facts["device"],
            files.read_arrays(folder, ARRAYS, manifest),
            facts.get("settings"),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise SaffuError(f"{folder / FACTS} is damaged ({error}); train again") from None


def is_unfinished(folder: Path) -> bool:
    """Whether a model folder holds a run that has not ended."""
    return files.holds(files.read_manifest(folder), FACTS) and not read_checkpoint(folder).progress.get("ended")


def restored(kind: type[T], values: Any) -> T:
    """A dataclass as a checkpoint has it. Its values must have the right types, and numbers must not be negative.

    >>> @dataclass
    ... class Progress:
    ...     steps: int
    ...     best: float
    >>> restored(Progress, {"steps": 3, "best": 1.5})
    Progress(steps=3, best=1.5)
    >>> restored(Progress, {"steps": -3, "best": 1.5})
    Traceback (most recent call last):
    saffu.errors.SaffuError: the checkpoint is damaged (`steps` is -3); train again
    """
    types = get_type_hints(kind)
    made = {}
    try:
        for name, value in dict(values).items():
            made[name] = restored(types[name], value) if is_dataclass(types[name]) else value
            if not (is_dataclass(types[name]) or _fits(types[name], value)):
                raise TypeError(f"`{name}` is {str(value)[:40]}")
            if get_origin(types[name]) is tuple:
                made[name] = tuple(value)
        return kind(**made)
    except (KeyError, TypeError, ValueError) as error:
        raise SaffuError(f"the checkpoint is damaged ({error}); train again") from None


def _fits(kind: Any, value: Any) -> bool:
    if get_origin(kind) is tuple:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if type(None) in get_args(kind):
        return value is None or _fits(get_args(kind)[0], value)
    if kind is int:
        return type(value) is int and 0 <= value < LARGEST
    return type(value) in (int, float) and value >= 0 if kind is float else type(value) is kind
