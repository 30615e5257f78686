"""The kind of error a user can cause."""


class SaffuError(ValueError):
    """One line that states what is wrong and how to fix it; the command prints it and exits with status 2.

    Settings and arguments are in backquotes: `top_k`. The command shows them as they are typed: --top-k.
    """


class NotFittedError(SaffuError, AttributeError):
    """A learned attribute was requested from a model that has not been fitted."""
