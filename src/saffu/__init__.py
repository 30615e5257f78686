"""saffu: language models whose weights are counted, not trained.

>>> import saffu
>>> lm = saffu.SaffuLM(saffu.SaffuConfig(block=16, radius=4)).fit(["the cat sat", "the dog sat"])
>>> lm.parameters_ > 0
True
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["PRESETS", "SaffuConfig", "SaffuError", "SaffuLM", "Sampling", "Tokenizer", "TrainingConfig", "load"]

if TYPE_CHECKING:
    from saffu.config import PRESETS, SaffuConfig, TrainingConfig
    from saffu.errors import SaffuError
    from saffu.generate import Sampling
    from saffu.model import SaffuLM
    from saffu.tokenizer import Tokenizer

_HOMES = {
    "PRESETS": "saffu.config",
    "SaffuConfig": "saffu.config",
    "SaffuError": "saffu.errors",
    "SaffuLM": "saffu.model",
    "Sampling": "saffu.generate",
    "Tokenizer": "saffu.tokenizer",
    "TrainingConfig": "saffu.config",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import saffu` and `saffu --help` do not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'saffu' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def load(folder: str, device: str = "cpu") -> "SaffuLM":
    """The model in a folder that `saffu train` or `SaffuLM.save` wrote."""
    from saffu.model import SaffuLM

    return SaffuLM.load(folder, device)
