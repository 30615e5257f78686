"""A folder of whatever was saved can be read again, and what cannot be read is not saved."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import each
from saffu import SaffuError, SaffuLM, load

numbers = st.integers() | st.floats() | st.sampled_from([2**64, 10**400, -1, 1, 20, True])
leaves = (
    numbers | st.none() | st.booleans() | st.text() | st.sampled_from(["line", "file", "x" * 20_000, "\ud800", "\0"])
)
values = st.recursive(
    leaves | st.sampled_from([Path("a"), {1}, b"bytes", np.float32(1), (1, 2)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=6,
)
known = st.sampled_from(["split", "field", "dev", "hold_out", "default_corpus", "mine"])
sources = st.dictionaries(known, values, max_size=3) | values
rows = st.dictionaries(
    st.sampled_from(
        ["stage", "sample", "documents", "dev_perplexity", "dev_bits_per_byte", "warnings", "seconds", "x"]
    ),
    values,
    max_size=4,
).map(lambda row: {"stage": "mine", **row})


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    """A folder with a model, and the model."""
    lm = SaffuLM(fitted("toy").config).fit(["the old dog", "a cat saw the dog"])
    lm.save(folder := tmp_path_factory.mktemp("saved") / "model")
    return lm, folder


def is_kept(found, given) -> bool:
    """Whether JSON kept a value."""
    return json.dumps(found, sort_keys=True) == json.dumps(json.loads(json.dumps(given)), sort_keys=True)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    source=sources, log=st.lists(rows | values, max_size=2), sample=st.text(max_size=30).map(lambda text: text * 500)
)
def test_what_is_saved_can_be_read(saved, source, log, sample):
    lm, folder = saved
    lm.source_, lm.log_ = source, [*log, {"stage": "last", "sample": sample}]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    try:
        lm.save(folder)
    except SaffuError:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        return
    again = load(folder, check=True)
    assert is_kept(again.source_, source)
    assert [is_kept(found, given) for found, given in zip(again.log_, lm.log_, strict=True)]
    again.save(folder)


@each("source", ["text.txt", None, 7, {"dev": 5}, {"split": "word"}, {"hold_out": 1}, {"a": {1, 2}}])
def test_a_source_that_is_not_known_facts_is_not_saved(saved, source):
    lm, folder = saved
    lm.source_, lm.log_ = source, []
    with pytest.raises(SaffuError):
        lm.save(folder)
    assert load(folder).model_.vocabulary == lm.model_.vocabulary


def test_nested_beyond_reason(saved):
    lm, folder = saved
    lm.source_ = {}
    for _ in range(3000):
        lm.source_ = {"mine": lm.source_}
    with pytest.raises(SaffuError):
        lm.save(folder)
    lm.source_, lm.log_ = {}, [{"stage": "mine", "dev_perplexity": math.nan, "dev_bits_per_byte": math.nan}]
    with pytest.raises(SaffuError):
        lm.save(folder)


@pytest.mark.parametrize("whole", [False, True])
def test_samples_of_long_words_are_cut(tmp_path, whole):
    """Text without spaces, such as DNA or unsegmented Chinese, may be one word of a thousand letters per line."""
    from saffu import TokenizerConfig

    lines = [" ".join(letter * 250 for letter in "abcdefghijklmn") for _ in range(12)]
    lines += ["acgt" * 4000, "acgt" * 4000]
    lm = SaffuLM(tokenizer=TokenizerConfig(words_as_tokens=whole)).fit(lines)
    lm.save(tmp_path / "m")
    assert load(tmp_path / "m").log_[0]["sample"] == lm.log_[0]["sample"]
