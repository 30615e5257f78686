// Logarithms and exponentials of floats, in loops that compilers turn into vector instructions.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

// Bits are computed without signs, which may not overflow: the numbers of a folder made to do harm can be anything.

// ln x for positive normal x, to one unit in the last place or so (Cephes' polynomial); loops over it vectorize.
inline float fast_log(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23;  // so that the mantissa lies in [√½, √2)
    uint32_t rest = bits - ((uint32_t)e << 23);
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
    uint32_t bits = ((uint32_t)(int32_t)n + 127u) << 23;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return x < -87.0f ? 0 : y * scale;
}

}  // namespace
