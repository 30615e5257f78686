"""The size of the package: tokens are counted as documented, and stay within the budget."""

from lab import size


def test_docstrings_comments_and_line_ends_cost_nothing():
    plain = "def f(x):\n    return [x, f'{x}']\n"
    described = (
        '"""A module."""\n\n\ndef f(\n    x,\n):  # a comment\n    """Return a list."""\n    return [x, f\'{x}\']\n'
    )
    assert size.python_tokens(plain) == 12
    assert size.python_tokens(described) == 13  # the comma
    assert size.python_tokens("x = 'a string that is no docstring'") == 3


def test_the_package_is_within_its_budget():
    tokens = sum(map(size.tokens_of, size.files_of("src/saffu")))
    assert 100_000 < tokens <= size.budget(), f"{tokens:,} tokens: see `make size`"
