"""The kind of error a user can cause."""


class SaffuError(ValueError):
    """One line that says what is wrong and what to do about it; the command prints it and exits with 2.

    A setting or an argument stands in backquotes: `top_k`. The command shows it as it was typed: --top-k.
    """


class NotFittedError(SaffuError, AttributeError):
    """Something learned was asked of a model that has not been fitted."""
