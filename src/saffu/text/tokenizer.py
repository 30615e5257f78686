"""Byte-pair encoding learned from word types, lossless for any bytes.

Three steps: count words, merge pairs until every new merge would be seen once, keep the merges that frequent
words need. A word is a piece of GPT-2's pre-tokeniser and keeps its leading space.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from saffu.errors import SaffuError

PAD, SOD, FRG, EOD = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<sod>", "<frg>", "<eod>")
COUNT_BY = ("types", "tokens")

FULL_SIZE_LIMIT = 2**17  # the library allocates this many tokens at once, so it cannot be unbounded
COUNTED_LIMIT = 2**21  # distinct words held while counting; beyond it those seen once are forgotten
LONGEST_WORD = 256  # bytes; longer runs are data rather than words, and teach nothing

Merge = tuple[str, str]

# Byte-level BPE writes each byte as a visible character: itself, or one from U+0100 on ("Ġ" is the space).
_VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = sorted(set(range(256)) - _VISIBLE)
BYTE_CHARACTERS = [chr(byte if byte in _VISIBLE else 256 + _HIDDEN.index(byte)) for byte in range(256)]
BYTES = {character: bytes([byte]) for byte, character in enumerate(BYTE_CHARACTERS)}

_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

# No word goes on from a visible character to white space, so text may be cut there and each chunk split once,
# however often it occurs. To the pre-tokeniser, unlike Python, U+001C–U+001F are not white space.
_CHUNK = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|\s+")
_UNDECODABLE = re.compile("([\udc80-\udcff]+)")


class Tokenizer:
    """Text to token ids and back: ids 0–3 are the special tokens, then the 256 bytes, then the merges."""

    full_size: int | None = None  # of the vocabulary before merges were dropped; known after training only

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.encode_special_tokens = True  # "<eod>" in a text is five characters, never the token
        self._backend = backend
        ids = backend.get_vocab()
        self._names = {id: token for token, id in ids.items()}
        self._pieces = {
            id: b"" if token in SPECIAL_TOKENS else b"".join(BYTES[character] for character in token)
            for id, token in self._names.items()
        }
        self._byte_ids = [ids[character] for character in BYTE_CHARACTERS]

    @classmethod
    def train(
        cls,
        documents: Iterable[str],
        *,
        words: int = 2**17,
        kept_words: int | None = 2**12,
        count_by: str = "types",
    ) -> "Tokenizer":
        """Learn merges from the most frequent `words`, and keep those the most frequent `kept_words` need.

        Counting by types, each word counts once; by tokens, as often as it occurs. With kept_words 0 or None
        all merges stay.
        """
        return cls.from_counts(count_words(documents), words=words, kept_words=kept_words, count_by=count_by)

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], *, words: int, kept_words: int | None, count_by: str
    ) -> "Tokenizer":
        """What `train` learns from documents with these counts of words."""
        if count_by not in COUNT_BY:
            raise SaffuError(f"unknown way to count words {count_by!r}; choose one of {', '.join(COUNT_BY)}")
        if words < 1 or (kept_words or 0) < 0:
            raise SaffuError(f"cannot learn from {words} words and keep {kept_words}; give positive numbers")
        if not counts:
            raise SaffuError("the corpus has no words to learn a vocabulary from; give it some text")
        frequent = most_frequent(counts, words)
        repeats = [1 if count_by == "types" else counts[word] for word in frequent]
        merges = learn_merges(dict(zip(frequent, repeats, strict=True)))
        kept = needed_merges(merges, frequent[:kept_words]) if kept_words else merges
        tokenizer = cls.from_merges(kept)
        tokenizer.full_size = len(vocabulary(merges))
        return tokenizer

    @classmethod
    def from_merges(cls, merges: Sequence[Merge]) -> "Tokenizer":
        """The tokenizer that makes these merges, in this order."""
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary(merges), merges=list(merges)))
        backend.pre_tokenizer = _WORDS
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(list(SPECIAL_TOKENS))
        return cls(backend)

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """The tokenizer that `to_json` wrote."""
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise SaffuError(f"the tokenizer is damaged ({error}); train it again or restore the file") from None
        backend.post_processor = None  # transformers may have left these behind
        backend.no_padding()
        backend.no_truncation()
        ids = backend.get_vocab()
        begins_with_ours = [ids.get(token) for token in SPECIAL_TOKENS] == [PAD, SOD, FRG, EOD]
        is_dense = sorted(ids.values()) == list(range(len(ids)))
        is_of_bytes = BYTES.keys() <= ids.keys() and BYTES.keys() >= set("".join(ids))
        if not (begins_with_ours and is_dense and is_of_bytes):
            raise SaffuError(
                "the tokenizer is none of saffu's: special tokens or bytes are amiss; train one with saffu"
            )
        return cls(backend)

    def to_json(self) -> str:
        """The content of a tokenizer.json, which the `tokenizers` library loads too."""
        return str(self._backend.to_str())

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of the text's tokens, without markers."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, on all cores."""
        try:
            return [encoding.ids for encoding in self._backend.encode_batch_fast(texts)]
        except TypeError:  # the library's answer to lone surrogates
            raise SaffuError("a text to encode is not valid Unicode; use encode_bytes for raw bytes") from None

    def encode_bytes(self, data: bytes) -> list[int]:
        """The ids of any bytes: stretches of UTF-8 as text, each other byte as its own token."""
        stretches = _UNDECODABLE.split(data.decode("utf-8", "surrogateescape"))
        ids: list[list[int]] = [[]] * len(stretches)
        ids[::2] = self.encode_batch(stretches[::2])
        ids[1::2] = [[self._byte_ids[ord(escape) - 0xDC00] for escape in stretch] for stretch in stretches[1::2]]
        return list(chain.from_iterable(ids))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that were encoded; special tokens stand for none."""
        try:
            return b"".join([self._pieces[id] for id in ids])
        except KeyError as error:
            raise SaffuError(f"no token has the id {error}; ids run from 0 to {len(self) - 1}") from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text that was encoded, with U+FFFD where the tokens cut a character apart."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        """A token as people read it: " the", or "<eod>"."""
        return self.decode([id]) or self._names[id]


def count_words(documents: Iterable[str]) -> Counter[str]:
    """How often each word occurs, written in byte characters: ["a a."] → {"a": 1, "Ġa": 1, ".": 1}."""
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    for document in documents:
        chunks.update(_CHUNK.findall(document))
        if len(chunks) > COUNTED_LIMIT:
            _add_words(words, chunks)
            chunks.clear()
            if len(words) > COUNTED_LIMIT:
                words = Counter({word: count for word, count in words.items() if count > 1})
    _add_words(words, chunks)
    return words


def _add_words(words: Counter[str], chunks: Mapping[str, int]) -> None:
    for chunk, count in chunks.items():
        for word, _ in _WORDS.pre_tokenize_str(chunk):
            if len(word) <= LONGEST_WORD:
                words[word] += count


def most_frequent(counts: Mapping[str, int], number: int) -> list[str]:
    """The most frequent words, frequent first; of equally frequent ones the first in code point order."""
    return sorted(counts, key=lambda word: (-counts[word], word))[:number]


def learn_merges(counts: Mapping[str, int]) -> list[Merge]:
    """The merges of byte-pair encoding, made until every pair left occurs once."""
    backend = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=FULL_SIZE_LIMIT, min_frequency=2, initial_alphabet=BYTE_CHARACTERS, show_progress=False
    )
    backend.train_from_iterator(chain.from_iterable(repeat(word, count) for word, count in counts.items()), trainer)
    merges = json.loads(backend.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges]


def needed_merges(merges: Sequence[Merge], words: Iterable[str]) -> list[Merge]:
    """The merges that encoding the words takes, in their order: with these alone they are encoded the same.

    [("h", "e"), ("t", "he"), ("o", "n")] for ["the"] → [("h", "e"), ("t", "he")]
    """
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    used = {rank for word in words for rank in _ranks_used(word, ranks)}
    return [merges[rank] for rank in sorted(used)]


def _ranks_used(word: str, ranks: Mapping[Merge, int]) -> Iterator[int]:
    """Encode a word, the earliest merge first and the leftmost of equals, and tell which merges that took."""
    tokens = list(word)
    while True:
        candidates = [(ranks[pair], at) for at, pair in enumerate(pairwise(tokens)) if pair in ranks]
        if not candidates:
            return
        rank, at = min(candidates)
        tokens[at : at + 2] = ["".join(tokens[at : at + 2])]
        yield rank


def vocabulary(merges: Iterable[Merge]) -> dict[str, int]:
    """The id of each token: the special tokens, the 256 bytes, then what the merges make."""
    made = (left + right for left, right in merges)
    return {token: id for id, token in enumerate(dict.fromkeys(chain(SPECIAL_TOKENS, BYTE_CHARACTERS, made)))}
