"""Scores in pipelines: of `datasets`, pandas, and Polars here; stages of datatrove and NeMo Curator in their own files.

Nothing here imports these packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from saffu.model.language_model import SaffuLM
from saffu.tools.score_table import Measures, Row
from saffu.tools.scores import Condition, LineScore

COLUMNS = [column.name for column in fields(LineScore)]


class Batch(Protocol):
    """Columns by name: a dict of lists, or a data frame of pandas or Polars."""

    def __getitem__(self, name: str, /) -> Iterable[str]: ...


@dataclass
class BatchScorer:
    """Scores a column of texts, each on its own, and returns columns: bits, tokens, bytes, bits_per_byte, perplexity.

    The model is loaded on first use, in every process that uses it, so a scorer is small when it is sent to others.
    """

    model: Path | str  # the folder
    field: str = "text"  # the name of the column
    memory: bool = False  # whether to predict with memory of what a text itself has said so far

    def __call__(self, batch: Batch) -> dict[str, list[Any]]:
        scores = self.scores(batch[self.field])
        return {name: [getattr(score, name) for score in scores] for name in COLUMNS}

    def scores(self, texts: Iterable[str]) -> list[LineScore]:
        """The score of each text."""
        return self.loaded.score_lines(texts, self.memory)

    @cached_property
    def loaded(self) -> SaffuLM:
        return SaffuLM.load(self.model)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "loaded"}


@dataclass
class Judge:
    """Scores texts, and decides which of them are kept: those that meet all conditions, such as "bits_per_byte<2.5"."""

    scorer: BatchScorer
    keep: str | Sequence[str] = ()
    measures: Measures = field(init=False)

    def __post_init__(self) -> None:
        texts = [self.keep] if isinstance(self.keep, str) else self.keep
        self.measures = Measures(conditions=[Condition.parse(text) for text in texts])

    def rows(self, texts: Iterable[str]) -> list[tuple[Row, bool]]:
        """The scores of each text, by name, and whether it is kept. A blank text never is."""
        rows = [dict(vars(score)) for score in self.scorer.scores(texts)]
        return [(row, row["tokens"] > 0 and self.measures.keeps(row)) for row in rows]
