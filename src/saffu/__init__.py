"""saffu: language models whose weights are counted, not trained."""

__version__ = "0.1.0"
