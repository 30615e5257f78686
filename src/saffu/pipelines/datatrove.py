"""A filter for datatrove's pipelines. Needs `pip install datatrove`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.writers.disk_base import DiskWriter

from saffu.pipelines import BatchScorer, Judge


class SaffuFilter(BaseFilter):
    """Keeps the documents whose scores meet all conditions, and adds the scores to their metadata."""

    name = "saffu"

    def __init__(
        self,
        model: Path | str,
        keep: str | Sequence[str],
        memory: bool = False,
        exclusion_writer: DiskWriter | None = None,
        batch_size: int = 1000,
    ):
        """`keep`: conditions as in `saffu score --keep`, such as "bits_per_byte<2.5"."""
        super().__init__(exclusion_writer, batch_size)
        self.judge = Judge(BatchScorer(model, memory=memory), keep)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        return self.filter_batch([doc])[0]

    def filter_batch(self, batch: list[Document]) -> list[bool | tuple[bool, str]]:
        results: list[bool | tuple[bool, str]] = []
        for document, (row, is_kept) in zip(batch, self.judge.rows(doc.text for doc in batch), strict=True):
            document.metadata.update(row)
            results.append(is_kept or (False, "saffu"))
        return results
