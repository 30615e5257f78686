"""Constants that C++ needs at compile time, because they size its arrays, are those of Python."""

import re
from pathlib import Path

import numpy as np

import saffu
from conftest import each
from saffu.calibrated import kernels, views
from saffu.calibrated.config import CalibratedConfig

NATIVE = Path(saffu.__file__).parent / "native"


@each(
    "header, name, value",
    [
        ("counted/query.h", "MAX_LEVELS", kernels.MAX_LEVELS),
        ("counted/query.h", "EVIDENCE", kernels.EVIDENCE),
        ("counted/query.h", "MEMORY_EVIDENCE", views.MEMORY_EVIDENCE),
        ("counted/memory.h", "MAX_FOLLOWERS", views.MOST_FOLLOWERS),
    ],
)
def test_constants_agree(header, name, value):
    assert re.findall(rf"\b{name} = (\d+)", (NATIVE / header).read_text("utf-8")) == [str(value)]


def test_kernels_hold_all_views():
    (most,) = re.findall(r"\bMAX_VIEWS = (\d+)", (NATIVE / "counted/query.h").read_text("utf-8"))
    largest = CalibratedConfig(slots=16, order=9, word_classes=4096)
    assert 18 < len(views.views_of(largest)) <= int(most)


def test_tokens_have_the_same_width():
    (bits,) = re.findall(r"using Token = uint(\d+)_t", (NATIVE / "kernels.h").read_text("utf-8"))
    assert np.iinfo(kernels.TOKEN).bits == int(bits)
