// The network's arithmetic with AVX-512.
#include "network.h"

#ifdef SEVERAL_ARITHMETICS
#include <algorithm>  // outside of the target: what it compiles is shared with files for any machine
#include <cmath>
#include <cstring>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif
#define VECTOR 64
#define ROWS 8
#define NAME avx512
#include "arithmetic.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
