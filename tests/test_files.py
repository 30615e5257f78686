import numpy as np
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from damage import declared, raw
from saffu import files, writing

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False]), "c": np.arange(2)}


some_arrays = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__"),
    hnp.arrays(
        st.sampled_from([np.dtype(name) for name in writing.DTYPE_NAMES]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    max_size=5,
)


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].shape == array.shape
        and found[name].dtype == array.dtype
        and found[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


@settings(max_examples=60, deadline=None)
@given(content=some_arrays)
def test_arrays_round_trip_and_agree_with_the_library(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("arrays") / "a.safetensors"
    files.write_file(path, content)
    assert same(files.load_arrays(path), content)
    assert same(files.map_arrays(path), content)
    assert same(safetensors.numpy.load_file(path), content)
    path.write_bytes(safetensors.numpy.save(content))
    assert same(files.load_arrays(path), content)
    assert same(files.map_arrays(path), content)


def test_strided_and_big_endian_arrays(tmp_path):
    square = np.arange(9.0).reshape(3, 3)
    files.write_file(tmp_path / "a", {"t": square.T, "big": square.astype(">f8"), "every": square[:, ::2]})
    found = files.load_arrays(tmp_path / "a")
    assert np.array_equal(found["t"], square.T)
    assert np.array_equal(found["big"], square)
    assert np.array_equal(found["every"], square[:, ::2])
    assert found["big"].dtype == np.dtype("<f8")


def test_mapped_arrays_are_mapped_aligned_and_read_only(tmp_path):
    path = tmp_path / "a"
    files.write_file(path, {"small": np.ones(3, np.uint8), "large": np.ones(1000), "middle": np.ones(5, np.int16)})
    mapped = files.map_arrays(path)
    assert all(array.flags.aligned and not array.flags.writeable for array in mapped.values())
    assert not any(array.flags.owndata for array in mapped.values())
    loaded = files.load_arrays(path)
    assert all(array.flags.aligned and array.flags.writeable for array in loaded.values())
    files.write_file(path, b"replaced")  # the mapped file lives on
    assert mapped["large"].sum() == 1000


def test_foreign_safetensors_may_be_unaligned_or_of_half_precision(tmp_path):
    values = np.array([1.5, -2, 0], dtype=np.float32)
    half = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    header = {"a": declared("U8", [1], [0, 1]), "b": declared("F32", [3], [1, 13])}
    header["c"] = declared("BF16", [3], [13, 19])
    (tmp_path / "a").write_bytes(raw(header, b"\x07" + values.tobytes() + half))
    for read in (files.load_arrays, files.map_arrays):
        found = read(tmp_path / "a")
        assert found["a"].tolist() == [7]
        assert found["b"].tolist() == found["c"].tolist() == [1.5, -2, 0]
        assert found["b"].flags.aligned


def test_writing_does_not_copy_the_arrays():
    large = np.zeros(1000)
    _, piece = writing.to_safetensors({"a": large})
    assert np.shares_memory(piece, large)


def test_write_file(tmp_path):
    files.write_file(tmp_path / "new" / "a.txt", b"1")
    files.write_file(tmp_path / "new" / "a.txt", lambda: b"2")
    assert (tmp_path / "new" / "a.txt").read_bytes() == b"2"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.txt"]
