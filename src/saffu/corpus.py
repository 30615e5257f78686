"""A tokenised corpus (ids on disk, memory-mapped) and the context windows of its targets, always as token ids."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from saffu.explicit import look_up
from saffu.tokenizer import EOD, FRG, PAD, SOD, Tokenizer

WINDOW_ROWS = {"cpu": 1 << 12, "cuda": 1 << 18}  # most targets in one window: enough to be worth an operation
WINDOW_SLOTS = {"cpu": 1 << 17, "cuda": 1 << 23}  # and most slots of all of them
WIDTHS = (4, 8, 16, 32, 64)  # slots computed for a window, if its unit has many more
FEW = {"cpu": 16, "cuda": 1 << 16}  # targets not worth telling apart: on a GPU, asking for group sizes stalls it
PIECE = 1 << 16  # characters of a long document tokenised at a time
SAFE_CUT = re.compile(r"(?<=[A-Za-z0-9,.]) (?=[A-Za-z])")  # a place where two words part under any reading


@dataclass(frozen=True)
class TokenCorpus:
    """Every document's token ids, each document closed by `<eod>`: every entry of `ids` is one target of prediction."""

    ids: Tensor  # (targets,) uint16 or int32
    starts: Tensor  # (documents + 1,) where each document begins; the last entry is the number of targets
    sizes: Tensor  # (documents,) bytes of each document in UTF-8, plus one for its newline
    first_document: int = 0  # number of the first document, when this is a part of a larger corpus

    @classmethod
    def build(
        cls,
        documents: Iterable[str],
        tokenizer: Tokenizer,
        folder: Path | None = None,
        limit: int | None = None,
        progress: str | None = None,
    ) -> "TokenCorpus":
        """Tokenise documents, stopping after the one that reaches `limit` targets.

        With a `folder`, ids go to a file there as they come and are memory-mapped: memory does not grow with the text.
        """
        dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.int32)
        lengths: list[int] = []
        sizes: list[int] = []
        total = 0
        source = iter(documents)
        file: IO[bytes] = (folder / "ids.bin").open("wb") if folder else io.BytesIO()
        bar = tqdm(desc=progress, unit=" tokens", unit_scale=True, leave=False, disable=None if progress else True)
        with file, bar:
            while (limit is None or total < limit) and (batch := list(islice(source, 1024))):
                for text, ids in zip(batch, encode_documents(batch, tokenizer), strict=True):
                    file.write(np.array([*ids, EOD], dtype=dtype).tobytes())
                    lengths.append(len(ids) + 1)
                    sizes.append(len(text.encode()) + 1)
                    total += lengths[-1]
                    bar.update(lengths[-1])
                    if limit is not None and total >= limit:
                        break
            in_memory = file.getvalue() if isinstance(file, io.BytesIO) else b""
        if folder and total:
            flat: np.ndarray = np.memmap(folder / "ids.bin", dtype=dtype, mode="c")  # a private, writable view
        else:
            flat = np.frombuffer(bytearray(in_memory), dtype=dtype)
        starts = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
        return cls(torch.from_numpy(flat), starts, torch.tensor(sizes, dtype=torch.int64))

    @property
    def documents(self) -> int:
        return len(self.sizes)

    @property
    def targets(self) -> int:
        return len(self.ids)

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())

    def part(self, first: int, last: int) -> "TokenCorpus":
        """Documents first … last−1, sharing storage."""
        lo, hi = int(self.starts[first]), int(self.starts[last])
        starts, sizes = self.starts[first : last + 1] - lo, self.sizes[first:last]
        return TokenCorpus(self.ids[lo:hi], starts, sizes, self.first_document + first)

    def first(self, targets: int) -> "TokenCorpus":
        """The documents up to the one that reaches so many targets."""
        last = int(torch.searchsorted(self.starts, min(targets, self.targets)))
        return self.part(0, last)

    def take(self, documents: Tensor) -> "TokenCorpus":
        """These documents, by number, in this order, as a corpus of their own."""
        lengths = torch.diff(self.starts)[documents]
        starts = torch.cat([self.starts.new_zeros(1), lengths.cumsum(0)])
        shift = (self.starts[documents] - starts[:-1]).repeat_interleave(lengths)
        return TokenCorpus(self.ids[shift + torch.arange(len(shift))], starts, self.sizes[documents])

    def thinned(self, targets: int) -> "TokenCorpus":
        """About so many targets, as every so-many-th document: a sample of all of the corpus, not of its beginning."""
        return self.every(max(1, round(self.targets / targets)))

    def every(self, step: int) -> "TokenCorpus":
        """Every so-many-th document."""
        return self.take(torch.arange(0, self.documents, step))

    def divided(self, share: float) -> tuple["TokenCorpus", "TokenCorpus"]:
        """Two corpora, the first with this share of the documents: every other one, say, for a half."""
        numbers = torch.arange(self.documents, dtype=torch.float64)
        chosen = torch.floor((numbers + 1) * share) > torch.floor(numbers * share)
        return self.take(chosen.nonzero().squeeze(1)), self.take((~chosen).nonzero().squeeze(1))

    def folds(self, targets: int) -> list["TokenCorpus"]:
        """Contiguous parts of whole documents, of about equal size and about `targets` each."""
        count = max(1, round(self.targets / targets))
        evenly = torch.arange(1, count, device=self.starts.device) * self.targets // count
        cuts = torch.searchsorted(self.starts, evenly).tolist()
        bounds = sorted({0, *cuts, self.documents})
        return [self.part(a, b) for a, b in pairwise(bounds)]

    def to(self, device: torch.device | str) -> "TokenCorpus":
        return TokenCorpus(self.ids.to(device), self.starts.to(device), self.sizes, self.first_document)

    def frequencies(self, vocabulary: int) -> Tensor:
        """How often each token is a target: f (N,), float64."""
        counts = torch.zeros(vocabulary, dtype=torch.int64, device=self.ids.device)
        for chunk in self.ids.split(1 << 22):
            counts += torch.bincount(chunk.long(), minlength=vocabulary)
        return counts.double()

    def fragments(self, block: int) -> int:
        """How many blocks begin with `<frg>`: all but each document's first."""
        return int((torch.diff(self.starts) - 1).div(block - 1, rounding_mode="floor").sum())

    def batches(self, size: int, lookback: int, first: int = 0, step: int = 1) -> Iterator["Targets"]:
        """Runs of consecutive targets with the `lookback` tokens before them: all, or every so-many-th."""
        for lo in range(first * size, self.targets, step * size):
            hi = min(lo + size, self.targets)
            flat = torch.arange(lo, hi, device=self.ids.device)
            document = torch.searchsorted(self.starts, flat, right=True) - 1
            begin = max(0, lo - lookback)
            past = torch.nn.functional.pad(self.ids[begin:hi].int(), (begin - (lo - lookback), 0), value=PAD)
            at = torch.arange(lookback, len(past), device=flat.device)
            yield Targets(past[lookback:].long(), flat - self.starts[document], document, past, at, self)


class Targets(NamedTuple):
    """Targets of prediction with what precedes them: the token d places before target m is `past[at[m] − d]`."""

    ids: Tensor  # (n,) what is to be predicted
    positions: Tensor  # (n,) place in the document, from 0
    documents: Tensor  # (n,) which document of the corpus
    past: Tensor  # tokens before and at the targets, int32
    at: Tensor  # (n,) where each target stands in `past`
    corpus: TokenCorpus

    def history(self) -> Tensor:
        """All tokens of the first target's document before the first target, however far back."""
        begin = int(self.corpus.starts[self.documents[0]])
        return self.corpus.ids[begin : begin + int(self.positions[0])]


class Window(NamedTuple):
    """Contexts of some targets for a unit of K slots: slots first … first+J−1 are given, all others hold `<pad>`."""

    rows: Tensor  # (m,) which of the targets
    seen: Tensor  # (m, J) token ids of the given slots, int32; and if J < K a last column, `<pad>` for all others
    head: Tensor  # (m,) the token whose similarity to the others steers attention
    first: int
    width: int  # J

    @property
    def ids(self) -> Tensor:
        """(m, J) token ids of the given slots."""
        return self.seen[:, : self.width]

    @property
    def slots(self) -> slice:
        return slice(self.first, self.first + self.width)


def block_windows(targets: Targets, block: int, head: str = "previous") -> Iterator[Window]:
    """Block contexts: marker (`<sod>` first, `<frg>` later), then up to b−1 tokens; `<pad>` from the target on."""
    real = 1 + targets.positions.int() % (block - 1)  # slots before the target, marker included
    for rows, width in _by_width(real, block):
        count, place, position = real, targets.at.int(), targets.positions
        if len(rows) < len(real):
            count, place, position = look_up(count, rows), look_up(place, rows), look_up(position, rows)
        slot = torch.arange(width + (width < block), device=rows.device, dtype=torch.int32)
        distance = (count[:, None] - slot).clamp_(min=0)  # 0 from the target on
        seen = look_up(targets.past, place[:, None] - distance).masked_fill_(distance == 0, PAD)
        marker = torch.where(position < block - 1, SOD, FRG).int()
        seen[:, 0] = marker
        query = seen.gather(1, count[:, None].long() - 1).squeeze(1) if head == "previous" else marker
        yield Window(rows, seen, query, 0, width)


def radius_windows(targets: Targets, radius: int, head: str = "previous") -> Iterator[Window]:
    """Radial contexts: the r tokens before the target in its document, the nearest last; `<pad>` where missing."""
    for rows, width in _by_width(targets.positions.clamp(max=radius), radius):
        place, position = targets.at.int(), targets.positions
        if len(rows) < len(place):
            place, position = look_up(place, rows), look_up(position, rows)
        distance = torch.arange(width, -(width < radius), -1, device=rows.device, dtype=torch.int32)
        missing = distance > position[:, None]
        if width < radius:
            missing[:, -1] = True
        seen = look_up(targets.past, place[:, None] - distance).masked_fill_(missing, PAD)
        if head == "previous":
            query = seen[:, width - 1]
        else:
            query = look_up(targets.past, place - radius).masked_fill_(position < radius, PAD)
        yield Window(rows, seen, query, radius - width, width)


def _by_width(real: Tensor, slots: int) -> Iterator[tuple[Tensor, int]]:
    """Group targets whose contexts fill about as many slots, so that short ones do not pay for long ones."""
    device = "cuda" if real.is_cuda else "cpu"
    widths = [w for w in WIDTHS if w < slots] + [slots]
    if slots <= 8 or len(real) <= FEW[device]:
        width = slots if slots <= 8 or device == "cuda" else next(w for w in widths if w >= int(real.max()))
        groups = [(torch.arange(len(real), device=real.device), width)]
    else:
        groups = [
            (((real > narrower) & (real <= width)).nonzero().squeeze(1), width)
            for narrower, width in zip([-1, *widths], widths, strict=False)
        ]
    for rows, width in groups:
        for part in rows.split(min(WINDOW_ROWS[device], WINDOW_SLOTS[device] // width)):
            if len(part):
                yield part, width


def encode_documents(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Token ids of each text; long texts are cut where words part, which changes no token and bounds memory."""
    short = [text if len(text) <= PIECE else "" for text in texts]
    for text, ids in zip(texts, tokenizer.encode_batch(short), strict=True):
        if len(text) <= PIECE:
            yield ids
        else:
            yield [token for piece in _pieces(text) for token in tokenizer.encode(piece)]


def _pieces(text: str) -> Iterator[str]:
    begin = 0
    while len(text) - begin > PIECE:
        cut = SAFE_CUT.search(text, begin + PIECE)
        if cut is None:
            break
        yield text[begin : cut.start()]
        begin = cut.start()
    yield text[begin:]
