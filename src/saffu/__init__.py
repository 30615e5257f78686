"""saffu: small language models of your own text, counted first and then, if you like, trained.

>>> import saffu
>>> saffu.preset("calibrated").preset
'calibrated'
>>> lm = saffu.SaffuLM().fit(["the cat sat on the mat", "the dog sat on the log"] * 20)
>>> lm.perplexity(["the cat sat on the mat"]) < 2
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from saffu.calibrated.config import CalibratedConfig
    from saffu.calibrated.storage import memory_limit
    from saffu.companion.config import CompanionConfig
    from saffu.errors import SaffuError
    from saffu.model.language_model import SaffuLM
    from saffu.model.solutions import preset
    from saffu.paper.config import PaperConfig, TrainingConfig
    from saffu.text.tokenizer import Tokenizer, TokenizerConfig
    from saffu.tools.generate import Sampling

__version__ = "0.3.0"
__all__ = [
    "CalibratedConfig",
    "CompanionConfig",
    "PaperConfig",
    "SaffuError",
    "SaffuLM",
    "Sampling",
    "Tokenizer",
    "TokenizerConfig",
    "TrainingConfig",
    "load",
    "memory_limit",
    "preset",
]

_MODULES = {
    "CalibratedConfig": "saffu.calibrated.config",
    "CompanionConfig": "saffu.companion.config",
    "PaperConfig": "saffu.paper.config",
    "SaffuError": "saffu.errors",
    "SaffuLM": "saffu.model.language_model",
    "Sampling": "saffu.tools.generate",
    "Tokenizer": "saffu.text.tokenizer",
    "TokenizerConfig": "saffu.text.tokenizer",
    "TrainingConfig": "saffu.paper.config",
    "memory_limit": "saffu.calibrated.storage",
    "preset": "saffu.model.solutions",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import saffu` and `saffu --help` are quick."""
    if name not in _MODULES:
        raise AttributeError(f"module 'saffu' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load(folder: str | Path, device: str = "cpu", check: bool = False) -> SaffuLM:
    """Load a model that `saffu train` or `SaffuLM.save` wrote; with `check`, verify the checksums of all its files."""
    from saffu.model.language_model import SaffuLM

    return SaffuLM.load(folder, device, check)
