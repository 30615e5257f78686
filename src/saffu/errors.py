"""The one kind of error a user can cause."""


class SaffuError(ValueError):
    """One line that says what is wrong and what to do about it; the command prints it and exits with 2."""
