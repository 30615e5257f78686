"""The layout of a solved model for the kernels: ranks, tables, priors, exponents, and how a memory is made."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p

import numpy as np
import numpy.typing as npt

from saffu.calibrated import kernels, memory, storage
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.kernels import TOKEN, Array, library, pointer
from saffu.calibrated.kneser_ney import Ranks, Table, log_prior
from saffu.calibrated.views import View

MOST_TOKENS = 2**31 - 1  # that a memory can hold
CLASS_SUMS_ABOVE = 64  # followers from which on sums by class are stored for a context


class NativeModel:
    """The structure that kernels read, and the arrays it points to."""

    def __init__(
        self,
        config: CalibratedConfig,
        views: Sequence[View],
        tables: Sequence[Table],
        ranks: Ranks,
        frequencies: Array,
        context_classes: dict[int, Array],
        plain: Array,
        remembered: Array,
    ):
        """Exponents (2, J) of classes and tokens: of prior and views, and of the memory."""
        prior = log_prior(frequencies, ranks)
        of_classes = np.log(ranks.by_class(np.exp(prior)))
        self.ranks = ranks
        self.views = (kernels.View * len(views))()
        self.structure = kernels.Model(len(frequencies), ranks.number, len(views))
        self.structure.kept = [tables, ranks, context_classes]
        for number, (view, table) in enumerate(zip(views, tables, strict=True)):
            classes = context_classes[view.classes] if view.classes else None
            native = table.native(classes, view.exact)
            class_unigram = ranks.by_class(table.unigram).astype(np.float32)
            native.class_unigram = pointer(class_unigram, np.float32)
            self.structure.kept += [classes, class_unigram]
            for level, native_level in zip(table.levels, native.level, strict=False):
                self._add_class_rows(level, native_level, ranks)
            self.views[number] = native
        arrays: dict[str, Array] = {
            "rank": ranks.ranks,
            "token_of_rank": ranks.tokens,
            "class_of_rank": ranks.classes,
            "class_first": ranks.first,
            "prior": np.exp(prior).astype(np.float32),
            "class_prior": np.exp(of_classes).astype(np.float32),
            "log_prior": prior.astype(np.float32),
            "log_class_prior": of_classes.astype(np.float32),
            "is_slot": np.array([view.is_slot for view in views], dtype=np.int32),
        }
        for name, array in arrays.items():
            setattr(self.structure, name, pointer(array, array.dtype))
        self.structure.kept.append(arrays)
        self.structure.view = self.views
        self._set_memory(config, context_classes)
        self.set_exponents(plain, remembered)

    def _add_class_rows(self, level: dict[str, Array], native: kernels.Level, ranks: Ranks) -> None:
        """Sums by class of contexts with many followers, and where each class begins among them: both save time."""
        heavy = np.flatnonzero(np.diff(level["begin"]) > CLASS_SUMS_ABOVE).astype(np.uint32)
        rows = storage.empty((len(heavy), ranks.number), np.float32)
        before = storage.empty((len(heavy), ranks.number + 1), TOKEN)
        library.saffu_class_rows(
            pointer(level["begin"], np.uint32), pointer(level["follow"], TOKEN), pointer(level["mass"], np.float32),
            pointer(ranks.classes, TOKEN), pointer(heavy, np.uint32), len(heavy), ranks.number,
            pointer(rows, np.float32), pointer(before, TOKEN),
        )  # fmt: skip
        native.heavy = pointer(heavy, np.uint32)
        native.many = CLASS_SUMS_ABOVE
        native.heavies = len(heavy)
        native.rows = pointer(rows, np.float32)
        native.before = pointer(before, TOKEN)
        self.structure.kept += [heavy, rows, before]

    def _set_memory(self, config: CalibratedConfig, context_classes: dict[int, Array]) -> None:
        """How the memory of a document is made."""
        self.structure.memory = self._shape(
            config.cache, memory.HALF_LIVES, memory.memory_contexts(config), context_classes
        )
        self.structure.archive = self._shape(
            min(memory.ARCHIVE * config.cache, MOST_TOKENS), memory.ARCHIVE_HALF_LIVES, memory.ARCHIVE_CONTEXTS, {}
        )

    def _shape(
        self,
        window: int,
        half_lives: Sequence[float],
        contexts: Sequence[memory.MemoryContext],
        context_classes: dict[int, Array],
    ) -> kernels.MemoryShape:
        kept: list[Array] = []

        def pointer_to(values: Sequence[float], dtype: npt.DTypeLike) -> c_void_p:
            kept.append(np.array(values, dtype=dtype))
            return pointer(kept[-1], dtype)

        natives = (kernels.MemoryContext * len(contexts))()
        for native, context in zip(natives, contexts, strict=True):
            native.length = len(context.distances)
            native.exact = context.exact
            native.chained = context.chained
            native.strength = context.strength
            native.keep = context.keep
            native.longest = context.longest
            native.distances = pointer_to(context.distances, np.int32)
            native.classes = pointer(context_classes[context.classes] if context.classes else None, TOKEN)
        self.structure.kept += [kept, natives]
        return kernels.MemoryShape(
            window=window,
            decays=len(half_lives),
            contexts=len(contexts),
            ages=len(memory.AGES),
            strength=memory.STRENGTH,
            rate=memory.RATE,
            smallest_share=memory.SMALLEST_SHARE,
            half_lives=pointer_to(half_lives, np.float32),
            age_limits=pointer_to(memory.AGES, np.int64),
            count_limits=pointer_to([*memory.ONE_FOLLOWER, memory.SEVERAL_FOLLOWERS], np.float32),
            match_limits=pointer_to(memory.MATCHES, np.int32),
            context=natives,
        )

    def set_exponents(self, plain: Array, remembered: Array) -> None:
        """Replace the exponents (2, J), for calibration, which tries many."""
        kept = self.structure.exponents = [np.ascontiguousarray(e, dtype=np.float32) for e in (plain, remembered)]
        for level in (0, 1):
            self.structure.plain[level] = pointer(kept[0][level], np.float32)
            self.structure.remembered[level] = pointer(kept[1][level], np.float32)
