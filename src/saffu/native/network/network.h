// A trained network in memory, as Python lays it out (companion/kernels.py), and the arithmetic on it, which is compiled
// once for each set of vector instructions (portable.cpp, avx2.cpp, …) and chosen at run time (network.cpp).
#pragma once
#include "../kernels.h"

constexpr int HEAD = 64;   // dimensions of a head, as in companion/weights.py
constexpr int PANEL = 32;  // tokens computed together; their activations are (features, PANEL), so that vectors hold tokens
constexpr int GROUP = 4;   // panels for which weights are read once
constexpr int ROWS_AT_ONCE = 8;  // of weights, at most

struct Network {
    int32_t vocabulary, layers, width, context;
    int32_t classes;                    // 0 if tokens are predicted directly
    const float *embedding;             // (vocabulary, width), shared with the output
    const float *attention;             // (layers, 4, width, width): query, key, value, output
    const float *mlp;                   // (layers, 2, 4·width, width): up, and down transposed
    const int8_t *embedding8, *attention8, *mlp8;                    // the same rounded, instead of these three, …
    const float *embedding_scale, *attention_scale, *mlp_scale;      // … with a scale for each row, …
    const int32_t *embedding_start, *attention_start, *up_start;     // … −128 times the sum of each row, …
    const int8_t *down8;                // … and (layers, width, 4·width): the second half of mlp8 transposed
    const float *distance;              // (layers, heads, PANEL + context + PANEL): −inf, biases by distance, zeros
    const float *sink;                  // (layers, heads)
    const float *head_gate;             // (layers, width, heads)
    const float *output_map;            // (width, width)
    const float *output_bias;           // (vocabulary − EOD)
    const float *class_map;             // (classes, width)
    const float *class_bias;
    const float *gate;                  // (width)
    const float *cosine, *sine;         // (context, HEAD / 2) of rotary positions
    const Token *rank, *token_of_rank, *class_of_rank;  // as in counted/query.h
    const int32_t *class_first;
};

// Tokens in a row: windows side by side, each of which sees only itself.
struct Row {
    int32_t length;
    const Token *inputs;                // (length)
    const int32_t *begin;               // (length) where the window of each token begins
    const uint8_t *wanted;              // (length) whether the state after a token is needed
    float *const *memory;               // (length) or null: where to store what is kept of each token
};

struct Arithmetic {
    // States after the wanted tokens of a row, into `states`: panels of (width, PANEL).
    void (*read)(const Network &network, const Row &row, float *states, float *scratch);
    // ln p of the targets of a panel of states, and what these add to the gate's logit.
    void (*score)(const Network &network, const float *panel, int n, const Token *targets, float *log_p, float *logit,
                  float *scratch);
    // One more token after `past` others of its window, whose memory is given; its own goes to `own`.
    void (*step)(const Network &network, Token token, const float *const *memory, int past, float *own, float *scratch);
    // Scores of all classes after a state, and of the tokens with ranks (or, without classes, ids) from lo to hi.
    void (*class_scores)(const Network &network, const float *state, float *out);
    void (*map)(const Network &network, const float *state, float *mapped);
    void (*token_scores)(const Network &network, const float *mapped, int lo, int hi, float *out, float *scratch);
    float (*log_total)(const float *scores, int n);  // ln Σ e^score
    void (*shares)(float *scores, int n);            // from scores to p, in place
    void (*mix)(const float *log_weights, const float *log_p, int components, int64_t n, float *out);  // see saffu_mixture
};

// Of a token are kept its keys and values in all layers (layers, 2, width), its state (width), and what that adds to the
// gate's logit (1).

extern const Arithmetic portable;
#if defined(__x86_64__) && !defined(_WIN32)  // GCC for Windows does not align the stack for longer vectors
#define SEVERAL_ARITHMETICS
extern const Arithmetic avx2, avx512, vnni;
#endif
