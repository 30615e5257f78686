"""The compiled kernels (native/*.cpp), called with NumPy arrays.

Calls release Python's lock, so threads that call kernels run side by side.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError

Array = npt.NDArray[Any]
TOKEN = np.uint16  # an id, a rank, or a class; as Token in native/kernels.h. Keys of rows hold 16 bits per token.
MAX_LEVELS, EVIDENCE = 9, 4  # as in native/counted/query.h
OUT_OF_MEMORY, COUNT_TOO_LARGE = 1, 2  # as in native/kernels.h
TOO_OFTEN = "an n-gram occurs more than four billion times, more than a count can hold; use less text"
SUFFIX = {"win32": "dll", "darwin": "dylib"}.get(sys.platform, "so")
LIBRARY = Path(__file__).parents[1] / "native" / f"libsaffu.{SUFFIX}"


class Buffer(Structure):
    """Memory that a kernel allocated."""

    _fields_ = [("data", c_void_p), ("bytes", c_int64)]

    def array(self, dtype: npt.DTypeLike, shape: Sequence[int] = (-1,)) -> Array:
        """A copy of the memory, which is freed."""
        memory = (ctypes.c_char * self.bytes).from_address(self.data or 0)
        try:
            return np.frombuffer(bytearray(memory), dtype=dtype).reshape(shape)
        finally:
            library.saffu_free(self.data)


class Model(c_void_p):
    """What kernels make of arrays, by their stored names; only they know how it lies in memory (native/model.cpp).

    It holds the arrays, because kernels keep their addresses, and calls may outlive whatever else holds them.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Raise SaffuError unless the arrays make a model."""
        super().__init__(library.saffu_model())
        weakref.finalize(self, library.saffu_free_model, self.value)
        self.arrays: dict[str, Array] = {}
        self.put(arrays)
        require_sound(library.saffu_ready(self))

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Give arrays to the kernels, or others in their place."""
        for name, array in arrays.items():
            own = self.arrays[name] = np.ascontiguousarray(array)
            library.saffu_put(self, name.encode(), own.dtype.str[1:].encode(), own.ctypes.data, own.size)

    def set_exponents(self, plain: Array, memory: Array) -> None:
        """Replace the exponents (2, J), for calibration, which tries many."""
        self.put({"plain": plain, "memory": memory})
        require_sound(library.saffu_exponents(self))


def require_sound(problem: bytes | None) -> None:
    """Raise SaffuError if the kernels found a problem."""
    if problem is not None:
        raise SaffuError(f"the model is damaged ({problem.decode()}); restore the folder or train again")


def pointer(array: Array | None, dtype: npt.DTypeLike) -> c_void_p:
    """The address of an array's data, which must be contiguous and of this type.

    The array lives as long as the pointer: during the call that it is an argument of, but not if it is stored in a
    structure, which copies the address.
    """
    if array is None:
        return c_void_p(None)
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(f"expected a contiguous array of {np.dtype(dtype)}, got {array.dtype}")
    address = c_void_p(array.ctypes.data)
    address.array = array  # type: ignore[attr-defined]
    return address


def _load() -> ctypes.CDLL:
    if sys.byteorder == "big":
        raise SaffuError("saffu runs on little-endian processors only: its kernels would misread tables on this one")
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise SaffuError(
            f"saffu's compiled kernels cannot be loaded ({error}); install saffu with pip, which needs a C++ compiler"
        ) from None
    p = c_void_p
    i32 = c_int32
    i64 = c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "saffu_count_rows": (None, [p, p, i64, p, i64, p, i32, i32, i64, i64, p, POINTER(Buffer), POINTER(Buffer)]),
        "saffu_trim": (None, []),
        "saffu_regroup_rows": (
            None,
            [p, p, p, i64, i64, i32, i32, p, i32, i32, p, i32, i64, i64, p, POINTER(Buffer), POINTER(Buffer)],
        ),
        "saffu_merge_rows": (i64, [p, p, p, p, p, p, i64, i32, i32, p, p, p]),
        "saffu_build_levels": (None, [p, p, p, i64, i32, i32, p, i64, p, p, p, p, p]),
        "saffu_model": (p, []),
        "saffu_free_model": (None, [p]),
        "saffu_put": (None, [p, c_char_p, c_char_p, p, i64]),
        "saffu_ready": (c_char_p, [p]),
        "saffu_exponents": (c_char_p, [p]),
        "saffu_room": (i64, [p]),
        "saffu_fill": (None, [p, p]),
        "saffu_score": (None, [p, p, p, i64, i64, i64, p, p]),
        "saffu_moments": (None, [p, p, p, i64, p, i64, p, i64, i32, p]),
        "saffu_plain_shares": (None, [p, p, p, i64, i64, i64, p]),
        "saffu_reader": (p, [p, i32]),
        "saffu_free_reader": (None, [p]),
        "saffu_read_targets": (None, [p, p, p, i64, i64, i64, p, p, p]),
        "saffu_read": (None, [p, p, i64, i64, i64, p]),
        "saffu_distribution": (None, [p, p, i64, i64, p, p, p]),
        "saffu_certainty": (None, [p, p, i64, i64, p, p, p]),
        "saffu_members": (None, [p, i32, p]),
        "saffu_sample": (i32, [p, p, i64, i64, p, p, i32, i32]),
        "saffu_explain": (None, [p, p, i64, i64, p, p, p]),
        "saffu_match": (i32, [p, i32, p, i64, i64, p]),
        "saffu_view_score": (None, [p, p, p, i64, i64, i64, p]),
        "saffu_sparse_product": (None, [p, p, p, i64, p, i64, i32, p]),
        "saffu_exchange": (i64, [p, p, p, i64, i64, p, i64, i64, i32, p]),
    }
    loaded.saffu_free.argtypes = [p]
    declare(loaded, signatures)
    return loaded


def declare(loaded: ctypes.CDLL, signatures: Mapping[str, tuple[Any, list[Any]]]) -> None:
    """Set the type of the result and of the arguments of each of these kernels."""
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise SaffuError("saffu's compiled kernels are of another version; install saffu again") from None
        function.restype = result
        function.argtypes = arguments
        function.errcheck = require_success


def require_success(result: Any, *_: object) -> Any:
    """The result of a kernel; raises MemoryError if it ran out of memory, SaffuError if a count does not fit."""
    failure = library.saffu_failure()
    if failure == OUT_OF_MEMORY:
        raise MemoryError
    if failure == COUNT_TOO_LARGE:
        raise SaffuError(TOO_OFTEN)
    return result


library = _load()
