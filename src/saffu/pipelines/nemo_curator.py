"""A stage for NeMo Curator's pipelines. Needs `pip install nemo-curator`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from nemo_curator.stages.base import ProcessingStage
from nemo_curator.tasks import DocumentBatch

from saffu.pipelines import COLUMNS, BatchScorer, Judge


class SaffuStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds columns of scores, and keeps the rows that meet all conditions; without any, all that are not blank."""

    def __init__(self, model: Path | str, keep: str | Sequence[str] = (), field: str = "text", memory: bool = False):
        """`keep`: conditions as in `saffu score --keep`, such as "bits_per_byte<2.5"."""
        self.name = "saffu"
        self.field = field
        self.judge = Judge(BatchScorer(model, field, memory), keep)

    def inputs(self) -> tuple[list[str], list[str]]:
        return ["data"], [self.field]

    def outputs(self) -> tuple[list[str], list[str]]:
        return ["data"], [self.field, *COLUMNS]

    def ray_stage_spec(self) -> dict[str, Any]:
        return {"is_actor_stage": True}  # so that a worker loads the model once

    def setup(self, worker_metadata: Any = None) -> None:
        """Load the model, in a worker."""
        _ = self.judge.scorer.loaded

    def process(self, task: DocumentBatch) -> DocumentBatch:
        frame = task.to_pandas()
        rows = self.judge.rows(frame[self.field])
        scores = pandas.DataFrame([row for row, _ in rows], columns=COLUMNS, index=frame.index)
        kept = frame.assign(**scores)[np.array([is_kept for _, is_kept in rows], dtype=bool)]
        return DocumentBatch(
            dataset_name=task.dataset_name, data=kept, _metadata=task._metadata, _stage_perf=task._stage_perf
        )
