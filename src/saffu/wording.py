"""Words that every message needs."""


def number_of(things: int, name: str) -> str:
    """How many, with the name in its number.

    >>> number_of(1, "document"), number_of(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{things:,} {name}{'' if things == 1 else 's'}"
