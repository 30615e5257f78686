// Loops over arrays of floats that compilers turn into vector instructions.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

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

// ln x for positive normal x, to one unit in the last place or so (Cephes' polynomial); loops over it vectorize.
inline float fast_log(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    int32_t e = (bits - 0x3f3504f3) >> 23;  // so that the mantissa lies in [√½, √2)
    int32_t rest = bits - e * (1 << 23);
    float m, exponent = (float)e;
    std::memcpy(&m, &rest, 4);
    m -= 1;
    float z = m * m, y = 7.0376836292e-2f;
    y = y * m - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * z - 2.12194440e-4f * exponent - 0.5f * z;
    return m + y + 0.693359375f * exponent;
}

// e^x for x ≤ 0; zero below −87.
inline float fast_exp(float x) {
    float clipped = std::max(x, -87.0f);
    float n = std::floor(clipped * 1.44269504f + 0.5f);
    float r = clipped - n * 0.693359375f + n * 2.12194440e-4f, z = r * r, y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * z + r + 1;
    int32_t bits = ((int32_t)n + 127) * (1 << 23);
    float scale;
    std::memcpy(&scale, &bits, 4);
    return x < -87.0f ? 0 : y * scale;
}

VECTORIZED void add_scaled(float *out, const float *in, float weight, int n) {
    for (int i = 0; i < n; i++) out[i] += weight * in[i];
}

VECTORIZED void scaled(float *out, const float *in, float weight, int n) {
    for (int i = 0; i < n; i++) out[i] = weight * in[i];
}

VECTORIZED void logarithms(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = fast_log(x[i]);
}

// out += weight · ln x, and other += other_weight · ln x unless it is null.
[[maybe_unused]] VECTORIZED void add_logarithms(float *__restrict out, float weight, float *__restrict other,
                                                float other_weight, const float *__restrict x, int n) {
    if (other)
        for (int i = 0; i < n; i++) {
            float log_x = fast_log(x[i]);
            out[i] += weight * log_x;
            other[i] += other_weight * log_x;
        }
    else
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
