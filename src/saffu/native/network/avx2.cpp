// The network's arithmetic with AVX2.
#include "network.h"

#ifdef SEVERAL_ARITHMETICS
#include <algorithm>  // outside of the target: what it compiles is shared with files for any machine
#include <cmath>
#include <cstring>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define VECTOR 32
#define ROWS 4
#define NAME avx2
#include "arithmetic.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
