"""The paper's network of self-attentive feed-forward units and its explicit solution. See also `reference/paper.py`.

`saffu.paper.ExplicitClassifier`, `solve_head`, and `SAFFU` are the general result, for other features than text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saffu.errors import SaffuError, install_command

if TYPE_CHECKING:
    from saffu.paper.layers import SAFFU, ExplicitClassifier, solve_head

__all__ = ["SAFFU", "ExplicitClassifier", "solve_head"]


def __getattr__(name: str) -> Any:
    """Import on first use: settings of the paper's models need neither torch nor scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"module 'saffu.paper' has no attribute {name!r}")
    try:
        from saffu.paper import layers
    except ModuleNotFoundError as error:
        message = f"saffu.paper.{name} needs {error.name}; install it with `{install_command('paper')}`"
        raise SaffuError(message) from None
    return getattr(layers, name)
