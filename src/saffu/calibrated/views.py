"""What a calibrated model sees of a context: views, counted in the training text, and the memory of the document.

All views follow from the same counts. Kernels, reference, and explanations follow this file.

Every token of a document is predicted before it is read; then the memory counts it. It belongs to the reader of a
document, not to the model: it begins empty with each document, holds its last tokens up to the setting `cache`, and is
gone afterward. It has two kinds of parts:

    decayed unigrams   p_h = (c_h + STRENGTH f)/(Σ c_h + STRENGTH): a token's weight in c_h halves every h tokens
    contexts           p_m = (c_m + s p)/(Σ c_m + s): what followed the same tokens before; the counts of a context are
                       multiplied by `keep` each time it occurs, so that the latest follower counts most. Of the longest
                       match, c_m is the number of tokens that agree with its latest occurrence

where p is the prediction without the memory or, for a longer n-gram, the p_m of the shorter one. Features are ln(p_h/f)
and ln(1 + c_m/(s p)), so a context says nothing about what did not follow it.

Documents that are read online, one after the other as from a stream, have a second memory: the archive, of all text so
far. Its exponents begin at zero and are learned while reading; those of the document's memory are not reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.kernels import EVIDENCE, Array
from saffu.calibrated.ngrams import NgramCounts, Rows
from saffu.errors import SaffuError
from saffu.files import part_of
from saffu.interface import Floats
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import PAD


@dataclass(frozen=True)
class View:
    """What one part of the product sees: the tokens at some distances, exactly or by their class."""

    name: str
    distances: tuple[int, ...]  # nearest first
    classes: int = 0  # their number; 0 for the tokens themselves
    exact: int = 0  # number of nearest tokens that are seen exactly, not by class

    @property
    def is_slot(self) -> bool:
        return len(self.distances) == 1 and not self.classes

    def is_whole(self, order: int) -> bool:
        """Whether it sees all that is counted together, exactly."""
        return self.distances == tuple(range(1, order)) and not self.classes


NGRAM = "n-grams"
COARSER = 5  # fine classes per coarse one
FEW_STARTS = 64  # different tokens near the starts of documents

HALF_LIVES = (20, 150, 1000, 8000)  # tokens
STRENGTH = 5.0  # tokens that the prior is worth in decayed unigrams
AGES = (30, 200, 1500, 10_000)  # tokens of a document: the exponents of decayed unigrams depend on its age
MEMORY_EVIDENCE = 5  # exponents per part: by age, or by whether one or several outputs followed, and how often
ONE_FOLLOWER = (1.5, 3.0)
SEVERAL_FOLLOWERS = 5.0  # counts at which the exponent of a context changes
MATCHES = (7, 10, 16, 32)  # tokens that agree at which the exponent of a match changes
MOST_FOLLOWERS = 64  # of a context
RATE = 0.02  # of learning while reading
SMALLEST_SHARE = 1e-12  # that a prediction without the memory counts for


def views_of(config: CalibratedConfig) -> list[View]:
    """The slots, the n-grams, and coarser copies: of fine classes, of coarse ones, coarse after the nearest token.

    >>> for view in views_of(CalibratedConfig(order=4, slots=2, word_classes=30)):
    ...     print(view.name, view.distances)
    slot 1 (1,)
    slot 2 (2,)
    n-grams (1, 2, 3)
    n-grams (30 classes) (1, 2)
    n-grams (6 classes) (1, 2, 3)
    nearest token and 6 classes (1, 2, 3)
    """
    nearest = tuple(range(1, config.order))
    fine = config.word_classes
    coarse = config.word_classes // COARSER
    views = [View(f"slot {k}", (k,)) for k in range(1, config.slots + 1)]
    views.append(View(NGRAM, nearest))
    if fine:
        views.append(View(f"{NGRAM} ({fine} classes)", nearest[: max(1, len(nearest) - 1)], fine))
    if coarse > 1:
        views.append(View(f"{NGRAM} ({coarse} classes)", nearest, coarse))
        if len(nearest) > 1:
            views.append(View(f"nearest token and {coarse} classes", nearest, coarse, exact=1))
    return views


def far_distances(views: Iterable[View], order: int) -> list[int]:
    """The distances of slots that are counted as pairs, because n-grams of this order do not reach them."""
    return [view.distances[0] for view in views if view.is_slot and view.distances[0] >= order]


def exponent_slices(views: Sequence[View]) -> list[slice]:
    """Where the exponents of the prior, one, and of each view, EVIDENCE for each of its levels, are."""
    ends = np.cumsum([1, *(EVIDENCE * len(view.distances) for view in views)])
    return [slice(0, 1), *(slice(int(a), int(b)) for a, b in pairwise(ends))]


def rows_for_view(view: View, rows: Rows) -> Rows:
    """What a view saw, of whole buckets. With few documents, slots do not see what stands near the start of one."""
    starts = int(rows.offsets[PAD + 1]) if view.is_slot and rows.first == PAD < rows.last else 0
    if starts > FEW_STARTS:
        return rows
    offsets = np.maximum(rows.offsets - starts, 0)
    return Rows(rows.order, rows.first, offsets, rows.keys[starts:], rows.counts[starts:])


@dataclass(frozen=True, eq=False)
class CalibratedSums:
    """Raw counts: of n-grams, and of pairs of tokens farther apart than these reach. All views follow from them."""

    ngrams: NgramCounts
    pairs: Mapping[int, NgramCounts]  # by distance

    @classmethod
    def count(
        cls,
        corpus: TokenCorpus,
        config: CalibratedConfig,
        vocabulary: int,
        ranges: Array | None = None,
        views: Iterable[View] | None = None,
    ) -> CalibratedSums:
        """What `views` follow from in a corpus, or in some `ranges` (n, 2) of its targets."""
        ngrams = NgramCounts.count(corpus, config.order, vocabulary, ranges=ranges)
        far = far_distances(views_of(config) if views is None else views, config.order)
        return cls(ngrams, {d: NgramCounts.count(corpus, 2, vocabulary, [d], ranges) for d in far})

    def of(self, view: View, classes: Array | None = None) -> NgramCounts:
        """What a view saw."""
        if view.is_slot:
            near = view.distances[0] < self.ngrams.order
            pairs = self.ngrams.marginal(view.distances) if near else self.pairs[view.distances[0]]
            seen = rows_for_view(view, pairs)
            return NgramCounts(2, 0, seen.offsets, seen.keys, seen.counts)
        if view.is_whole(self.ngrams.order):
            return self.ngrams
        return self.ngrams.marginal(view.distances, classes, view.exact)

    def __add__(self, other: CalibratedSums) -> CalibratedSums:
        return CalibratedSums(self.ngrams + other.ngrams, {d: n + other.pairs[d] for d, n in self.pairs.items()})

    def __sub__(self, other: CalibratedSums) -> CalibratedSums:
        return CalibratedSums(self.ngrams - other.ngrams, {d: n - other.pairs[d] for d, n in self.pairs.items()})

    def arrays(self) -> dict[str, Array]:
        stored = {f"memory.{name}": array for name, array in self.ngrams.arrays().items()}
        for distance, counts in self.pairs.items():
            stored |= {f"pairs {distance}.{name}": array for name, array in counts.arrays().items()}
        return stored

    @classmethod
    def from_arrays(
        cls, order: int, vocabulary: int, views: Iterable[View], arrays: Mapping[str, Array]
    ) -> CalibratedSums:
        """The counts whose `arrays()` these are; kernels look up their tokens in arrays of this vocabulary's size."""
        ngrams = NgramCounts.from_arrays(part_of(arrays, "memory."), vocabulary)
        far = far_distances(views, order)
        pairs = {
            distance: NgramCounts.from_arrays(part_of(arrays, f"pairs {distance}."), vocabulary) for distance in far
        }
        if ngrams.order != order or any(counts.order != 2 for counts in pairs.values()):
            raise SaffuError("the model's counts are damaged; restore the folder or train again")
        return cls(ngrams, pairs)


@dataclass(frozen=True)
class MemoryContext(View):
    """A part of a context whose followers in the document are counted."""

    keep: float = 1.0  # what remains of its counts when it occurs again
    chained: bool = False  # whether it builds on the context before it in the list
    strength: float = 10.0  # tokens that the shares it builds on are worth
    longest: int = 0  # if set, only its latest occurrence counts, as often as tokens agree, at most this often


MOST_TOKENS = 2**31 - 1  # that a memory can hold
ARCHIVE = 5  # times `cache`: tokens of all documents that are remembered when documents are read online
ARCHIVE_HALF_LIVES = (150, 8000)
ARCHIVE_CONTEXTS = (
    MemoryContext("documents, 1 token", (1,), keep=0.98, strength=1.0),
    MemoryContext("documents, 2 tokens", (1, 2), keep=0.98, strength=1.0, chained=True),
    MemoryContext("documents, 3 tokens", (1, 2, 3), keep=0.98, strength=1.0, chained=True),
    MemoryContext("documents, 5 tokens", (1, 2, 3, 4, 5), keep=0.98, strength=1.0, chained=True),
    MemoryContext("documents, longest match", (1, 2, 3, 4, 5), strength=1.0, chained=True, longest=MATCHES[-1]),
)


def memory_contexts(config: CalibratedConfig) -> list[MemoryContext]:
    """Contexts of n-grams, of the last token at two speeds, of a match, of the token before the last, and of classes.

    >>> for context in memory_contexts(CalibratedConfig()):
    ...     print(context.name, context.distances, context.keep)
    document, 1 token lately (1,) 0.75
    document, 1 token (1,) 0.97
    document, 2 tokens (1, 2) 0.95
    document, 3 tokens (1, 2, 3) 0.9
    document, 5 tokens (1, 2, 3, 4, 5) 0.9
    document, longest match (1, 2, 3, 4, 5) 1.0
    document, last but 1 token (2,) 0.95
    document, 1 token and 1 class (1, 2) 0.95
    document, 1 class (1,) 0.98
    """
    contexts = [
        MemoryContext("document, 1 token lately", (1,), keep=0.75),
        MemoryContext("document, 1 token", (1,), keep=0.97),
        MemoryContext("document, 2 tokens", (1, 2), keep=0.95, chained=True),
        MemoryContext("document, 3 tokens", (1, 2, 3), keep=0.9, chained=True),
        MemoryContext("document, 5 tokens", (1, 2, 3, 4, 5), keep=0.9, chained=True),
        MemoryContext("document, longest match", (1, 2, 3, 4, 5), chained=True, longest=MATCHES[-1]),
        MemoryContext("document, last but 1 token", (2,), keep=0.95),
    ]
    if config.word_classes:
        fine = config.word_classes
        contexts += [
            MemoryContext("document, 1 token and 1 class", (1, 2), keep=0.95, classes=fine, exact=1),
            MemoryContext("document, 1 class", (1,), keep=0.98, classes=fine),
        ]
    return contexts


def memory_parts(config: CalibratedConfig) -> list[str]:
    """The names of the decayed unigrams and of the contexts, in the order of their exponents; none without a memory."""
    if not config.cache:
        return []
    return [
        *(f"document, half-life {half_life}" for half_life in HALF_LIVES),
        *(context.name for context in memory_contexts(config)),
    ]


def first_remembered(window: int, age: int) -> int:
    """The number of the first token that is remembered after `age` tokens of a document.

    The window moves by half its length, so that what it holds does not depend on where reading began.

    >>> [first_remembered(10, age) for age in (10, 11, 15, 16)]
    [0, 5, 5, 10]
    """
    half = max(1, window // 2)
    excess = age - window
    return -(-excess // half) * half if excess > 0 else 0


def memory_arrays(config: CalibratedConfig) -> dict[str, Array]:
    """The memory of a document, and that of all documents, as kernels take them (native/model.cpp); {} without one."""
    if not config.cache:
        return {}
    arrays: dict[str, Array] = {
        "learning": np.array([STRENGTH, RATE, SMALLEST_SHARE], dtype=np.float32),
        "ages": np.array(AGES, dtype=np.int64),
        "count_limits": np.array([*ONE_FOLLOWER, SEVERAL_FOLLOWERS], dtype=np.float32),
        "match_limits": np.array(MATCHES, dtype=np.int32),
    }
    archive = min(ARCHIVE * config.cache, MOST_TOKENS)
    for name, window, half_lives, contexts in (
        ("document", config.cache, HALF_LIVES, memory_contexts(config)),
        ("archive", archive, ARCHIVE_HALF_LIVES, ARCHIVE_CONTEXTS),
    ):
        arrays[f"{name}.window"] = np.array([window], dtype=np.int32)
        arrays[f"{name}.half_lives"] = np.array(half_lives, dtype=np.float32)
        for number, context in enumerate(contexts):
            numbers = [context.exact, context.chained, context.longest, context.classes]
            arrays[f"{name} {number}"] = np.array(numbers, dtype=np.int32)
            arrays[f"{name} {number}.weights"] = np.array([context.strength, context.keep], dtype=np.float32)
            arrays[f"{name} {number}.distances"] = np.array(context.distances, dtype=np.int32)
    return arrays


def memory_slices(config: CalibratedConfig) -> list[slice]:
    """Where the exponents of the prediction without the memory, one, and of each part, MEMORY_EVIDENCE, are."""
    parts = len(HALF_LIVES) + len(memory_contexts(config))
    return [
        slice(0, 1),
        *(slice(1 + MEMORY_EVIDENCE * part, 1 + MEMORY_EVIDENCE * (part + 1)) for part in range(parts)),
    ]


def unfitted_exponents(config: CalibratedConfig) -> Floats:
    """Exponents (2, J) that ignore the memory, until something is learned from a document."""
    exponents = np.zeros((2, memory_slices(config)[-1].stop))
    exponents[:, 0] = 1
    return exponents
