// For word classes: sparse products, for token vectors, and the exchange of tokens between classes.
#include "../kernels.h"

#include <cmath>
#include <vector>

namespace {

// n ln n in units of 2⁻¹⁶, from a table while n is small. Integers add up to the same sum in any order: moves that are
// worth the same are recognized, and the last bits of a logarithm, which depend on the C library, do not decide.
struct Entropy {
    std::vector<int64_t> table;
    Entropy() : table(1 << 16, 0) {
        for (size_t n = 1; n < table.size(); n++) table[n] = computed((int64_t)n);
    }
    static int64_t computed(int64_t n) { return std::llround((double)n * std::log((double)n) * 65536.0); }
    int64_t operator()(int64_t n) const { return n < (int64_t)table.size() ? table[n] : computed(n); }
};

}  // namespace

extern "C" {

// out (rows or columns, width) += S·dense, or Sᵀ·dense; S has the values of row i from begin[i] to begin[i + 1].
EXPORT void saffu_sparse_product(const int64_t *begin, const Token *column, const double *value, int64_t rows,
                                 const double *dense, int64_t width, int32_t transposed, double *out) KERNEL {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t entry = begin[i]; entry < begin[i + 1]; entry++) {
            const double *in = dense + width * (transposed ? i : column[entry]);
            double *to = out + width * (transposed ? column[entry] : i);
            for (int64_t k = 0; k < width; k++) to[k] += value[entry] * in[k];
        }
} OR_FAIL()

// Moves tokens from `first` on to whichever of their candidate classes (tokens, n_candidates) makes their neighbors most
// likely, one after the other, in sweeps over all of them: Σ n(class, neighbor) ln n(class, neighbor) − Σ n(class) ln n(class)
// grows with every move. Returns the number of moves.
EXPORT int64_t saffu_exchange(const int64_t *begin, const Token *neighbor, const uint32_t *count, int64_t tokens,
                              int64_t classes, const Token *candidates, int64_t n_candidates, int64_t first,
                              int32_t sweeps, Token *class_of) KERNEL {
    Entropy entropy;
    std::vector<uint32_t> joint((size_t)classes * tokens, 0);
    std::vector<int64_t> total(classes, 0), own(tokens, 0), of_neighbor(tokens, 0);
    for (int64_t v = first; v < tokens; v++)
        for (int64_t e = begin[v]; e < begin[v + 1]; e++) {
            joint[(size_t)class_of[v] * tokens + neighbor[e]] += count[e];
            total[class_of[v]] += count[e];
            own[v] += count[e];
            require_count(of_neighbor[neighbor[e]] += count[e]);  // so that no sum of a class overflows
        }
    int64_t moves = 0;
    for (int sweep = 0; sweep < sweeps; sweep++) {
        int64_t before = moves;
        for (int64_t v = first; v < tokens; v++) {
            if (!own[v]) continue;
            int from = class_of[v], to = from;
            uint32_t *here = &joint[(size_t)from * tokens];
            int64_t best = entropy(total[from] - own[v]) - entropy(total[from]);  // the cost of leaving
            for (int64_t e = begin[v]; e < begin[v + 1]; e++)
                best += entropy(here[neighbor[e]]) - entropy(here[neighbor[e]] - count[e]);
            for (int64_t c = 0; c < n_candidates; c++) {
                int other = candidates[v * n_candidates + c];
                if (other == from) continue;
                const uint32_t *there = &joint[(size_t)other * tokens];
                int64_t gain = entropy(total[other]) - entropy(total[other] + own[v]);
                for (int64_t e = begin[v]; e < begin[v + 1]; e++)
                    gain += entropy(there[neighbor[e]] + count[e]) - entropy(there[neighbor[e]]);
                if (gain > best) {
                    best = gain;
                    to = other;
                }
            }
            if (to == from) continue;
            for (int64_t e = begin[v]; e < begin[v + 1]; e++) {
                here[neighbor[e]] -= count[e];
                joint[(size_t)to * tokens + neighbor[e]] += count[e];
            }
            total[from] -= own[v];
            total[to] += own[v];
            class_of[v] = (Token)to;
            moves++;
        }
        if (moves - before < tokens / 200) break;
    }
    return moves;
} OR_FAIL(0)
}
