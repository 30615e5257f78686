// For each line "x.high x.low y.high y.low bits" of standard input, in hexadecimal but the last: x << bits, x >> bits,
// x | y, and whether x == y, x < y, and x <= y.
#include "counts/wide.h"

#include <cinttypes>
#include <cstdio>

static void print(Wide x) { std::printf("%016" PRIx64 "%016" PRIx64 " ", x.high, x.low); }

int main() {
    Wide x, y;
    int bits;
    while (std::scanf("%" SCNx64 "%" SCNx64 "%" SCNx64 "%" SCNx64 "%d", &x.high, &x.low, &y.high, &y.low, &bits) == 5) {
        print(x << bits);
        print(x >> bits);
        print(x | y);
        std::printf("%d%d%d\n", x == y, x < y, x <= y);
    }
}
