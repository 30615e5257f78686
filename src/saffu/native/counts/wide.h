// Unsigned integers of 128 bits, as far as keys need them: not every compiler has its own.
#pragma once
#include <cstdint>

struct Wide {
    uint64_t low, high;  // in this order in memory, as NumPy arrays of two words have them

    Wide() = default;
    constexpr Wide(uint64_t low, uint64_t high = 0) : low(low), high(high) {}
    explicit constexpr operator uint64_t() const { return low; }
    explicit constexpr operator uint16_t() const { return (uint16_t)low; }
};

// Shifts by less than 128.
constexpr Wide operator<<(Wide x, int bits) {
    if (bits == 0) return x;
    if (bits >= 64) return {0, x.low << (bits - 64)};
    return {x.low << bits, (x.high << bits) | (x.low >> (64 - bits))};
}

constexpr Wide operator>>(Wide x, int bits) {
    if (bits == 0) return x;
    if (bits >= 64) return {x.high >> (bits - 64), 0};
    return {(x.low >> bits) | (x.high << (64 - bits)), x.high >> bits};
}

constexpr Wide operator|(Wide x, Wide y) { return {x.low | y.low, x.high | y.high}; }
constexpr bool operator==(Wide x, Wide y) { return x.low == y.low && x.high == y.high; }
constexpr bool operator!=(Wide x, Wide y) { return !(x == y); }
constexpr bool operator<(Wide x, Wide y) { return x.high != y.high ? x.high < y.high : x.low < y.low; }
constexpr bool operator<=(Wide x, Wide y) { return !(y < x); }
