"""Numbers and tokens as people read them."""


def plural(count: int, name: str) -> str:
    """A count with its noun, singular or plural.

    >>> plural(1, "document"), plural(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def show_token(token: str) -> str:
    """A token with its spaces visible and control characters escaped, so that no text can control a terminal.

    >>> show_token(" the\\x1b")
    '▁the\\\\x1b'
    """
    return "".join("▁" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in token)


def escape_controls(text: str) -> str:
    """Escape control characters other than newline and tab, so that no text can control a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
