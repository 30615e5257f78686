// The arithmetic of the network, included by one file per set of vector instructions, which defines VECTOR (bytes), ROWS
// (of a tile that is computed in registers), NAME, and, if there are such instructions, PRODUCTS_OF_BYTES.
//
// Everything is a product C = A·B with B (depth, PANEL): A is a matrix of weights, the keys, or the values, used as it lies
// in memory. Each column is computed alike wherever it stands, so a prediction does not depend on what is computed with it.
//
// If weights are int8, each column of B is rounded, too: to whole numbers up to ±127, or up to 255 if none is negative.
// Products of whole numbers are exact, with all sets of instructions.
#include "../fast_math.h"
#include "network.h"

namespace {

constexpr int LANES = VECTOR / 4;
constexpr float EPSILON = 1.1920929e-7f;  // of RMSNorm
#ifdef __GNUC__
typedef float Vector __attribute__((vector_size(VECTOR), aligned(4), may_alias));
typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

inline float sum_of(const Vector &lanes) {
    Four sum = {};
    for (int i = 0; i < LANES / 4; i++) sum += ((const Four *)&lanes)[i];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}
#else
struct Vector {  // which compilers without such types turn into vector instructions if they can
    float lane[LANES];
    friend Vector operator+(Vector a, const Vector &b) {
        for (int i = 0; i < LANES; i++) a.lane[i] += b.lane[i];
        return a;
    }
    friend Vector operator*(Vector a, const Vector &b) {
        for (int i = 0; i < LANES; i++) a.lane[i] *= b.lane[i];
        return a;
    }
    friend Vector operator*(float a, Vector b) {
        for (float &x : b.lane) x *= a;
        return b;
    }
    void operator+=(const Vector &b) { *this = *this + b; }
};

inline float sum_of(const Vector &lanes) {
    float sum = 0;
    for (float x : lanes.lane) sum += x;
    return sum;
}
#endif

inline Vector load(const float *from) { return *(const Vector *)from; }
inline void store(float *to, Vector value) { *(Vector *)to = value; }
inline int heads_of(const Network &network) { return network.width / HEAD; }
inline int panels_of(int length) { return (length + PANEL - 1) / PANEL; }

// Rows of A lie `row` apart, its columns `column` apart.
template <int N>
inline void tile(const float *A, int64_t row, int64_t column, const float *B, int depth, float *C, int64_t c_row, bool add) {
    for (int first = 0; first < PANEL; first += 2 * LANES) {
        Vector sums[N][2];
        for (int r = 0; r < N; r++) {
            sums[r][0] = add ? load(C + r * c_row + first) : Vector{};
            sums[r][1] = add ? load(C + r * c_row + first + LANES) : Vector{};
        }
        const float *a = A, *b = B + first;
        for (int k = 0; k < depth; k++, a += column, b += PANEL) {
            Vector left = load(b), right = load(b + LANES);
#pragma GCC unroll 8
            for (int r = 0; r < N; r++) {
                sums[r][0] += a[r * row] * left;
                sums[r][1] += a[r * row] * right;
            }
        }
        for (int r = 0; r < N; r++) {
            store(C + r * c_row + first, sums[r][0]);
            store(C + r * c_row + first + LANES, sums[r][1]);
        }
    }
}

// Weights, a row for each output: numbers with rows and columns as in `tile`, or bytes (rows, depth).
struct Matrix {
    const float *numbers;
    int64_t row, column;
    const int8_t *bytes;
    const float *scale;    // (rows), or null if all are 1
    const int32_t *start;  // (rows) −128·Σ bytes if inputs can be negative, or null: bytes of inputs begin at −128 then
};

// Panels of inputs (depth, PANEL), or what they are rounded to.
struct Inputs {
    const float *numbers;
    const uint8_t *bytes;  // panels of (depth / 4, PANEL, 4)
    const float *factor;   // (panels, PANEL), of rounded ones
    float *scratch;        // (ROWS, depth)
};

// Rounds panels, into `out` of the same size; `signs`: whether there are negative numbers.
Inputs rounded(const float *in, int depth, int panels, bool signs, float *out, float *factors, float *scratch) {
    float limit = signs ? 127.0f : 255.0f;
    for (int p = 0; p < panels; p++) {
        const float *panel = in + (int64_t)p * depth * PANEL;
        float top[PANEL] = {0}, inverse[PANEL];
        for (int i = 0; i < depth; i++)
            for (int t = 0; t < PANEL; t++) {
                float size = std::fabs(panel[i * PANEL + t]);
                top[t] = size > top[t] ? size : top[t];
            }
        for (int t = 0; t < PANEL; t++) {
            factors[p * PANEL + t] = top[t] / limit;
            inverse[t] = top[t] > 0 ? limit / top[t] : 0;
        }
#ifdef PRODUCTS_OF_BYTES
        float middle = signs ? 128.5f : 0.5f;
        uint32_t *words = (uint32_t *)out + (int64_t)p * (depth / 4) * PANEL;
        for (int i = 0; i < depth / 4; i++)
            for (int t = 0; t < PANEL; t++) {
                const float *four = panel + 4 * i * PANEL + t;
                uint32_t word = (uint32_t)(int32_t)(four[0] * inverse[t] + middle);
                word |= (uint32_t)(int32_t)(four[PANEL] * inverse[t] + middle) << 8;
                word |= (uint32_t)(int32_t)(four[2 * PANEL] * inverse[t] + middle) << 16;
                words[i * PANEL + t] = word | (uint32_t)(int32_t)(four[3 * PANEL] * inverse[t] + middle) << 24;
            }
#else
        float *numbers = out + (int64_t)p * depth * PANEL;
        for (int i = 0; i < depth; i++)
            for (int t = 0; t < PANEL; t++)
                numbers[i * PANEL + t] = std::floor(panel[i * PANEL + t] * inverse[t] + 0.5f);
#endif
    }
    return Inputs{out, (const uint8_t *)out, factors, scratch};
}

#ifdef PRODUCTS_OF_BYTES
template <int N>
inline void tile_of_bytes(const Matrix &A, int first, const Inputs &B, int panel, int depth, float *C, int64_t c_row,
                          bool add) {
    __m512i sums[N][2];
    for (int r = 0; r < N; r++) sums[r][0] = sums[r][1] = _mm512_set1_epi32(A.start ? A.start[first + r] : 0);
    const int8_t *a = A.bytes + (int64_t)first * depth;
    const uint8_t *b = B.bytes + (int64_t)panel * depth * PANEL;
    for (int k = 0; k < depth; k += 4, a += 4, b += 4 * PANEL) {
        __m512i left = _mm512_loadu_si512(b), right = _mm512_loadu_si512(b + 64);
#pragma GCC unroll 8
        for (int r = 0; r < N; r++) {
            int32_t four;
            std::memcpy(&four, a + (int64_t)r * depth, 4);
            __m512i weights = _mm512_set1_epi32(four);
            sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], left, weights);
            sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], right, weights);
        }
    }
    for (int r = 0; r < N; r++)
        for (int half = 0; half < 2; half++) {
            float *c = C + r * c_row + half * LANES;
            Vector factor = load(B.factor + panel * PANEL + half * LANES) * (A.scale ? A.scale[first + r] : 1.0f);
            Vector sum = factor * (Vector)_mm512_cvtepi32_ps(sums[r][half]);
            store(c, add ? load(c) + sum : sum);
        }
}
#else
template <int N>
inline void tile_of_bytes(const Matrix &A, int first, const Inputs &B, int panel, int depth, float *C, int64_t c_row,
                          bool add) {
    float sums[N * PANEL];
    tile<N>(B.scratch, depth, 1, B.numbers + (int64_t)panel * depth * PANEL, depth, sums, PANEL, false);
    for (int r = 0; r < N; r++)
        for (int t = 0; t < PANEL; t++) {
            float sum = sums[r * PANEL + t] * B.factor[panel * PANEL + t] * (A.scale ? A.scale[first + r] : 1.0f);
            C[r * c_row + t] = add ? C[r * c_row + t] + sum : sum;
        }
}
#endif

// Some panels of B, b_panel apart, and of C, c_panel apart; the rows of C lie c_row apart.
struct Product {
    int rows, depth, panels;
    int64_t b_panel, c_panel, c_row;
    bool add;

    void of(const float *A, int64_t row, int64_t column, const float *B, float *C) const {
        int r = 0;
        for (; r + ROWS <= rows; r += ROWS)
            for (int p = 0; p < panels; p++)
                tile<ROWS>(A + r * row, row, column, B + p * b_panel, depth, C + p * c_panel + r * c_row, c_row, add);
        for (; r < rows; r++)
            for (int p = 0; p < panels; p++)
                tile<1>(A + r * row, row, column, B + p * b_panel, depth, C + p * c_panel + r * c_row, c_row, add);
    }

    void of(const Matrix &A, const Inputs &B, float *C) const {
        if (A.numbers) return of(A.numbers, A.row, A.column, B.numbers, C);
        int r = 0;
        for (; r + ROWS <= rows; r += ROWS) of_bytes<ROWS>(A, r, B, C);
        for (; r < rows; r++) of_bytes<1>(A, r, B, C);
    }

    template <int N>
    void of_bytes(const Matrix &A, int first, const Inputs &B, float *C) const {
#ifndef PRODUCTS_OF_BYTES
        const int8_t *bytes = A.bytes + (int64_t)first * depth;
        for (int64_t i = 0; i < (int64_t)N * depth; i++) B.scratch[i] = bytes[i];
#endif
        for (int p = 0; p < panels; p++)
            tile_of_bytes<N>(A, first, B, p, depth, C + p * c_panel + first * c_row, c_row, add);
    }
};

// out[r] = a[r]·x for some rows of numbers; `width` is a multiple of HEAD.
template <int N>
inline void dots_of(const float *const *a, const float *x, int64_t width, float *out) {
    Vector sums[N][2] = {};
    for (int64_t i = 0; i < width; i += 2 * LANES)
#pragma GCC unroll 4
        for (int r = 0; r < N; r++) {
            sums[r][0] += load(a[r] + i) * load(x + i);
            sums[r][1] += load(a[r] + i + LANES) * load(x + i + LANES);
        }
    for (int r = 0; r < N; r++) out[r] = sum_of(sums[r][0] + sums[r][1]);
}

// The same for `rows` rows that row_at(r) finds.
template <class Find>
inline void dots_at(Find row_at, const float *x, int rows, int64_t width, float *out) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) {
        const float *a[4] = {row_at(r), row_at(r + 1), row_at(r + 2), row_at(r + 3)};
        dots_of<4>(a, x, width, out + r);
    }
    for (; r < rows; r++) {
        const float *a[1] = {row_at(r)};
        dots_of<1>(a, x, width, out + r);
    }
}

void dots(const float *A, const float *x, int rows, int64_t width, float *out) {
    dots_at([=](int r) { return A + r * width; }, x, rows, width, out);
}

// One input (width), or what it is rounded to.
struct Input {
    const float *numbers;
    const uint8_t *bytes;
    float factor;
};

Input rounded_one(const float *in, int64_t width, bool signs, float *out) {
    float top = 0, limit = signs ? 127.0f : 255.0f;
    for (int64_t i = 0; i < width; i++) top = std::fabs(in[i]) > top ? std::fabs(in[i]) : top;
    float inverse = top > 0 ? limit / top : 0;
#ifdef PRODUCTS_OF_BYTES
    float middle = signs ? 128.5f : 0.5f;
    for (int64_t i = 0; i < width; i++) ((uint8_t *)out)[i] = (uint8_t)(int32_t)(in[i] * inverse + middle);
#else
    for (int64_t i = 0; i < width; i++) out[i] = std::floor(in[i] * inverse + 0.5f);
#endif
    return Input{out, (const uint8_t *)out, top / limit};
}

// The product of two rows of whole numbers; `start` makes up for inputs that begin at −128.
inline float dot_of_bytes(const int8_t *a, const Input &x, int64_t width, int32_t start) {
#ifdef PRODUCTS_OF_BYTES
    __m512i sums = _mm512_setzero_si512();
    for (int64_t i = 0; i < width; i += 64)
        sums = _mm512_dpbusd_epi32(sums, _mm512_loadu_si512(x.bytes + i), _mm512_loadu_si512(a + i));
    return (float)(start + _mm512_reduce_add_epi32(sums));
#else
    (void)start;
    float lanes[16] = {0}, sum = 0;
    for (int64_t i = 0; i < width; i += 16)
        for (int j = 0; j < 16; j++) lanes[j] += (float)a[i + j] * x.numbers[i + j];
    for (float lane : lanes) sum += lane;
    return sum;
#endif
}

void dots(const Matrix &A, const Input &x, int rows, int64_t width, float *out) {
    if (A.numbers) return dots(A.numbers, x.numbers, rows, width, out);
    for (int r = 0; r < rows; r++)
        out[r] = dot_of_bytes(A.bytes + r * width, x, width, A.start ? A.start[r] : 0) * x.factor *
                 (A.scale ? A.scale[r] : 1.0f);
}

Matrix map_of(const Network &network, int layer, int which) {
    int64_t width = network.width, square = width * width, place = layer * 4 + which;
    if (network.attention) return {network.attention + place * square, width, 1, nullptr, nullptr, nullptr};
    return {nullptr, 0, 0, network.attention8 + place * square, network.attention_scale + place * width,
            network.attention_start + place * width};
}

Matrix up_of(const Network &network, int layer) {
    int64_t width = network.width, square = width * width;
    if (network.mlp) return {network.mlp + layer * 8 * square, width, 1, nullptr, nullptr, nullptr};
    return {nullptr, 0, 0, network.mlp8 + layer * 8 * square, network.mlp_scale + layer * 8 * width,
            network.up_start + layer * 4 * width};
}

// The rows of rounded ones have no scale; those of their inputs are part of the inputs.
Matrix down_of(const Network &network, int layer) {
    int64_t width = network.width, square = width * width;
    if (network.mlp) return {network.mlp + layer * 8 * square + 4 * square, 1, width, nullptr, nullptr, nullptr};
    return {nullptr, 0, 0, network.down8 + layer * 4 * square, nullptr, nullptr};
}

Matrix output_of(const Network &network, int64_t token) {
    int64_t width = network.width;
    if (network.embedding) return {network.embedding + token * width, width, 1, nullptr, nullptr, nullptr};
    return {nullptr, 0, 0, network.embedding8 + token * width, network.embedding_scale + token,
            network.embedding_start + token};
}

void embedding_of(const Network &network, int64_t token, float *out, int64_t step) {
    int64_t width = network.width;
    for (int64_t i = 0; i < width; i++)
        out[i * step] = network.embedding ? network.embedding[token * width + i]
                                          : network.embedding8[token * width + i] * network.embedding_scale[token];
}

// RMSNorm without parameters, of each column.
void normalize(const float *in, float *out, int features, float scale = 1) {
    float factor[PANEL] = {0};
    for (int i = 0; i < features; i++)
        for (int t = 0; t < PANEL; t++) factor[t] += in[i * PANEL + t] * in[i * PANEL + t];
    for (int t = 0; t < PANEL; t++) factor[t] = scale / std::sqrt(factor[t] / features + EPSILON);
    for (int i = 0; i < features; i++)
        for (int t = 0; t < PANEL; t++) out[i * PANEL + t] = in[i * PANEL + t] * factor[t];
}

// Rotary positions: the halves of a head are turned by angles that grow with position.
void turn(float *head, const float *cosine, const float *sine) {
    float *one = head, *other = head + HEAD / 2 * PANEL;
    for (int i = 0; i < HEAD / 2 * PANEL; i++) {
        float a = one[i], b = other[i];
        one[i] = a * cosine[i] - b * sine[i];
        other[i] = a * sine[i] + b * cosine[i];
    }
}

// From scores (keys, PANEL) of queries at `place` and after to their weights; keys begin at `first`.
void attend(float *scores, int first, int keys, int place, const float *distance, float sink, const int32_t *begin,
            float *total) {
    float top[PANEL];
    for (int t = 0; t < PANEL; t++) top[t] = sink;
    for (int j = 0; j < keys; j++) {
        float *row = scores + j * PANEL;
        const float *bias = distance + PANEL + place - (first + j);
        int key = first + j;
        for (int t = 0; t < PANEL; t++) {
            float score = key < begin[t] ? -INFINITY : row[t] + bias[t];
            row[t] = score;
            top[t] = score > top[t] ? score : top[t];
        }
    }
    for (int t = 0; t < PANEL; t++) total[t] = fast_exp(sink - top[t]);
    for (int j = 0; j < keys; j++) {
        float *row = scores + j * PANEL;
        for (int t = 0; t < PANEL; t++) total[t] += row[t] = fast_exp(row[t] - top[t]);
    }
}

// Where everything lies while a row is read; keys and values (width, STRIDE) of one layer.
struct Scratch {
    int64_t stride;
    float *x, *normal, *query, *heads, *inner, *scores, *keys, *values, *cosine, *sine, *whole, *factors, *rows;
    int32_t *begin;
    bool rounds;  // inputs of products: weights are int8

    Scratch(const Network &network, float *at) {
        int64_t width = network.width, panels = panels_of(network.context);
        stride = panels * PANEL + 16;  // not a power of two, or all features would share a few lines of the cache
        auto take = [&](int64_t size) { return (at += size) - size; };
        x = take(panels * width * PANEL);
        normal = take(GROUP * width * PANEL);
        query = take(GROUP * width * PANEL);
        heads = take(GROUP * width * PANEL);
        inner = take(GROUP * 4 * width * PANEL);
        scores = take(panels * PANEL * PANEL);
        keys = take(width * stride);
        values = take(width * stride);
        cosine = take(panels * HEAD / 2 * PANEL);
        sine = take(panels * HEAD / 2 * PANEL);
        begin = (int32_t *)take(panels * PANEL);
        whole = take(GROUP * 4 * width * PANEL);
        factors = take(GROUP * PANEL);
        rows = take(ROWS_AT_ONCE * 4 * width);
        rounds = !network.attention;
    }

    Inputs inputs(const float *in, int64_t depth, int panels, bool signs = true) const {
        if (rounds) return rounded(in, (int)depth, panels, signs, whole, factors, rows);
        return Inputs{in, nullptr, nullptr, nullptr};
    }
};

void embed(const Network &network, const Row &row, const Scratch &at) {
    int64_t width = network.width;
    for (int t = 0; t < panels_of(row.length) * PANEL; t++) {
        bool used = t < row.length;
        at.begin[t] = used ? row.begin[t] : t;
        const float *cosine = network.cosine + (t - at.begin[t]) * (HEAD / 2);
        const float *sine = network.sine + (t - at.begin[t]) * (HEAD / 2);
        int64_t panel = t / PANEL, column = t % PANEL;
        embedding_of(network, used ? row.inputs[t] : 0, at.x + panel * width * PANEL + column, PANEL);
        for (int i = 0; i < HEAD / 2; i++) {
            at.cosine[(panel * HEAD / 2 + i) * PANEL + column] = cosine[i];
            at.sine[(panel * HEAD / 2 + i) * PANEL + column] = sine[i];
        }
    }
}

// Keys and values of some panels of one layer, from normalized inputs.
void map_keys(const Network &network, int layer, const Inputs &normal, int first, int panels, const Scratch &at) {
    int64_t width = network.width;
    Product product{(int)width, (int)width, panels, width * PANEL, PANEL, at.stride, false};
    product.of(map_of(network, layer, 2), normal, at.values + first * PANEL);
    product.c_panel = width * PANEL;
    product.c_row = PANEL;
    product.of(map_of(network, layer, 1), normal, at.heads);
    for (int p = 0; p < panels; p++)
        for (int h = 0; h < heads_of(network); h++) {
            float *head = at.heads + (p * width + h * HEAD) * PANEL;
            normalize(head, head, HEAD);
            turn(head, at.cosine + (first + p) * HEAD / 2 * PANEL, at.sine + (first + p) * HEAD / 2 * PANEL);
            for (int i = 0; i < HEAD; i++)
                for (int t = 0; t < PANEL; t++)
                    at.keys[(h * HEAD + i) * at.stride + (first + p) * PANEL + t] = head[i * PANEL + t];
        }
}

inline float sigmoid(float x) {
    float e = fast_exp(x < 0 ? x : -x);
    return (x < 0 ? e : 1.0f) / (1 + e);
}

// Multiplies what each head of one panel read by 2·σ(normal · its gate).
void gate_heads(const Network &network, int layer, const float *normal, float *read, float *factors) {
    int heads = heads_of(network);
    Product product{heads, network.width, 1, 0, 0, PANEL, false};
    product.of(network.head_gate + (int64_t)layer * network.width * heads, 1, heads, normal, factors);
    for (int i = 0; i < heads * PANEL; i++) factors[i] = 2 * sigmoid(factors[i]);
    for (int i = 0; i < network.width; i++)
        for (int t = 0; t < PANEL; t++) read[i * PANEL + t] *= factors[i / HEAD * PANEL + t];
}

// What the heads of one panel read: `out` (width, PANEL) from queries of the same shape.
void attention(const Network &network, int layer, int panel, float *query, float *out, const Scratch &at) {
    int place = panel * PANEL, first = place;
    for (int t = 0; t < PANEL; t++) first = at.begin[place + t] < first ? at.begin[place + t] : first;
    int keys = place + PANEL - first;
    int64_t biases = 2 * PANEL + network.context;
    for (int h = 0; h < heads_of(network); h++) {
        float *head = query + h * HEAD * PANEL, *result = out + h * HEAD * PANEL;
        float total[PANEL];
        normalize(head, head, HEAD, 0.125f);  // scores are divided by √HEAD
        turn(head, at.cosine + panel * HEAD / 2 * PANEL, at.sine + panel * HEAD / 2 * PANEL);
        Product scores{keys, HEAD, 1, 0, 0, PANEL, false};
        scores.of(at.keys + h * HEAD * at.stride + first, 1, at.stride, head, at.scores);
        int64_t which = layer * heads_of(network) + h;
        attend(at.scores, first, keys, place, network.distance + which * biases, network.sink[which], at.begin + place, total);
        Product values{HEAD, keys, 1, 0, 0, PANEL, false};
        values.of(at.values + h * HEAD * at.stride + first, at.stride, 1, at.scores, result);
        for (int t = 0; t < PANEL; t++) total[t] = 1 / total[t];
        for (int i = 0; i < HEAD; i++)
            for (int t = 0; t < PANEL; t++) result[i * PANEL + t] *= total[t];
    }
}

void keep(const Network &network, const Row &row, int layer, const Scratch &at) {
    int64_t width = network.width;
    for (int t = 0; t < row.length; t++) {
        if (!row.memory[t]) continue;
        float *own = row.memory[t] + 2 * layer * width;
        for (int i = 0; i < width; i++) {
            own[i] = at.keys[i * at.stride + t];
            own[width + i] = at.values[i * at.stride + t];
        }
    }
}

bool any_wanted(const Row &row, int first, int panels) {
    int end = (first + panels) * PANEL < row.length ? (first + panels) * PANEL : row.length;
    for (int t = first * PANEL; t < end; t++)
        if (row.wanted[t]) return true;
    return false;
}

// From what rises to what falls: relu(x)², times the scales of rounded weights.
void square_positive(const Network &network, int layer, float *inner, int panels) {
    int64_t rows = 4 * network.width;
    const float *scale = network.mlp ? nullptr : network.mlp_scale + (2 * layer + 1) * rows;
    for (int64_t i = 0; i < panels * rows; i++) {
        float factor = scale ? scale[i % rows] : 1.0f;
        for (int t = 0; t < PANEL; t++) {
            float positive = inner[i * PANEL + t] > 0 ? inner[i * PANEL + t] : 0;
            inner[i * PANEL + t] = positive * positive * factor;
        }
    }
}

// One layer for a group of panels.
void read_group(const Network &network, const Row &row, int layer, int first, int panels, const Scratch &at) {
    int64_t width = network.width;
    float *x = at.x + first * width * PANEL;
    for (int p = 0; p < panels; p++) normalize(x + p * width * PANEL, at.normal + p * width * PANEL, width);
    Inputs normal = at.inputs(at.normal, width, panels);
    map_keys(network, layer, normal, first, panels, at);
    if (layer == network.layers - 1 && !any_wanted(row, first, panels)) return;
    Product product{(int)width, (int)width, panels, width * PANEL, width * PANEL, PANEL, false};
    product.of(map_of(network, layer, 0), normal, at.query);
    for (int p = 0; p < panels; p++) {
        float *read = at.heads + p * width * PANEL;
        attention(network, layer, first + p, at.query + p * width * PANEL, read, at);
        gate_heads(network, layer, at.normal + p * width * PANEL, read, at.scores);
    }
    product.add = true;
    product.of(map_of(network, layer, 3), at.inputs(at.heads, width, panels), x);
    for (int p = 0; p < panels; p++) normalize(x + p * width * PANEL, at.normal + p * width * PANEL, width);
    Product rise{(int)(4 * width), (int)width, panels, width * PANEL, 4 * width * PANEL, PANEL, false};
    rise.of(up_of(network, layer), at.inputs(at.normal, width, panels), at.inner);
    square_positive(network, layer, at.inner, panels);
    Product fall{(int)width, (int)(4 * width), panels, 4 * width * PANEL, width * PANEL, PANEL, true};
    fall.of(down_of(network, layer), at.inputs(at.inner, 4 * width, panels, false), x);
}

void read_row(const Network &network, const Row &row, float *states, float *scratch) {
    Scratch at(network, scratch);
    int panels = panels_of(row.length);
    int64_t width = network.width;
    embed(network, row, at);
    for (int layer = 0; layer < network.layers; layer++) {
        for (int first = 0; first < panels; first += GROUP)
            read_group(network, row, layer, first, panels - first < GROUP ? panels - first : GROUP, at);
        if (row.memory) keep(network, row, layer, at);
    }
    for (int p = 0; p < panels; p++)
        if (any_wanted(row, p, 1)) normalize(at.x + p * width * PANEL, states + p * width * PANEL, width);
    if (!row.memory) return;
    for (int t = 0; t < row.length; t++)
        if (row.memory[t]) {
            float *state = row.memory[t] + 2 * network.layers * width;
            for (int i = 0; i < width; i++) state[i] = states[(t / PANEL * width + i) * PANEL + t % PANEL];
            dots(network.gate, state, 1, width, state + width);
        }
}

// Adds rows (rows, PANEL) of scores to running maxima and totals of e^score.
void add_exponentials(const float *scores, int rows, float *top, float *total) {
    float higher[PANEL];
    for (int t = 0; t < PANEL; t++) higher[t] = top[t];
    for (int i = 0; i < rows; i++)
        for (int t = 0; t < PANEL; t++) higher[t] = scores[i * PANEL + t] > higher[t] ? scores[i * PANEL + t] : higher[t];
    for (int t = 0; t < PANEL; t++) {
        total[t] *= fast_exp(top[t] - higher[t]);
        top[t] = higher[t];
    }
    for (int i = 0; i < rows; i++)
        for (int t = 0; t < PANEL; t++) total[t] += fast_exp(scores[i * PANEL + t] - top[t]);
}

// x += Σ_r weights[r]·row_at(r), for `rows` rows of `width` numbers.
template <class Find>
inline void add_rows(Find row_at, const float *weights, int rows, int64_t width, float *x) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) {
        const float *a = row_at(r), *b = row_at(r + 1), *c = row_at(r + 2), *d = row_at(r + 3);
        for (int64_t i = 0; i < width; i += LANES)
            store(x + i, load(x + i) + ((weights[r] * load(a + i) + weights[r + 1] * load(b + i)) +
                                        (weights[r + 2] * load(c + i) + weights[r + 3] * load(d + i))));
    }
    for (; r < rows; r++) {
        const float *a = row_at(r);
        for (int64_t i = 0; i < width; i += LANES) store(x + i, load(x + i) + weights[r] * load(a + i));
    }
}

void token_scores(const Network &network, const float *mapped, int lo, int hi, float *out, float *scratch) {
    int64_t width = network.width;
    auto token_at = [&](int r) { return network.classes ? network.token_of_rank[lo + r] : lo + r; };
    if (network.embedding) {
        dots_at([&](int r) { return network.embedding + token_at(r) * width; }, mapped, hi - lo, width, out);
    } else {
        Input input = rounded_one(mapped, width, true, scratch);
        for (int r = 0; r < hi - lo; r++) dots(output_of(network, token_at(r)), input, 1, width, out + r);
    }
    for (int r = 0; r < hi - lo; r++) out[r] += network.output_bias[token_at(r) - EOD];
}

void class_scores(const Network &network, const float *state, float *out) {
    dots(network.class_map, state, network.classes, network.width, out);
    for (int k = 0; k < network.classes; k++) out[k] += network.class_bias[k];
}

// ln Σ e^score.
float log_total(const float *scores, int n) {
    float top = scores[0], total = 0, lanes[LANES] = {0};
    for (int i = 1; i < n; i++) top = scores[i] > top ? scores[i] : top;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += fast_exp(scores[i + j] - top);
    for (; i < n; i++) total += fast_exp(scores[i] - top);
    for (int j = 0; j < LANES; j++) total += lanes[j];
    return top + fast_log(total);
}

void shares(float *scores, int n) {
    float total = log_total(scores, n);
    for (int i = 0; i < n; i++) {
        float x = scores[i] - total;
        scores[i] = fast_exp(x < 0 ? x : 0);
    }
}

void score(const Network &network, const float *panel, int n, const Token *targets, float *log_p, float *logit,
           float *scratch) {
    int64_t width = network.width;
    float *mapped = scratch, *own = mapped + width * PANEL, *whole = own + width, *rows_of = whole + width * PANEL;
    float *scores = rows_of + width * ROWS_AT_ONCE, factors[PANEL];
    float top[PANEL], total[PANEL] = {0}, gate[PANEL] = {0};
    for (int i = 0; i < width; i++)
        for (int t = 0; t < PANEL; t++) gate[t] += network.gate[i] * panel[i * PANEL + t];
    Product map{(int)width, (int)width, 1, 0, 0, PANEL, false};
    map.of(network.output_map, 1, width, panel, mapped);
    for (int t = 0; t < PANEL; t++) top[t] = -INFINITY;
    bool rounds = !network.classes && !network.embedding;
    Inputs inputs{network.classes ? panel : mapped, nullptr, nullptr, nullptr};
    if (rounds) inputs = rounded(mapped, (int)width, 1, true, whole, factors, rows_of);
    const float *biases = network.classes ? network.class_bias : network.output_bias;
    int outputs = network.classes ? network.classes : network.vocabulary - (int)EOD;
    constexpr int CHUNK = 256;
    for (int lo = 0; lo < outputs; lo += CHUNK) {
        int rows = outputs - lo < CHUNK ? outputs - lo : CHUNK;
        Product product{rows, (int)width, 1, 0, 0, PANEL, false};
        Matrix classes{network.class_map + lo * width, width, 1, nullptr, nullptr, nullptr};
        product.of(network.classes ? classes : output_of(network, EOD + lo), inputs, scores);
        for (int i = 0; i < rows; i++)
            for (int t = 0; t < PANEL; t++) scores[i * PANEL + t] += biases[lo + i];
        add_exponentials(scores, rows, top, total);
        for (int t = 0; t < n; t++) {
            int target = network.classes ? network.class_of_rank[network.rank[targets[t]]] : targets[t] - (int)EOD;
            if (target >= lo && target < lo + rows) log_p[t] = scores[(target - lo) * PANEL + t];
        }
    }
    for (int t = 0; t < n; t++) {
        logit[t] = gate[t];
        log_p[t] -= top[t] + fast_log(total[t]);
        if (!network.classes) continue;
        int rank = network.rank[targets[t]], k = network.class_of_rank[rank];
        int lo = network.class_first[k], hi = network.class_first[k + 1];
        for (int i = 0; i < width; i++) own[i] = mapped[i * PANEL + t];
        token_scores(network, own, lo, hi, scores, whole);
        log_p[t] += scores[rank - lo] - log_total(scores, hi - lo);
    }
}

void normalize_one(const float *in, float *out, int features, float scale = 1) {
    float squares;
    dots(in, in, 1, features, &squares);
    float factor = scale / std::sqrt(squares / features + EPSILON);
    for (int i = 0; i < features; i++) out[i] = in[i] * factor;
}

void turn_one(float *head, const float *cosine, const float *sine) {
    for (int i = 0; i < HEAD / 2; i++) {
        float a = head[i], b = head[i + HEAD / 2];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + HEAD / 2] = a * sine[i] + b * cosine[i];
    }
}

// One head reads the keys and values, at `offset` of each token's memory, of `past` tokens and of its own.
void attend_one(const float *query, const float *const *memory, const float *own, int past, int64_t offset, int64_t width,
                const float *distance, float sink, float *scores, float *out) {
    dots_at([=](int j) { return (j < past ? memory[j] : own) + offset; }, query, past + 1, HEAD, scores);
    float top = sink;
    for (int j = 0; j <= past; j++) {
        scores[j] += distance[PANEL + past - j];
        top = scores[j] > top ? scores[j] : top;
    }
    float total = fast_exp(sink - top);
    for (int j = 0; j <= past; j++) scores[j] = fast_exp(scores[j] - top);
    for (int j = 0; j <= past; j++) total += scores[j];
    for (int i = 0; i < HEAD; i++) out[i] = 0;
    add_rows([=](int j) { return (j < past ? memory[j] : own) + offset + width; }, scores, past + 1, HEAD, out);
    for (int i = 0; i < HEAD; i++) out[i] /= total;
}

// x += down · relu(up · normal)², skipping rows of `down` that get no weight, as most do.
void mlp_one(const Network &network, int layer, const float *normal, float *inner, int32_t *rows, float *x) {
    int64_t width = network.width;
    const float *down = network.mlp + (2 * layer + 1) * 4 * width * width;
    int active = 0;
    dots(up_of(network, layer), Input{normal, nullptr, 1}, 4 * width, width, inner);
    for (int i = 0; i < 4 * width; i++) {
        if (!(inner[i] > 0)) continue;
        inner[active] = inner[i] * inner[i];
        rows[active++] = i;
    }
    add_rows([=](int r) { return down + rows[r] * width; }, inner, active, width, x);
}

// The same with rounded weights; `out` (width) and `whole` (4·width) are overwritten.
void rounded_mlp_one(const Network &network, int layer, const float *normal, float *inner, float *out, float *whole, float *x) {
    int64_t width = network.width;
    const float *scale = network.mlp_scale + (2 * layer + 1) * 4 * width;
    dots(up_of(network, layer), rounded_one(normal, width, true, whole), 4 * width, width, inner);
    for (int i = 0; i < 4 * width; i++) {
        float positive = inner[i] > 0 ? inner[i] : 0;
        inner[i] = positive * positive * scale[i];
    }
    dots(down_of(network, layer), rounded_one(inner, 4 * width, false, whole), width, 4 * width, out);
    for (int i = 0; i < width; i++) x[i] += out[i];
}

// As `gate_heads`, for one token.
void gate_heads_one(const Network &network, int layer, const float *normal, float *read, float *logits) {
    int heads = heads_of(network);
    const float *gates = network.head_gate + (int64_t)layer * network.width * heads;
    for (int h = 0; h < heads; h++) logits[h] = 0;
    for (int i = 0; i < network.width; i++)
        for (int h = 0; h < heads; h++) logits[h] += normal[i] * gates[i * heads + h];
    for (int h = 0; h < heads; h++) {
        float factor = 2 * sigmoid(logits[h]);
        for (int i = 0; i < HEAD; i++) read[h * HEAD + i] *= factor;
    }
}

void step(const Network &network, Token token, const float *const *memory, int past, float *own, float *scratch) {
    int64_t width = network.width, biases = 2 * PANEL + network.context;
    int heads = heads_of(network);
    bool rounds = !network.attention;
    float *x = scratch, *normal = x + width, *query = normal + width, *read = query + width, *inner = read + width;
    float *rows = inner + 4 * width, *mapped = rows + 4 * width, *whole = mapped + width, *scores = whole + 4 * width;
    auto input_of = [=](const float *in) { return rounds ? rounded_one(in, width, true, whole) : Input{in, nullptr, 1}; };
    const float *cosine = network.cosine + past * (HEAD / 2), *sine = network.sine + past * (HEAD / 2);
    embedding_of(network, token, x, 1);
    for (int layer = 0; layer < network.layers; layer++) {
        float *keys = own + 2 * layer * width;
        normalize_one(x, normal, width);
        Input input = input_of(normal);
        dots(map_of(network, layer, 0), input, width, width, query);
        dots(map_of(network, layer, 1), input, 2 * width, width, keys);  // and values
        for (int h = 0; h < heads; h++) {
            int64_t offset = h * HEAD, which = layer * heads + h;
            normalize_one(query + offset, query + offset, HEAD, 0.125f);
            normalize_one(keys + offset, keys + offset, HEAD);
            turn_one(query + offset, cosine, sine);
            turn_one(keys + offset, cosine, sine);
            attend_one(query + offset, memory, own, past, 2 * layer * width + offset, width,
                       network.distance + which * biases, network.sink[which], scores, read + offset);
        }
        gate_heads_one(network, layer, normal, read, mapped);
        dots(map_of(network, layer, 3), input_of(read), width, width, mapped);
        for (int i = 0; i < width; i++) x[i] += mapped[i];
        normalize_one(x, normal, width);
        if (rounds) rounded_mlp_one(network, layer, normal, inner, mapped, whole, x);
        else mlp_one(network, layer, normal, inner, (int32_t *)rows, x);
    }
    float *state = own + 2 * network.layers * width;
    normalize_one(x, state, width);
    dots(network.gate, state, 1, width, state + width);
}

void map_state(const Network &network, const float *state, float *mapped) {
    for (int o = 0; o < network.width; o++) mapped[o] = 0;
    auto row_at = [&](int i) { return network.output_map + (int64_t)i * network.width; };
    add_rows(row_at, state, network.width, network.width, mapped);
}

void mix(const float *log_weights, const float *log_p, int components, int64_t n, float *__restrict out) {
    for (int64_t i = 0; i < n; i++) out[i] = log_weights[0] + log_p[i];
    for (int c = 1; c < components; c++)
        for (int64_t i = 0; i < n; i++) {
            float one = out[i], other = log_weights[c] + log_p[c * n + i];
            float high = one > other ? one : other, low = one > other ? other : one;
            float sum = high + fast_log(1 + fast_exp(low - high));
            out[i] = low == -INFINITY ? high : sum;
        }
}

}  // namespace

const Arithmetic NAME = {read_row, score, step, class_scores, map_state, token_scores, log_total, shares, mix};
