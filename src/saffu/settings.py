"""Settings as small frozen dataclasses: a one-line description per field, checked when made, to and from JSON.

The command line's options and config.json are made from these classes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from saffu.errors import SaffuError

C = TypeVar("C", bound="Settings")


def setting(
    default: Any,
    meaning: str,
    *,
    low: float | None = 0,
    high: float = math.inf,
    off: bool = False,
    rare: bool = False,
    derived: bool = False,
    option: str = "",
) -> Any:
    """A field with its description and its limits, low ≤ value ≤ high; `off` also allows 0.

    A `rare` setting does not get a command-line option of its own; pass it as --set name=value. One that is `derived`
    from the others and from the text is only stored. Another is shown as an option of its own name or of the name
    `option`; then both work.
    """
    metadata = {"meaning": meaning, "low": low, "high": high, "off": off, "rare": rare, "derived": derived}
    metadata["option"] = option
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """Base of all settings classes: checks values when made.

    >>> @dataclass(frozen=True)
    ... class Shape(Settings):
    ...     order: int = setting(5, "length of the longest n-gram", low=2, high=8)
    >>> Shape(order=9)
    Traceback (most recent call last):
    saffu.errors.SaffuError: `order` is 9; it must be an integer from 2 to 8
    """

    preset: ClassVar[str] = ""  # the name of the solution that these settings choose, if they choose one

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for entry in fields(self):
            value = _plain(getattr(self, entry.name))
            object.__setattr__(self, entry.name, value)
            if problem := _problem(kinds[entry.name], value, entry.metadata):
                raise SaffuError(f"`{entry.name}` is {value!r}; it must be {problem}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls: type[C], values: dict[str, Any]) -> C:
        names = [entry.name for entry in fields(cls)]
        for name in values:
            if name not in names:
                raise SaffuError(f"unknown setting {name!r}; there are {', '.join(names)}")
        return cls(**values)


def _plain(value: Any) -> Any:
    """Convert a NumPy number to Python's."""
    if isinstance(value, bool | int | float):
        return value
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


def _problem(kind: Any, value: Any, limits: Any) -> str:
    """What a value must be instead; empty if it is fine."""
    if type(None) in get_args(kind):  # such as `int | None`
        if value is None:
            return ""
        kind = next(choice for choice in get_args(kind) if choice is not type(None))
    if get_origin(kind) is Literal:
        return "" if value in get_args(kind) else " or ".join(str(choice) for choice in get_args(kind))
    if kind is bool or kind is str:
        return "" if type(value) is kind else {bool: "true or false", str: "a string"}[kind]
    low = limits["low"]
    high = limits["high"]
    off = limits["off"]
    right_kind = type(value) is int if kind is int else isinstance(value, int | float) and not isinstance(value, bool)
    within = right_kind and (low is None or value >= low) and value <= high and math.isfinite(value)
    if within or (right_kind and off and value == 0):
        return ""
    bounds = f" from {_bound(low)} to {_bound(high)}" if high < math.inf else f" of at least {_bound(low)}"
    return f"{'an integer' if kind is int else 'a number'}{bounds}{', or 0 for none' if off else ''}"


def _bound(limit: float) -> str:
    """Format a limit, with all digits if it is an integer: 16777216, 0.95."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"
