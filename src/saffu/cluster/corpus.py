"""Text to token ids on a cluster: shards of files are read, tokenized, and joined in files that all nodes share.

The held-out text, the tokenizer, and the corpus are the same as in one process. A shard is one file or several small
ones; a first pass finds its position in the text, in lines and stretches.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from saffu.calibrated.kernels import TOKEN
from saffu.calibrated.ngrams import MAX_VOCABULARY
from saffu.cluster.engine import Cluster, keep, write_arrays
from saffu.errors import SaffuError
from saffu.files import Array, map_arrays
from saffu.text.corpus import Line, TokenCorpus
from saffu.text.documents import STRETCH, hold_out, read_lines, stretches
from saffu.text.records import Skipped
from saffu.text.sources import Source
from saffu.text.tokenizer import COUNTED_LIMIT, Tokenizer, TokenizerConfig, count_training_words

SHARD = 32 << 20  # bytes of small files that are read together; compressed ones hold about four times as much
Position = tuple[int, int]
"""Numbers of lines and stretches that come before."""

PARTS: dict[str, Any] = {"ids": TOKEN, "starts": np.int64, "sizes": np.int64}  # arrays of a corpus


@dataclass(frozen=True)
class Shard:
    """Some sources and how they are read."""

    sources: tuple[Source, ...]
    how: Mapping[str, Any]  # arguments of `read_lines`
    every: int = 0  # what is held out
    after: Position = (0, 0)

    def lines(
        self, held_out: bool = False, skipped: dict[str, Skipped] | None = None, flags: bytearray | None = None
    ) -> Iterator[Line]:
        """The lines to train on, or those that are held out; `flags` receives those of all lines."""
        if held_out and not self.every:
            return iter(())
        lines = read_lines(self.sources, skipped=skipped, **self.how)
        return hold_out(lines, self.every, held_out, after=self.after, flags=flags)


@dataclass
class Tokenized:
    """A text as token ids, what was held out of it, and the malformed records that were skipped."""

    corpus: TokenCorpus
    dev: TokenCorpus
    skipped: dict[str, Skipped] = field(default_factory=dict)


def shards_of(sources: Sequence[Source], how: Mapping[str, Any], every: int) -> list[Shard]:
    """Sources in groups of about SHARD bytes."""
    groups: list[list[Source]] = []
    left = 0
    for source in sources:
        size = source.path.stat().st_size * (4 if source.compression else 1)
        if not groups or size > left:
            groups.append([])
            left = SHARD
        groups[-1].append(source)
        left -= size
    return [Shard(tuple(group), how, every) for group in groups]


def surveyed(cluster: Cluster, shards: list[Shard], skip_bad: bool) -> tuple[list[Shard], dict[str, str]]:
    """Shards with their positions; files that cannot be read are removed if they are to be skipped."""
    far = 100 * STRETCH  # lines after which stretches no longer depend on the number of lines before
    surveys = cluster.map("survey", survey, [(shard, far, skip_bad) for shard in shards], "look through text")
    position = (0, 0)
    placed = []
    for number, (shard, seen) in enumerate(zip(shards, surveys, strict=True)):
        if position[0] < far:
            (seen,) = cluster.map(f"survey-{number}", survey, [(shard, position[0], skip_bad)], None)
        good = tuple(source for source in shard.sources if source.name not in seen["bad"])
        placed.append(Shard(good, shard.how, shard.every, position))
        position = position[0] + seen["lines"], position[1] + seen["stretches"]
    return placed, {name: reason for seen in surveys for name, reason in seen["bad"].items()}


def survey(shard: Shard, lines: int, skip_bad: bool) -> dict[str, Any]:
    """Count the lines and stretches of a shard, given the lines before it; which files cannot be read, and why."""
    first = lines
    number = 0
    bad = {}
    for source in shard.sources:
        position = lines, number
        try:
            for stretch, _ in stretches(Shard((source,), shard.how).lines(), after=position):
                lines = lines + 1
                number = stretch
        except SaffuError as error:
            if not skip_bad:
                raise
            bad[source.name] = str(error)
            lines, number = position
    return {"lines": lines - first, "stretches": number, "bad": bad}


def learned_tokenizer(cluster: Cluster, shards: Sequence[Shard], config: TokenizerConfig) -> Tokenizer:
    """The tokenizer of all shards. Beyond 2²¹ distinct words, those seen once are dropped after each shard."""
    counts: Counter[str] = Counter()
    items = [(shard, config, path_of(cluster, "words", n)) for n, shard in enumerate(shards)]
    cluster.map("words", count_shard_words, items, "count words")
    for _, _, path in items:
        counts.update(json.loads(path.read_bytes()))
        if len(counts) > COUNTED_LIMIT:
            counts = Counter({word: count for word, count in counts.items() if count > 1})
    return Tokenizer.from_counts(counts, config)


def path_of(cluster: Cluster, stage: str, number: int) -> Path:
    """The file to which a task of a stage writes its arrays."""
    return cluster.folder / stage / f"{number:06d}.data"


def count_shard_words(shard: Shard, config: TokenizerConfig, path: Path) -> None:
    keep(path, count_training_words((text for _, text in shard.lines()), config))


def tokenized(cluster: Cluster, shards: Sequence[Shard], tokenizer: Tokenizer, max_tokens: int | None) -> Tokenized:
    """All shards as one corpus, and their held-out text as another."""
    if len(tokenizer) > MAX_VOCABULARY:
        raise SaffuError(f"a vocabulary of {len(tokenizer):,} cannot be counted; use at most {MAX_VOCABULARY:,} tokens")
    place = cluster.folder / "tokenizer.json"
    place.write_text(tokenizer.to_json(), encoding="utf-8")
    paths = [path_of(cluster, "tokens", number) for number in range(len(shards))]
    items = [(shard, place, path, None) for shard, path in zip(shards, paths, strict=True)]
    lengths = cluster.map("tokens", tokenize, items, "tokenize")
    numbers = list(range(len(shards)))
    if max_tokens is not None:
        ends = list(accumulate(sizes["train"]["ids"] for sizes in lengths))
        reached = next((n for n, end in enumerate(ends) if end >= max_tokens), None)
        if reached is not None:
            shard = shards[reached]
            path = path_of(cluster, "last", 0)
            limit = max_tokens - (ends[reached - 1] if reached else 0)
            (last,) = cluster.map("last", tokenize, [(shard, place, path, limit)], None)
            numbers = numbers[: reached + 1]
            paths[reached] = path
            lengths[reached]["train"] = last["train"]
    skipped = {name: Skipped(*counts) for sizes in lengths for name, counts in sizes["skipped"].items()}
    corpus = joined(cluster, "train", [paths[n] for n in numbers], [lengths[n]["train"] for n in numbers])
    held_out = [path_of(cluster, "tokens", number) for number in range(len(shards))]
    dev = joined(cluster, "dev", held_out, [sizes["dev"] for sizes in lengths])
    flags = np.concatenate([map_arrays(path)["flags"] for path in held_out])
    return Tokenized(corpus.divided(dev, flags), dev, skipped)


def tokenize(shard: Shard, tokenizer: Path, path: Path, max_tokens: int | None) -> dict[str, Any]:
    """Write the token ids of a shard; return the length of each array."""
    learned = Tokenizer.from_json(tokenizer.read_text(encoding="utf-8"))
    skipped: dict[str, Skipped] = {}
    parts = {"train": TokenCorpus.build(shard.lines(skipped=skipped), learned, path.parent, max_tokens)}
    flags = bytearray()
    parts["dev"] = TokenCorpus.build(shard.lines(held_out=True, flags=flags), learned, path.parent)
    arrays = {f"{part}.{name}": getattr(corpus, name) for part, corpus in parts.items() for name in PARTS}
    arrays |= {f"{part}.digests": c.digests for part, c in parts.items() if c.digests is not None}
    arrays["flags"] = np.frombuffer(flags, dtype=np.uint8)
    write_arrays(path, arrays)
    sizes: dict[str, Any] = {
        part: {"ids": corpus.targets, "starts": corpus.documents, "sizes": corpus.lines}
        for part, corpus in parts.items()
    }
    return sizes | {"skipped": {name: [entry.count, entry.first] for name, entry in skipped.items()}}


def joined(cluster: Cluster, part: str, paths: Sequence[Path], sizes: Sequence[Mapping[str, int]]) -> TokenCorpus:
    """One corpus, memory-mapped, from the arrays of several shards."""
    total = {name: sum(size[name] for size in sizes) for name in PARTS}
    total["starts"] += 1
    files = {name: cluster.folder / f"{part}.{name}" for name in PARTS}
    if not (cluster.folder / part).exists():  # or earlier tasks have written to them
        for name, path in files.items():
            create_sparse(path, total[name] * np.dtype(PARTS[name]).itemsize)
    items = []
    at = dict.fromkeys(PARTS, 0)
    for path, size in zip(paths, sizes, strict=True):
        items.append((path, part, files, dict(at)))
        at = {name: at[name] + size[name] for name in PARTS}
    cluster.map(part, write_shard, items, None)
    write_at(files["starts"], total["starts"] - 1, np.array([at["ids"]], dtype=np.int64))
    ids, starts, lengths = (mapped(files[name], dtype) for name, dtype in PARTS.items())
    digests = [own[f"{part}.digests"] for own in map(map_arrays, paths) if f"{part}.digests" in own]
    return TokenCorpus(ids, starts, lengths, digests=np.concatenate(digests) if digests else None)


def write_shard(path: Path, part: str, files: Mapping[str, Path], at: Mapping[str, int]) -> None:
    """Copy the arrays of a shard to where they belong in those of all shards."""
    arrays = map_arrays(path)
    for name, dtype in PARTS.items():
        array = arrays[f"{part}.{name}"]
        if name == "starts":
            array = array[:-1] + at["ids"]
        write_at(files[name], at[name], np.ascontiguousarray(array, dtype=dtype))


def create_sparse(path: Path, size: int) -> None:
    """Make a sparse file of zero bytes."""
    with path.open("wb") as file:
        file.truncate(size)


def write_at(path: Path, place: int, array: Array) -> None:
    """Write an array to its place in a file that other nodes write to as well; mapped pages could not be shared."""
    with path.open("r+b") as file:
        file.seek(place * array.itemsize)
        file.write(array.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def mapped(path: Path, dtype: Any) -> Array:
    """A file as an array."""
    return np.asarray(np.memmap(path, dtype=dtype, mode="r")) if path.stat().st_size else np.zeros(0, dtype=dtype)
