"""What scikit-learn and pickle need of an estimator; `SaffuLM` uses these functions as methods."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM


def set_params(self: SaffuLM, **parameters: Any) -> SaffuLM:
    """Change arguments of the constructor and discard everything learned."""
    fresh = type(self)(**self.get_params() | parameters)  # fails, if it does, before anything is discarded
    for name in [name for name in vars(self) if name.endswith("_")]:
        delattr(self, name)
    vars(self).update(vars(fresh))
    return self


def is_fitted(lm: SaffuLM) -> bool:
    """For `sklearn.utils.validation.check_is_fitted`."""
    return "model_" in vars(lm)


def tags(lm: SaffuLM) -> Any:
    """Tags for scikit-learn: this estimator takes strings, and no targets."""
    from sklearn.utils import InputTags, Tags, TargetTags

    inputs = InputTags(one_d_array=True, two_d_array=False, string=True)
    return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=inputs)


def shallow_copy(lm: SaffuLM) -> SaffuLM:
    """An independent model that shares the arrays of this one, which never change."""
    made = object.__new__(type(lm))
    vars(made).update(vars(lm))
    return made


def reduced(lm: SaffuLM) -> tuple[Any, ...]:
    """For `pickle`: a fitted model as the files of its folder, because models hold memory that cannot be pickled."""
    if not is_fitted(lm):
        return unfitted, (type(lm), lm.get_params())
    with tempfile.TemporaryDirectory(prefix="saffu-") as folder:
        lm.save(Path(folder) / "model")
        files = {path.name: path.read_bytes() for path in (Path(folder) / "model").iterdir()}
    return restored, (type(lm), lm.device, files)


def unfitted(kind: type[SaffuLM], parameters: Mapping[str, Any]) -> SaffuLM:
    """The model with these arguments of the constructor."""
    return kind(**parameters)


def restored(kind: type[SaffuLM], device: str, files: Mapping[str, bytes]) -> SaffuLM:
    """The model whose folder holds these files, read into memory."""
    with tempfile.TemporaryDirectory(prefix="saffu-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        lm = kind.load(folder, device, check=True)
        for name in ("statistics_", "ledger_"):  # otherwise read on first use
            getattr(lm, name)
        lm.folder = None
    return lm
