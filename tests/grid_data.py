"""Cells with made-up perplexities: those the paper printed, for tests of reports and claims."""

import functools
import math

from saffu.experiments.grid import grid, key_of
from saffu.experiments.results import Cell
from saffu.experiments.tables import printed_perplexities
from saffu.interface import Score


def as_printed(config) -> float:
    """The printed dev perplexity, higher under settings that the paper found worse."""
    dev = printed_perplexities()[key_of(config)][1]
    change = 5 * (config.attention == "uniform") + (config.attention_priming == "slots") - bool(config.tune_folds)
    return dev + change


def scored(config, dev: float, ratio: float = 1.035, parameters: int | None = None) -> Cell:
    train, dev = Score(100 * math.log(dev / ratio), 100, 200), Score(100 * math.log(dev), 100, 200)
    size = 1000 + 10 * config.block * config.radius + len(config.block_mode + config.radius_mode)
    return Cell(config, size if parameters is None else parameters, train, dev, 0.01)


@functools.cache
def paper_cells() -> list[Cell]:
    configs = grid() + grid([8, 128], [8], document_shards=0, settings={"attention": ["uniform"]})
    configs += grid([128], [8, 128], document_shards=0, settings={"attention_priming": ["slots"]})
    configs += grid([128], [8], ["sum/cat"], document_shards=0, settings={"tune_folds": [10]})
    return [scored(config, as_printed(config)) for config in configs]
