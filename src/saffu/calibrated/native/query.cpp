// Queries: p(n | c) = p(k(n) | c) · p(n | k(n), c), each factor a calibrated product of the views' shares.
#include "query.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORIZED
#endif

namespace {

constexpr int MAX_WIDTH = 1 << 16;

// ln x for positive normal x, to one unit in the last place or so (Cephes' polynomial); loops over it vectorize.
inline float fast_log(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    int32_t e = (bits - 0x3f3504f3) >> 23;  // so that the mantissa lies in [√½, √2)
    int32_t rest = bits - (e << 23);
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
    int32_t bits = ((int32_t)n + 127) << 23;
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

VECTORIZED void add_logarithms(float *out, const float *in, float weight, int n) {
    for (int i = 0; i < n; i++) out[i] += weight * fast_log(in[i]);
}

VECTORIZED float exponentials(float *x, float top, int n) {  // in place; returns their sum
    float total = 0;
    for (int i = 0; i < n; i++) {
        x[i] = fast_exp(x[i] - top);
        total += x[i];
    }
    return total;
}

VECTORIZED float dot(const float *a, const float *b, int n) {
    float total = 0;
    for (int i = 0; i < n; i++) total += a[i] * b[i];
    return total;
}

struct Match {  // the contexts of a view that were seen, shortest first, and the weight of each level's shares
    int levels;
    uint32_t context[MAX_LEVELS];
    float weight[MAX_LEVELS];
};

// Position p of a document that began `age` tokens ago; what lies before its start is SOD, then PAD.
struct Context {
    const uint16_t *ids;  // the token at distance d is ids[−d]
    int64_t age;
    uint16_t operator[](int64_t distance) const {
        return distance <= age ? ids[-distance] : distance == age + 1 ? (uint16_t)SOD : (uint16_t)PAD;
    }
};

Match match(const View &view, const Context &context) {
    Match found;
    found.levels = 0;
    uint32_t at = 0;
    for (int level = 1; level <= view.levels; level++) {
        uint16_t token = context[view.distances[level - 1]];
        if (token == PAD && level > 1) break;
        if (view.classes && level > view.exact) token = view.classes[token];
        if (level == 1) {
            at = token;
        } else {
            const Level &parent = view.level[level - 2], &here = view.level[level - 1];
            const uint16_t *first = here.token + parent.child[at], *last = here.token + parent.child[at + 1];
            const uint16_t *place = std::lower_bound(first, last, token);
            if (place == last || *place != token) break;
            at = (uint32_t)(place - here.token);
        }
        found.context[level] = at;
        found.levels = level;
    }
    float weight = 1;
    for (int level = found.levels; level > 0; level--) {
        found.weight[level] = weight;
        weight *= view.level[level - 1].backoff[found.context[level]];
    }
    found.weight[0] = weight;
    return found;
}

// p_v(k | c) of every class.
void class_shares(const Model &model, const View &view, const Match &match, float *out) {
    scaled(out, view.class_unigram, match.weight[0], model.classes);
    for (int l = match.levels; l > 0; l--) {
        const Level &level = view.level[l - 1];
        uint32_t context = match.context[l];
        float weight = match.weight[l];
        int32_t heavy = level.heavy ? level.heavy[context] : -1;
        if (heavy >= 0) {
            add_scaled(out, level.rows + (int64_t)heavy * model.classes, weight, model.classes);
        } else {
            uint32_t end = level.begin[context + 1];
            for (uint32_t i = level.begin[context]; i < end; i++)
                out[model.class_of_rank[level.follow[i]]] += weight * level.mass[i];
        }
    }
}

// p_v(n | c) of the tokens with ranks lo … hi − 1.
void token_shares(const View &view, const Match &match, int lo, int hi, float *out) {
    scaled(out, view.unigram + lo, match.weight[0], hi - lo);
    for (int l = match.levels; l > 0; l--) {
        const Level &level = view.level[l - 1];
        uint32_t context = match.context[l];
        float weight = match.weight[l];
        const uint16_t *first = level.follow + level.begin[context], *last = level.follow + level.begin[context + 1];
        const uint16_t *i = last - first > 16 ? std::lower_bound(first, last, lo) : first;
        for (; i < last && *i < hi; i++)
            if (*i >= lo) out[*i - lo] += weight * level.mass[i - level.follow];
    }
}

// One target's context looked up in all views, and which exponent each of them gets.
struct Looked {
    Match found[MAX_VIEWS];
    int exponent[MAX_VIEWS];

    void look_up(const Model &model, const Context &context) {
        int first = 1;  // after the prior's
        for (int v = 0; v < model.views; v++) {
            const View &view = model.view[v];
            found[v] = match(view, context);
            int levels = found[v].levels;
            const uint32_t *begin = view.level[levels - 1].begin + found[v].context[levels];
            uint32_t followers = begin[1] - begin[0];
            int evidence = followers <= 1 ? 0 : followers <= 8 ? 1 : followers <= 64 ? 2 : 3;
            exponent[v] = first + EVIDENCE * (levels - 1) + evidence;
            first += EVIDENCE * view.levels;
        }
    }
};

// Weighted sum of the features of some outputs into `scores`.
template <class Shares>
void combine(const Model &model, const Looked &looked, const float *exponents, const float *log_prior, int n,
             Shares shares, float *scratch, float *scores) {
    float prior = exponents[0];
    for (int v = 0; v < model.views; v++) prior -= model.is_slot[v] ? exponents[looked.exponent[v]] : 0;
    scaled(scores, log_prior, prior, n);
    for (int v = 0; v < model.views; v++) {
        float exponent = exponents[looked.exponent[v]];
        if (exponent == 0) continue;
        shares(v, scratch);
        add_logarithms(scores, scratch, exponent, n);
    }
}

// From scores to probabilities, in place; returns ln Σ e^score.
float normalize(float *scores, int n) {
    float top = *std::max_element(scores, scores + n);
    float total = exponentials(scores, top, n);
    for (int i = 0; i < n; i++) scores[i] /= total;
    return top + std::log(total);
}

struct Scratch {
    std::vector<float> a, b;
    explicit Scratch(const Model &model) : a(model.vocabulary + model.classes), b(a.size()) {}
};

// Scores of classes, or of the tokens of a class; the caller normalizes.
void class_scores(const Model &model, const Looked &looked, Scratch &scratch) {
    combine(model, looked, model.class_exponents, model.log_class_prior, model.classes,
            [&](int v, float *out) { class_shares(model, model.view[v], looked.found[v], out); }, scratch.b.data(),
            scratch.a.data());
}

void token_scores(const Model &model, const Looked &looked, int k, Scratch &scratch) {
    int lo = model.class_first[k], hi = model.class_first[k + 1];
    combine(model, looked, model.token_exponents, model.log_prior + lo, hi - lo,
            [&](int v, float *out) { token_shares(model.view[v], looked.found[v], lo, hi, out); }, scratch.b.data(),
            scratch.a.data());
}

// How sure a model is of the next class, whichever it is: the entropy of its distribution, and its largest ln p.
void certainty(const float *probabilities, int n, float *out) {
    float entropy = 0, largest = 0;
    for (int i = 0; i < n; i++) {
        entropy -= probabilities[i] > 1e-30f ? probabilities[i] * fast_log(probabilities[i]) : 0;
        largest = std::max(largest, probabilities[i]);
    }
    out[0] = entropy;
    out[1] = std::log(largest);
}

double log_probability(const Model &model, const Looked &looked, uint16_t token, Scratch &scratch, float *features) {
    int rank = model.rank[token], k = model.class_of_rank[rank];
    class_scores(model, looked, scratch);
    float of_class = scratch.a[k];
    double log_p = of_class - normalize(scratch.a.data(), model.classes);
    if (features) certainty(scratch.a.data(), model.classes, features);
    int lo = model.class_first[k], n = model.class_first[k + 1] - lo;
    if (n > 1) {
        token_scores(model, looked, k, scratch);
        float of_token = scratch.a[rank - lo];
        log_p += of_token - normalize(scratch.a.data(), n);
    }
    return log_p;
}

// Calls visit(position, context) for the targets from lo to hi.
template <class Visit>
void each_target(const uint16_t *ids, const int64_t *starts, int64_t documents, int64_t lo, int64_t hi, Visit visit) {
    int64_t document = std::upper_bound(starts, starts + documents + 1, lo) - starts - 1;
    for (int64_t p = lo; p < hi; p++) {
        while (p >= starts[document + 1]) document++;
        visit(p, Context{ids + p, p - starts[document]});
    }
}

// What Newton's method needs of the features φ (1 + views, n) of one choice among n outputs. Feature j has the exponent
// with number index[j] of J; log-likelihood, targets, gradient (J) and covariance (J, J) are added to `sums`.
void add_moments(const float *features, int stride, int n, int views, const float *exponents, const int *index, int J,
                 int target, float *p, double *sums) {
    double *gradient = sums + 2, *covariance = gradient + J;
    std::fill(p, p + n, 0.0f);
    for (int j = 0; j <= views; j++) add_scaled(p, features + j * stride, exponents[index[j]], n);
    float of_target = p[target];
    sums[0] += of_target - normalize(p, n);
    sums[1] += 1;
    std::vector<float> weighted(n);
    std::vector<double> expected(views + 1);
    for (int j = 0; j <= views; j++) {
        const float *row = features + j * stride;
        expected[j] = dot(row, p, n);
        gradient[index[j]] += row[target] - expected[j];
    }
    for (int j = 0; j <= views; j++) {
        const float *row = features + j * stride;
        for (int i = 0; i < n; i++) weighted[i] = p[i] * (row[i] - (float)expected[j]);
        for (int other = 0; other <= j; other++) {
            double both = dot(weighted.data(), features + other * stride, n);
            covariance[index[j] * J + index[other]] += both;
            if (other < j) covariance[index[other] * J + index[j]] += both;
        }
    }
}

template <class Shares>
void features_of(const Model &model, const float *log_prior, int n, int stride, Shares shares, float *features) {
    std::copy(log_prior, log_prior + n, features);
    for (int v = 0; v < model.views; v++) {
        float *row = features + (v + 1) * stride;
        shares(v, row);
        logarithms(row, n);
        if (model.is_slot[v])
            for (int i = 0; i < n; i++) row[i] -= log_prior[i];
    }
}

}  // namespace

extern "C" {

// ln p of each target from lo to hi, into out[0 … hi − lo), and unless null its certainty (hi − lo, 2).
void saffu_score(const Model *model, const uint16_t *ids, const int64_t *starts, int64_t documents, int64_t lo,
                 int64_t hi, double *out, float *features) {
    Scratch scratch(*model);
    Looked looked;
    each_target(ids, starts, documents, lo, hi, [&](int64_t p, const Context &context) {
        looked.look_up(*model, context);
        out[p - lo] = log_probability(*model, looked, ids[p], scratch, features ? features + 2 * (p - lo) : nullptr);
    });
}

// Moments of both levels at the given targets: (2, 2 + J + J²), J the number of exponents.
void saffu_moments(const Model *model, const uint16_t *ids, const int64_t *starts, int64_t documents,
                   const int64_t *targets, int64_t n_targets, double *out) {
    Looked looked;
    int J = model->exponents, widest = model->classes;
    for (int k = 0; k < model->classes; k++)
        widest = std::max(widest, model->class_first[k + 1] - model->class_first[k]);
    std::vector<float> features((int64_t)(model->views + 1) * widest), p(widest);
    std::vector<int> index(model->views + 1, 0);
    for (int64_t t = 0; t < n_targets; t++) {
        int64_t position = targets[t];
        int64_t document = std::upper_bound(starts, starts + documents + 1, position) - starts - 1;
        looked.look_up(*model, Context{ids + position, position - starts[document]});
        for (int v = 0; v < model->views; v++) index[v + 1] = looked.exponent[v];
        int rank = model->rank[ids[position]], k = model->class_of_rank[rank];
        for (int level = 0; level < 2; level++) {
            int lo = level ? model->class_first[k] : 0, hi = level ? model->class_first[k + 1] : model->classes;
            if (hi - lo < 2) continue;
            features_of(*model, level ? model->log_prior + lo : model->log_class_prior, hi - lo, widest,
                        [&](int v, float *row) {
                            if (level) token_shares(model->view[v], looked.found[v], lo, hi, row);
                            else class_shares(*model, model->view[v], looked.found[v], row);
                        }, features.data());
            add_moments(features.data(), widest, hi - lo, model->views,
                        level ? model->token_exponents : model->class_exponents, index.data(), J,
                        level ? rank - lo : k, p.data(), out + level * (2 + J + (int64_t)J * J));
        }
    }
}

// ln p of every token after a context of `age` tokens that ends before `end`; −inf for what is never predicted. Unless
// null, `features` gets the certainty (2).
void saffu_distribution(const Model *model, const uint16_t *end, int64_t age, float *out, float *features) {
    Scratch scratch(*model);
    Looked looked;
    looked.look_up(*model, Context{end, age});
    std::fill(out, out + model->vocabulary, -INFINITY);
    class_scores(*model, looked, scratch);
    normalize(scratch.a.data(), model->classes);
    if (features) certainty(scratch.a.data(), model->classes, features);
    std::vector<float> of_class(scratch.a.begin(), scratch.a.begin() + model->classes);
    for (int k = 0; k < model->classes; k++) {
        int lo = model->class_first[k], n = model->class_first[k + 1] - lo;
        token_scores(*model, looked, k, scratch);
        std::vector<float> scores(scratch.a.begin(), scratch.a.begin() + n);
        float total = normalize(scratch.a.data(), n);
        for (int i = 0; i < n; i++)
            out[model->token_of_rank[lo + i]] = scores[i] - total + std::log(std::max(of_class[k], 1e-38f));
    }
}

// A token drawn from that distribution by two numbers from [0, 1): first a class, then a token of it.
int32_t saffu_sample(const Model *model, const uint16_t *end, int64_t age, double of_class, double of_token) {
    Scratch scratch(*model);
    Looked looked;
    looked.look_up(*model, Context{end, age});
    auto draw = [&](int n, double share) {
        normalize(scratch.a.data(), n);
        double below = 0, total = 0;
        for (int i = 0; i < n; i++) total += scratch.a[i];
        for (int i = 0; i < n; i++)
            if ((below += scratch.a[i]) > share * total) return i;
        return (int)(std::max_element(scratch.a.begin(), scratch.a.begin() + n) - scratch.a.begin());
    };
    class_scores(*model, looked, scratch);
    int k = draw(model->classes, of_class);
    int lo = model->class_first[k];
    token_scores(*model, looked, k, scratch);
    return model->token_of_rank[lo + draw(model->class_first[k + 1] - lo, of_token)];
}

// One view's own distribution, p_v(n | c) by rank (vocabulary,), and how many levels of its context were seen.
int32_t saffu_view_distribution(const Model *model, int32_t view, const uint16_t *end, int64_t age, float *out) {
    Match found = match(model->view[view], Context{end, age});
    token_shares(model->view[view], found, 0, model->class_first[model->classes], out);
    return found.levels;
}

// ln p of each target from lo to hi under one view alone.
void saffu_view_score(const View *view, const uint16_t *rank, const uint16_t *ids, const int64_t *starts,
                      int64_t documents, int64_t lo, int64_t hi, double *out) {
    each_target(ids, starts, documents, lo, hi, [&](int64_t p, const Context &context) {
        Match found = match(*view, context);
        uint16_t target = rank[ids[p]];
        double share = (double)found.weight[0] * view->unigram[target];
        for (int l = found.levels; l > 0; l--) {
            const Level &level = view->level[l - 1];
            const uint16_t *first = level.follow + level.begin[found.context[l]];
            const uint16_t *last = level.follow + level.begin[found.context[l] + 1];
            const uint16_t *place = std::lower_bound(first, last, target);
            if (place != last && *place == target) share += (double)found.weight[l] * level.mass[place - level.follow];
        }
        out[p - lo] = std::log(share);
    });
}

// Sums of the followers' shares by class for chosen contexts of a level: (contexts, classes).
void saffu_class_rows(const uint32_t *begin, const uint16_t *follow, const float *mass, const uint16_t *class_of_rank,
                      const uint32_t *contexts, int64_t n, int32_t classes, float *out) {
    std::vector<double> sums(classes);
    for (int64_t row = 0; row < n; row++) {
        std::fill(sums.begin(), sums.end(), 0.0);
        for (uint32_t i = begin[contexts[row]]; i < begin[contexts[row] + 1]; i++)
            sums[class_of_rank[follow[i]]] += mass[i];
        for (int k = 0; k < classes; k++) out[row * classes + k] = (float)sums[k];
    }
}
}
