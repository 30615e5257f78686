// The trained network: scores of targets, windows that are read token by token, and distributions.
#include "network.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

namespace {

int level = -1;  // of vector instructions; −1: the best this machine has

const Arithmetic &arithmetic() {
#ifdef SEVERAL_ARITHMETICS
    static const Arithmetic *const all[] = {&portable, &avx2, &avx512, &vnni};
    static const int best = !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ? 0
                            : !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
                                    !__builtin_cpu_supports("avx512vl") ? 1
                            : !__builtin_cpu_supports("avx512vnni") ? 2 : 3;
    return *all[level < 0 ? best : std::min(level, best)];
#else
    return portable;
#endif
}

// Floats for the arithmetic, at the beginning of a line of the cache.
class Floats {
  public:
    explicit Floats(int64_t size) : memory(new float[size + 16]) {}
    float *data() { return (float *)(((uintptr_t)memory.get() + 63) & ~(uintptr_t)63); }

  private:
    std::unique_ptr<float[]> memory;
};

int64_t panels_of(int64_t length) { return (length + PANEL - 1) / PANEL; }

// Floats that reading a row, scoring a panel, and reading a token need, as they divide them.
int64_t row_scratch(const Network &network) {
    int64_t width = network.width, tokens = panels_of(network.context) * PANEL, group = GROUP * PANEL;
    return tokens * width + 11 * group * width + 2 * width * (tokens + 16) + tokens * (PANEL + HEAD + 1) + group +
           ROWS_AT_ONCE * 4 * width;
}
int64_t score_scratch(const Network &network) {
    return network.width * (2 * PANEL + 1 + ROWS_AT_ONCE) + std::max<int64_t>(256 * PANEL, network.vocabulary);
}
int64_t step_scratch(const Network &network) { return 21 * network.width + network.context; }

// From scores to ln p plus `added`, in place.
void log_shares(const Arithmetic &use, float *scores, int n, float added) {
    float normalizer = use.log_total(scores, n) - added;
    for (int i = 0; i < n; i++) scores[i] -= normalizer;
}

// A place among scores, which become p, from a number in [0, 1).
int draw(const Arithmetic &use, float *scores, int n, double share) {
    use.shares(scores, n);
    double below = 0;
    for (int i = 0; i < n; i++)
        if ((below += scores[i]) > share) return i;
    return (int)(std::max_element(scores, scores + n) - scores);
}

}  // namespace

extern "C" {

// Uses vector instructions of at most this level (0: portable, 1: AVX2, 2: AVX-512, 3: with VNNI; −1: no limit), for tests.
EXPORT void saffu_network_level(int32_t at_most) { level = at_most; }

// For the wanted places of rows (n, length): ln p of their targets, what their states add to the gate's logit, and, unless
// `hidden` is null, these states (n, length, width). Windows are as `Row` describes them.
EXPORT void saffu_network_score(const Network *network, int64_t n, int32_t length, const Token *inputs, const int32_t *begin,
                         const uint8_t *wanted, const Token *targets, float *log_p, float *logit, float *hidden) KERNEL {
    const Arithmetic &use = arithmetic();
    Floats scratch(std::max(row_scratch(*network), score_scratch(*network)));
    Floats states(panels_of(length) * PANEL * network->width);
    for (int64_t at = 0; at < n * length; at += length) {
        int used = length;
        while (used > 0 && !wanted[at + used - 1]) used--;
        use.read(*network, Row{used, inputs + at, begin + at, wanted + at, nullptr}, states.data(), scratch.data());
        for (int first = 0; first < used; first += PANEL) {
            int panel = std::min(PANEL, used - first);
            if (std::find(wanted + at + first, wanted + at + first + panel, 1) == wanted + at + first + panel) continue;
            use.score(*network, states.data() + first * network->width, panel, targets + at + first, log_p + at + first,
                      logit + at + first, scratch.data());
        }
        for (int64_t place = 0; hidden && place < used; place++) {
            const float *panel = states.data() + place / PANEL * PANEL * network->width + place % PANEL;
            float *out = hidden + (at + place) * network->width;
            for (int64_t d = 0; d < network->width; d++) out[d] = panel[d * PANEL];
        }
    }
} OR_FAIL()

// Reads a window (n) and stores what is kept of its tokens from place `past` on; `memory` (n), to which `offset` is added,
// is as `Row` describes it.
EXPORT void saffu_network_read(const Network *network, const Token *inputs, int32_t n, int32_t past,
                               float *const *memory, int64_t offset) KERNEL {
    Floats scratch(row_scratch(*network)), states(panels_of(n) * PANEL * network->width);
    std::vector<int32_t> begin(n, 0);
    std::vector<uint8_t> wanted(n, 1);
    std::vector<float *> own(n, nullptr);
    for (int i = past; i < n; i++) own[i] = memory[i] + offset;
    Row row{n, inputs, begin.data(), wanted.data(), own.data()};
    arithmetic().read(*network, row, states.data(), scratch.data());
} OR_FAIL()

// Reads one token after `past` others, whose memory is given, into the last of `memory` (past + 1).
EXPORT void saffu_network_step(const Network *network, int32_t token, int32_t past, float *const *memory, int64_t offset) KERNEL {
    Floats scratch(step_scratch(*network));
    std::vector<const float *> before(past);
    for (int i = 0; i < past; i++) before[i] = memory[i] + offset;
    arithmetic().step(*network, (Token)token, before.data(), past, memory[past] + offset, scratch.data());
} OR_FAIL()

// ln p of every token after each state (n, width): (n, vocabulary), −inf for what is never predicted.
EXPORT void saffu_network_distribution(const Network *network, const float *states, int64_t n, float *out) KERNEL {
    const Arithmetic &use = arithmetic();
    Floats mapped(2 * network->width), scores(network->vocabulary), of_classes(network->classes + 1);
    float *scratch = mapped.data() + network->width;
    int outputs = network->vocabulary - (int)EOD;
    for (int64_t row = 0; row < n; row++, states += network->width, out += network->vocabulary) {
        use.map(*network, states, mapped.data());
        std::fill(out, out + EOD, -INFINITY);
        if (!network->classes) {
            use.token_scores(*network, mapped.data(), (int)EOD, network->vocabulary, out + EOD, scratch);
            log_shares(use, out + EOD, outputs, 0);
            continue;
        }
        use.class_scores(*network, states, of_classes.data());
        log_shares(use, of_classes.data(), network->classes, 0);
        use.token_scores(*network, mapped.data(), 0, outputs, scores.data(), scratch);
        for (int k = 0; k < network->classes; k++) {
            int lo = network->class_first[k], hi = network->class_first[k + 1];
            log_shares(use, scores.data() + lo, hi - lo, of_classes.data()[k]);
        }
        for (int rank = 0; rank < outputs; rank++) out[network->token_of_rank[rank]] = scores.data()[rank];
    }
} OR_FAIL()

// That distribution for one state, class by class: its map (width), and the probabilities of the classes.
EXPORT void saffu_network_classes(const Network *network, const float *state, float *mapped, float *out) KERNEL {
    const Arithmetic &use = arithmetic();
    use.map(*network, state, mapped);
    use.class_scores(*network, state, out);
    use.shares(out, network->classes);
} OR_FAIL()

// From that map, the probabilities of the tokens of class k, given the class.
EXPORT void saffu_network_members(const Network *network, const float *mapped, int32_t k, float *out) KERNEL {
    const Arithmetic &use = arithmetic();
    Floats scratch(network->width);
    int lo = network->class_first[k], hi = network->class_first[k + 1];
    use.token_scores(*network, mapped, lo, hi, out, scratch.data());
    use.shares(out, hi - lo);
} OR_FAIL()

// Samples a token from that distribution with two numbers from [0, 1): a class, then a token of that class.
EXPORT int32_t saffu_network_sample(const Network *network, const float *state, const double *uniform) KERNEL {
    const Arithmetic &use = arithmetic();
    Floats mapped(2 * network->width), scores(network->vocabulary);
    float *scratch = mapped.data() + network->width;
    use.map(*network, state, mapped.data());
    if (!network->classes) {
        use.token_scores(*network, mapped.data(), (int)EOD, network->vocabulary, scores.data(), scratch);
        return (int32_t)EOD + draw(use, scores.data(), network->vocabulary - (int)EOD, uniform[1]);
    }
    use.class_scores(*network, state, scores.data());
    int k = draw(use, scores.data(), network->classes, uniform[0]);
    int lo = network->class_first[k], hi = network->class_first[k + 1];
    use.token_scores(*network, mapped.data(), lo, hi, scores.data(), scratch);
    return network->token_of_rank[lo + draw(use, scores.data(), hi - lo, uniform[1])];
} OR_FAIL(0)

// ln Σ_c w_c·p_c of n outcomes, from ln w (components) and ln p (components, n).
EXPORT void saffu_mixture(const float *log_weights, const float *log_p, int32_t components, int64_t n, float *out) KERNEL {
    arithmetic().mix(log_weights, log_p, components, n, out);
} OR_FAIL()
}
