// Loops over arrays of floats that compilers turn into vector instructions.
#pragma once
#include "../fast_math.h"

// The newer levels have fused multiply-adds at every width of vectors. Without them at some width, how an element is
// rounded depends on where arrays lie in memory.
#if !defined(__x86_64__) || !defined(__GLIBC__) || defined(__clang__)  // other C libraries cannot choose between clones
#define VECTORIZED
#elif __GNUC__ >= 12
#define VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

namespace {

VECTORIZED void add_scaled(float *out, const float *in, float weight, int n) {
    for (int i = 0; i < n; i++) out[i] += weight * in[i];
}

VECTORIZED void scaled(float *out, const float *in, float weight, int n) {
    for (int i = 0; i < n; i++) out[i] = weight * in[i];
}

// out = ln(share + weight · count/f)
[[maybe_unused]] VECTORIZED void log_ratios(float *__restrict out, const double *__restrict count,
                                            const float *__restrict f, float weight, float share, int n) {
    for (int i = 0; i < n; i++) out[i] = fast_log(share + weight * (float)count[i] / f[i]);
}

VECTORIZED void logarithms(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = fast_log(x[i]);
}

// out += weight · ln x
VECTORIZED void add_logarithms(float *__restrict out, float weight, const float *__restrict x, int n) {
    for (int i = 0; i < n; i++) out[i] += weight * fast_log(x[i]);
}

constexpr int LANES = 16;  // sums are taken in lanes, so that they do not depend on where arrays lie in memory

inline float sum_of(const float *lanes) {
    float total = 0;
    for (int j = 0; j < LANES; j++) total += lanes[j];
    return total;
}

VECTORIZED float exponentials(float *x, float top, int n) {  // in place; returns their sum
    float lanes[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += x[i + j] = fast_exp(x[i + j] - top);
    for (int j = 0; i < n; i++, j++) lanes[j] += x[i] = fast_exp(x[i] - top);
    return sum_of(lanes);
}

[[maybe_unused]] VECTORIZED float dot(const float *a, const float *b, int n) {
    float lanes[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += a[i + j] * b[i + j];
    for (int j = 0; i < n; i++, j++) lanes[j] += a[i] * b[i];
    return sum_of(lanes);
}

}  // namespace
