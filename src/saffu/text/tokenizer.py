"""Byte-level byte-pair encoding, lossless for any bytes.

Training takes three steps: count words, merge the most frequent pair until no pair occurs twice, and keep the merges
that frequent words need. A word is a piece of GPT-2's pre-tokenizer and keeps its leading space.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from saffu.errors import SaffuError
from saffu.format import progress_bar
from saffu.settings import Settings, setting

PAD, SOD, FRG, EOD = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<sod>", "<frg>", "<eod>")
UNKNOWN = "<unk>"  # a token of word-level vocabularies only
MOST_WORDS = 2**16 - EOD - 2  # of word-level vocabularies: an id takes two bytes
SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
_SPACELESS = re.compile(f"[{SPACELESS}]")

FULL_SIZE_LIMIT = 2**17  # the library allocates this many tokens at once, so it cannot be unbounded
COUNTED_LIMIT = 2**21  # distinct words held while counting; beyond it, those seen once are dropped
LONGEST_WORD = 256  # bytes; longer runs are skipped, because they are data rather than words
REPEATED = 1000  # times a word is repeated in one text

Merge = tuple[str, str]

# Byte-level BPE writes each byte as a visible character: itself, or one from U+0100 on ("Ġ" is the space).
_VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = sorted(set(range(256)) - _VISIBLE)
BYTE_CHARACTERS = [chr(byte if byte in _VISIBLE else 256 + _HIDDEN.index(byte)) for byte in range(256)]
BYTES = {character: bytes([byte]) for byte, character in enumerate(BYTE_CHARACTERS)}

_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

# No word continues from a visible character into white space, or from ASCII letters into other ASCII characters, so
# text may be cut there, and each distinct chunk needs to be split only once. For the pre-tokenizer, unlike Python,
# U+001C–U+001F are not white space.
_CHUNK = re.compile(r" ?[A-Za-z]+(?![A-Za-z\x80-\U0010ffff])|[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|\s+")
# The pre-tokenizer's own words, if a text is ASCII: shorter than chunks, and more of them occur again.
_ASCII_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
KNOWN_CHARACTERS = 1 << 20  # of chunks whose ids are remembered
PIECE = 1 << 16  # characters of a long text that are processed at a time
FARTHEST = 1 << 18  # characters beyond those in which a boundary of words is looked for
_SAFE_CUT = re.compile(r"(?<=[A-Za-z0-9,.]) (?=[A-Za-z])")  # a boundary of words, whatever the context
_UNDECODABLE = re.compile("([\udc80-\udcff]+)")


@dataclass(frozen=True)
class TokenizerConfig(Settings):
    """How a tokenizer is learned."""

    bpe_words: int = setting(2**17, "number of frequent words that merges are learned from", low=1, rare=True)
    bpe_kept_words: int = setting(
        2**12, "number of frequent words whose merges are kept; 0 keeps all merges", rare=True
    )
    bpe_count: Literal["tokens", "types"] = setting("tokens", "count a word as often as it occurs, or once", rare=True)
    words_as_tokens: bool = setting(False, "use words as tokens; rare ones become <unk>")
    min_word_count: int = setting(2, "how often a word must occur to be a token", low=1)


class Tokenizer:
    """Text to token ids and back: ids 0–3 are the special tokens, then come the 256 bytes, then the merges."""

    settings: TokenizerConfig | None = None  # that it was learned with, unless it was read from a file

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.encode_special_tokens = True  # "<eod>" in a text is five characters, never the token
        self._backend = backend
        self._known: dict[str, list[int]] = {}  # ids of chunks of text
        self._known_characters = 0
        ids = backend.get_vocab()
        self._names = {id: token for token, id in ids.items()}
        self._pieces = {
            id: b"" if token in SPECIAL_TOKENS else b"".join(BYTES[character] for character in token)
            for id, token in self._names.items()
        }
        self._byte_ids = [ids[character] for character in BYTE_CHARACTERS]

    @classmethod
    def train(
        cls, texts: Iterable[str], config: TokenizerConfig | None = None, progress: str | None = None
    ) -> Tokenizer:
        """Learn a vocabulary from documents or from their lines: merges stay within words, so both give the same."""
        if isinstance(texts, str):
            raise SaffuError("a single string is not a collection of texts; pass a list of strings, such as [text]")
        config = config or TokenizerConfig()
        with progress_bar(progress, unit=" lines") as bar:
            counts = count_training_words(bar.through(texts), config)
        with progress_bar(progress and f"{progress}: merge pairs", unit=None):
            return cls.from_counts(counts, config)

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], config: TokenizerConfig) -> Tokenizer:
        """Learn a vocabulary from how often each word occurs: see `count_training_words`."""
        if not counts:
            raise SaffuError("the text has no words to learn a vocabulary from; add some text")
        learned = cls._learned(counts, config)
        learned.settings = config
        return learned

    @classmethod
    def _learned(cls, counts: Mapping[str, int], config: TokenizerConfig) -> Tokenizer:
        if config.words_as_tokens:  # those that occur often enough; all if none does
            repeated = {word: count for word, count in counts.items() if count >= config.min_word_count}
            return WordTokenizer(most_frequent(repeated or counts, MOST_WORDS))
        frequent = most_frequent(counts, config.bpe_words)
        merges = learn_merges({word: counts[word] if config.bpe_count == "tokens" else 1 for word in frequent})
        most = config.bpe_kept_words
        return cls.from_merges(needed_merges(merges, frequent[:most]) if most else merges)

    @classmethod
    def from_merges(cls, merges: Sequence[Merge]) -> Tokenizer:
        """Build a tokenizer with these merges, in this order."""
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary(merges), merges=list(merges)))
        backend.pre_tokenizer = _WORDS
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(list(SPECIAL_TOKENS))
        return cls(backend)

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Load a tokenizer that `to_json` wrote: rebuild it from its merges, so that nothing else can take effect."""
        try:
            model = json.loads(text)["model"]
            if model["type"] == "WordLevel":
                return WordTokenizer.from_vocabulary(model["vocab"])
            merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
            made = {left + right for left, right in merges}
            if model["vocab"] != vocabulary(merges) or made & {*SPECIAL_TOKENS} or not {*"".join(made)} <= BYTES.keys():
                raise SaffuError("not a saffu tokenizer (special or byte tokens are missing); train one with saffu")
            return cls.from_merges(merges)
        except SaffuError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise SaffuError(f"the tokenizer is damaged ({error}); train it again or restore the file") from None

    def to_json(self) -> str:
        """Write the content of a tokenizer.json, which the `tokenizers` library can load too."""
        return str(self._backend.to_str())

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Encode a text, without adding special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text. Words are looked up that were encoded before, which takes a fraction of the time."""
        known = self._known  # which another thread may replace
        try:
            chunks = [(_ASCII_WORD if str.isascii(text) else _CHUNK).findall(text) for text in texts]
            new = [chunk for chunk in dict.fromkeys(chain.from_iterable(chunks)) if chunk not in known]
            if new:
                known.update(zip(new, [encoding.ids for encoding in self._backend.encode_batch_fast(new)], strict=True))
        except TypeError:  # also the library's answer to lone surrogates
            require_strings(texts)
            raise SaffuError("the text is not valid Unicode; decode it with errors='replace'") from None
        self._known_characters += sum(map(len, new))
        if self._known_characters > KNOWN_CHARACTERS:
            self._known = {}
            self._known_characters = 0
        return [list(chain.from_iterable(map(known.__getitem__, own))) for own in chunks]

    def encode_bytes(self, data: bytes) -> list[int]:
        """Encode any bytes: stretches of UTF-8 as text, and every other byte as its own token."""
        stretches = _UNDECODABLE.split(data.decode("utf-8", "surrogateescape"))
        ids: list[list[int]] = [[]] * len(stretches)
        ids[::2] = self.encode_batch(stretches[::2])
        ids[1::2] = [[self._byte_ids[ord(escape) - 0xDC00] for escape in stretch] for stretch in stretches[1::2]]
        return list(chain.from_iterable(ids))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Decode to bytes, without special tokens."""
        try:
            return b"".join([self._pieces[id] for id in ids])
        except KeyError as error:
            raise SaffuError(f"no token has the id {error}; ids range from 0 to {len(self) - 1}") from None

    def decode(self, ids: Iterable[int]) -> str:
        """Decode to text, with U+FFFD where a character is cut apart."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        """Return a token as people read it: " the", or `<eod>`."""
        return self.decode([id]) or self._names[id]

    def name(self, id: int) -> str:
        """Return a token as tokenizer.json spells it: "Ġthe"."""
        return self._names[id]


class WordTokenizer(Tokenizer):
    """Words between white space as tokens, from a closed vocabulary: any other word is `<unk>`, which loses text.

    >>> words = WordTokenizer(["the", "cat"])
    >>> words.encode("the black cat"), words.decode([5, 4, 6])
    ([5, 4, 6], ' the <unk> cat')
    """

    def __init__(self, words: Sequence[str]) -> None:
        names = [*SPECIAL_TOKENS, UNKNOWN, *words]
        self._names = dict(enumerate(names))
        self._ids = {word: id for id, word in enumerate(names) if id > EOD}  # "<eod>" in a text is an unknown word
        self._pieces = {id: f" {name}".encode() if id > EOD else b"" for id, name in enumerate(names)}

    @classmethod
    def from_vocabulary(cls, ids: Mapping[str, int]) -> WordTokenizer:
        names = sorted(ids, key=lambda name: ids[name])
        if names[: EOD + 2] != [*SPECIAL_TOKENS, UNKNOWN] or [ids[name] for name in names] != [*range(len(names))]:
            raise SaffuError("not a saffu tokenizer (special tokens are missing); train one with saffu")
        return cls(names[EOD + 2 :])

    def to_json(self) -> str:
        ids = {name: id for id, name in self._names.items()}
        backend = tokenizers.Tokenizer(models.WordLevel(vocab=ids, unk_token=UNKNOWN))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return str(backend.to_str())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        require_strings(texts)
        return [[self._ids.get(word, EOD + 1) for word in text.split()] for text in texts]

    def encode_bytes(self, data: bytes) -> list[int]:
        return self.encode(data.decode("utf-8", "replace"))


def require_strings(texts: Sequence[str]) -> None:
    """Raise SaffuError unless all texts are strings."""
    for text in texts:
        if not isinstance(text, str):
            raise SaffuError(f"a text to encode is not a string but {type(text).__name__!r}; decode or convert it")


def count_training_words(texts: Iterable[str], config: TokenizerConfig) -> Counter[str]:
    """Count the words that a tokenizer is learned from; the counts of parts of a text add up."""
    if config.words_as_tokens:
        reserved = {*SPECIAL_TOKENS, UNKNOWN}  # a text that spells one of them has an unknown word there
        return Counter(word for text in texts for word in text.split() if word not in reserved)
    return count_bpe_words(texts)


def count_bpe_words(texts: Iterable[str]) -> Counter[str]:
    """Count words, written in byte characters: ["a a."] → {"a": 1, "Ġa": 1, ".": 1}."""
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    for text in texts:
        for piece in pieces(text) if len(text) > PIECE else (text,):
            chunks.update(_CHUNK.findall(piece))
        if len(chunks) > COUNTED_LIMIT:
            _add_words(words, chunks)
            chunks.clear()
            if len(words) > COUNTED_LIMIT:
                words = Counter({word: count for word, count in words.items() if count > 1})
    _add_words(words, chunks)
    return words


def is_spaceless(text: str) -> bool:
    """Whether a text has characters of a script without spaces.

    >>> is_spaceless("東京 2020"), is_spaceless("서울 2020")
    (True, False)
    """
    return _SPACELESS.search(text) is not None


def pieces(text: str) -> Iterator[str]:
    """Cut a long text between words, which changes no token; long data without a boundary is cut anywhere.

    >>> [len(piece) for piece in pieces("word " * 20_000)]
    [65539, 34461]
    """
    begin = 0
    while len(text) - begin > PIECE:
        cut = _SAFE_CUT.search(text, begin + PIECE, begin + PIECE + FARTHEST)
        end = cut.start() if cut else begin + PIECE + FARTHEST
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _add_words(words: Counter[str], chunks: Mapping[str, int]) -> None:
    for chunk, count in chunks.items():
        for word, _ in _WORDS.pre_tokenize_str(chunk):
            if len(word) <= LONGEST_WORD:
                words[word] += count


def most_frequent(counts: Mapping[str, int], number: int) -> list[str]:
    """The most frequent words, in order of frequency; ties are broken by code points."""
    return sorted(counts, key=lambda word: (-counts[word], word))[:number]


def learn_merges(counts: Mapping[str, int]) -> list[Merge]:
    """Learn byte-pair merges, until no pair occurs twice."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")  # which no word contains
    trainer = trainers.BpeTrainer(
        vocab_size=FULL_SIZE_LIMIT, min_frequency=2, initial_alphabet=BYTE_CHARACTERS, show_progress=False
    )
    repeated = (  # the library takes no counts, and many short texts are slow
        (word + " ") * min(REPEATED, count - done)
        for word, count in counts.items()
        for done in range(0, count, REPEATED)
    )
    backend.train_from_iterator(repeated, trainer)
    return [(left, right) for left, right in json.loads(backend.to_str())["model"]["merges"]]


def needed_merges(merges: Sequence[Merge], words: Iterable[str]) -> list[Merge]:
    """The merges that encoding the words uses, in their order; with these alone the words are encoded the same.

    >>> needed_merges([("h", "e"), ("t", "he"), ("o", "n")], ["the"])
    [('h', 'e'), ('t', 'he')]
    """
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    used = {rank for word in words for rank in _ranks_used(word, ranks)}
    return [merges[rank] for rank in sorted(used)]


def _ranks_used(word: str, ranks: Mapping[Merge, int]) -> Iterator[int]:
    """Encode a word, the earliest merge first and the leftmost of equals, and yield the ranks of the merges used."""
    tokens = list(word)
    while True:
        candidates = [(ranks[pair], at) for at, pair in enumerate(pairwise(tokens)) if pair in ranks]
        if not candidates:
            return
        rank, at = min(candidates)
        tokens[at : at + 2] = ["".join(tokens[at : at + 2])]
        yield rank


def vocabulary(merges: Iterable[Merge]) -> dict[str, int]:
    """The id of each token: the special tokens, the 256 bytes, then the tokens that merges make."""
    made = (left + right for left, right in merges)
    return {token: id for id, token in enumerate(dict.fromkeys(chain(SPECIAL_TOKENS, BYTE_CHARACTERS, made)))}
