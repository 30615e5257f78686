// What the kernels share. They are called through ctypes: plain C functions over numpy arrays.
#pragma once
#include <cstdint>

constexpr int64_t PAD = 0, EOD = 3;  // as in saffu/text/tokenizer.py

using Wide = unsigned __int128;

struct Buffer {  // memory that the caller frees with saffu_free
    void *data;
    int64_t bytes;
};

Buffer allocate(int64_t bytes);
