"""The kind of error a user can cause, and the remedy for a missing package."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


class SaffuError(ValueError):
    """One line that states what is wrong and how to fix it; the command prints it and exits with status 2.

    Settings and arguments are in backquotes: `top_k`. The command shows them as they are typed: --top-k.
    """


class NotFittedError(SaffuError, AttributeError):
    """A learned attribute was requested from a model that has not been fitted."""


def install_command(extra: str) -> str:
    """Return the command that installs the packages of one of saffu's extras where this Python finds them.

    They are those that the installed package names. Where it names none, as in a checkout that has since gained the
    extra, the command installs the checkout again.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        entries = [re.fullmatch(r"([^;]+?)\s*;\s*extra == ['\"](.+)['\"]", entry) for entry in requires("saffu") or []]
    except PackageNotFoundError:
        entries = []
    packages = [f'"{entry[1]}"' for entry in entries if entry and entry[2] == extra] or [f'-e "{CHECKOUT}[{extra}]"']
    found = shutil.which("pip")
    is_own = found is not None and Path(found).parent == Path(sys.executable).parent
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    return " ".join(["pip" if is_own else f"{python} -m pip", "install", *packages])
