"""Words where a script has no spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese.

With PyICU installed (the extra `icu`), words are those of ICU's dictionaries. Otherwise, each character is one,
together with the marks that follow it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any
from unicodedata import category

from saffu.text.tokenizer import SPACELESS

_LETTERS = rf"[^\W{SPACELESS}]+"  # of other scripts, and digits
_PIECE = rf"\s*(?:[{SPACELESS}]|{_LETTERS}(?:['’-]{_LETTERS})*|[^\w\s]+)|\s+"  # compiled on first use: 10 ms


def segments(text: str) -> list[str]:
    """The words of a text in such a script, as pieces that make up the text; white space belongs to what follows.

    >>> characters("東京 is大きい。")
    ['東', '京', ' is', '大', 'き', 'い', '。']
    """
    icu = _icu()
    pieces = characters(text) if icu is None else _dictionary_words(icu, text)
    if len(pieces) > 1 and pieces[-1].isspace():
        pieces[-2:] = ["".join(pieces[-2:])]
    return pieces


def characters(text: str) -> list[str]:
    """Each character of such a script on its own; words of other scripts and punctuation as they are."""
    pieces: list[str] = []
    for piece in re.findall(_PIECE, text):
        if pieces and category(piece[0])[0] == "M":
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces


def _dictionary_words(icu: Any, text: str) -> list[str]:
    breaks = icu.BreakIterator.createWordInstance(icu.Locale.getRoot())
    breaks.setText(text)
    units = text.encode("utf-16-le")  # which ICU counts in
    words: list[str] = []
    for begin, end in pairwise([0, *breaks]):
        piece = units[2 * begin : 2 * end].decode("utf-16-le")
        if words and words[-1].isspace():
            words[-1] += piece
        else:
            words.append(piece)
    return words


@lru_cache(maxsize=1)
def _icu() -> Any:
    try:
        return import_module("icu")
    except ImportError:
        return None
