// Queries: p(n | c) = p(k(n) | c) · p(n | k(n), c), each factor a calibrated product of the views' shares.
//
// A model with a recency cache is two models: one without the cache, one with it. Their mixture,
// p = w·p_cached + (1 − w)·p_plain, follows whichever predicted the last RECENT tokens of the document better:
// w = σ(trust + Σ ln p_cached − ln p_plain). So the cache costs nothing on text whose lines are unrelated.
#include "lookup.h"

#include <vector>

namespace {

constexpr int RECENT = 128;

struct Pair {
    double plain, cached;
};

double log_mixture(double w, Pair log_p) {
    double top = std::max(log_p.plain, log_p.cached);
    return top + std::log(w * std::exp(log_p.cached - top) + (1 - w) * std::exp(log_p.plain - top));
}

// The differences ln p_cached − ln p_plain of a document's last tokens.
class Trust {
  public:
    double weight(const Model &model, int64_t age) const {
        double sum = model.trust[Cache::age_of(age)];
        for (float difference : recent) sum += difference;
        return 1 / (1 + std::exp(-sum));
    }
    void add(Pair log_p) { recent[at++ % RECENT] = (float)(log_p.cached - log_p.plain); }
    void load(const float *ring, int64_t age) {
        std::copy(ring, ring + RECENT, recent);
        at = age;
    }
    void reset() {
        std::fill(recent, recent + RECENT, 0.0f);
        at = 0;
    }
    void store(float *ring) const { std::copy(recent, recent + RECENT, ring); }

  private:
    float recent[RECENT] = {0};
    int64_t at = 0;
};

// One reader walks through documents, position by position.
class Reader {
  public:
    explicit Reader(const Model &model)
        : model(model), cache(model), width(model.vocabulary + model.classes), scratch(CACHES * width) {
        for (auto &scores : both) scores.resize(width);
    }

    void stand_at(const uint16_t *ids, int64_t start, int64_t p) {
        if (model.window) cache.stand_at(ids, start, p);
        looked.look_up(model, Context{ids + p, p - start}, model.window ? &cache : nullptr);
    }

    // Scores of some outputs, without the cache into both[0] and, if there is one, with it into both[1].
    void score(const Outputs &outputs) {
        int n = outputs.n();
        bool has_cache = looked.cache != nullptr;
        const float *log_prior = outputs.log_prior(model);
        for (int which = 0; which <= has_cache; which++) {
            const float *exponents = (which ? model.cached : model.plain)[outputs.level];
            float prior = exponents[0];
            for (int v = 0; v < model.views; v++) prior -= model.is_slot[v] ? exponents[looked.exponent[v]] : 0;
            scaled(both[which].data(), log_prior, prior, n);
        }
        for (int v = 0; v < model.views; v++) {
            float plain = model.plain[outputs.level][looked.exponent[v]];
            float cached = has_cache ? model.cached[outputs.level][looked.exponent[v]] : 0;
            if (plain == 0 && cached == 0) continue;
            outputs.shares(model, looked, v, scratch.data());
            add_logarithms(both[0].data(), plain, has_cache ? both[1].data() : nullptr, cached, scratch.data(), n);
        }
        if (!has_cache) return;
        outputs.cached(looked, n, scratch.data());
        for (int c = 0; c < CACHES; c++)
            add_scaled(both[1].data(), scratch.data() + c * n, model.cached[outputs.level][looked.exponent[model.views + c]], n);
    }

    // ln p of one class, with and without the cache; leaves the probabilities of all in `classes`.
    Pair decide_class(int k) {
        Pair log_p = decide(Outputs::classes(model), k);
        for (int which = 0; which < 2; which++)
            classes[which].assign(both[which].begin(), both[which].begin() + model.classes);
        return log_p;
    }

    // ln p of one token, with and without the cache; leaves the probabilities of classes in `classes`.
    Pair log_probabilities(uint16_t token) {
        int rank = model.rank[token], k = model.class_of_rank[rank];
        Pair log_p = decide_class(k);
        Outputs tokens = Outputs::tokens(model, k);
        if (tokens.n() > 1) {
            Pair within = decide(tokens, rank - tokens.lo);
            log_p.plain += within.plain;
            log_p.cached += within.cached;
        }
        return log_p;
    }

    // How certain the model is of the next class: the entropy of its distribution, and its largest ln p.
    void certainty(double w, float *out) const {
        float entropy = 0, largest = 0;
        for (int k = 0; k < model.classes; k++) {
            float p = looked.cache ? (float)(w * classes[1][k] + (1 - w) * classes[0][k]) : classes[0][k];
            entropy -= p > 1e-30f ? p * fast_log(p) : 0;
            largest = std::max(largest, p);
        }
        out[0] = entropy;
        out[1] = std::log(largest);
    }

    const Model &model;
    Cache cache;
    Looked looked;
    Trust trust;
    std::vector<float> both[2], classes[2];

  private:
    size_t width;
    std::vector<float> scratch;

    Pair decide(const Outputs &outputs, int target) {  // leaves probabilities in `both`
        score(outputs);
        float plain = both[0][target];
        Pair log_p;
        log_p.plain = log_p.cached = plain - normalize(both[0].data(), outputs.n());
        if (looked.cache) {
            float cached = both[1][target];
            log_p.cached = cached - normalize(both[1].data(), outputs.n());
        }
        return log_p;
    }
};

}  // namespace

extern "C" {

// ln p of each target from lo to hi, into out[0 … hi − lo), and unless null its certainty (hi − lo, 2).
EXPORT void saffu_score(const Model *model, const uint16_t *ids, const int64_t *starts, int64_t documents, int64_t lo,
                        int64_t hi, double *out, float *features) KERNEL {
    Reader reader(*model);
    int64_t document = *(std::upper_bound(starts, starts + documents + 1, lo) - 1), current = -1;
    int64_t warm = model->window ? std::max(document, lo - RECENT) : lo;  // so that trust does not depend on lo
    each_target(starts, documents, warm, hi, [&](int64_t p, int64_t start) {
        if (start != current) reader.trust.reset();
        current = start;
        reader.stand_at(ids, start, p);
        Pair log_p = reader.log_probabilities(ids[p]);
        double w = model->window ? reader.trust.weight(*model, p - start) : 0;
        reader.trust.add(log_p);
        if (p < lo) return;
        out[p - lo] = model->window ? log_mixture(w, log_p) : log_p.plain;
        if (features) reader.certainty(w, features + 2 * (p - lo));
    });
} OR_FAIL()

// ln p of the given targets, in order, without and with the cache: (n_targets, 2).
EXPORT void saffu_score_both(const Model *model, const uint16_t *ids, const int64_t *starts, int64_t documents,
                             const int64_t *targets, int64_t n_targets, double *out) KERNEL {
    Reader reader(*model);
    for (int64_t t = 0; t < n_targets; t++) {
        reader.stand_at(ids, *(std::upper_bound(starts, starts + documents + 1, targets[t]) - 1), targets[t]);
        Pair log_p = reader.log_probabilities(ids[targets[t]]);
        out[2 * t] = log_p.plain;
        out[2 * t + 1] = log_p.cached;
    }
} OR_FAIL()

// Given the last n tokens (the tail) of a document of `age` tokens, and its ring of trust (RECENT), advances the ring over
// the tokens from place `from` of the tail on.
EXPORT void saffu_read(const Model *model, const uint16_t *tail, int64_t n, int64_t age, int64_t from, float *ring) KERNEL {
    Reader reader(*model);
    reader.trust.load(ring, age - (n - from));
    for (int64_t p = from; p < n; p++) {
        reader.stand_at(tail, n - age, p);
        reader.trust.add(reader.log_probabilities(tail[p]));
    }
    reader.trust.store(ring);
} OR_FAIL()

// ln p of every token after such a document; −inf for what is never predicted. `parts` gets ln p without and with the
// cache too, unless null (2, vocabulary), and `features` the certainty (2). Returns w.
EXPORT double saffu_distribution(const Model *model, const uint16_t *tail, int64_t n, int64_t age, const float *ring, float *out,
                                 float *parts, float *features) KERNEL {
    Reader reader(*model);
    reader.trust.load(ring, age);
    reader.stand_at(tail, n - age, n);
    double w = model->window ? reader.trust.weight(*model, age) : 0;
    std::fill(out, out + model->vocabulary, -INFINITY);
    if (parts) std::fill(parts, parts + 2 * model->vocabulary, -INFINITY);
    reader.log_probabilities((uint16_t)EOD);
    if (features) reader.certainty(w, features);
    std::vector<float> scores[2];
    for (int k = 0; k < model->classes; k++) {
        Outputs tokens = Outputs::tokens(*model, k);
        int cached = reader.looked.cache ? 1 : 0;
        reader.score(tokens);
        double of_class[2], total[2];
        for (int which = 0; which <= cached; which++) {
            scores[which] = std::vector<float>(reader.both[which].begin(), reader.both[which].begin() + tokens.n());
            total[which] = normalize(reader.both[which].data(), tokens.n());
            of_class[which] = std::log(std::max(reader.classes[which][k], 1e-38f));
        }
        for (int i = 0; i < tokens.n(); i++) {
            Pair log_p;
            log_p.plain = scores[0][i] - total[0] + of_class[0];
            log_p.cached = cached ? scores[1][i] - total[1] + of_class[1] : log_p.plain;
            int token = model->token_of_rank[tokens.lo + i];
            out[token] = (float)(cached ? log_mixture(w, log_p) : log_p.plain);
            if (parts) {
                parts[token] = (float)log_p.plain;
                parts[model->vocabulary + token] = (float)log_p.cached;
            }
        }
    }
    return w;
} OR_FAIL(0)

// The certainty (2) after such a document.
EXPORT void saffu_certainty(const Model *model, const uint16_t *tail, int64_t n, int64_t age, const float *ring,
                            float *features) KERNEL {
    Reader reader(*model);
    reader.trust.load(ring, age);
    reader.stand_at(tail, n - age, n);
    reader.decide_class(0);
    reader.certainty(model->window ? reader.trust.weight(*model, age) : 0, features);
} OR_FAIL()

// Samples a token from that distribution with three numbers from [0, 1): with or without the cache, then a class, then a
// token of that class. Advances the ring by that token.
EXPORT int32_t saffu_sample(const Model *model, const uint16_t *tail, int64_t n, int64_t age, float *ring,
                            const double *uniform) KERNEL {
    Reader reader(*model);
    reader.trust.load(ring, age);
    reader.stand_at(tail, n - age, n);
    int which = model->window && uniform[0] < reader.trust.weight(*model, age) ? 1 : 0;
    auto draw = [&](int outputs, double share) {
        float *p = reader.both[which].data();
        normalize(p, outputs);
        double below = 0, total = 0;
        for (int i = 0; i < outputs; i++) total += p[i];
        for (int i = 0; i < outputs; i++)
            if ((below += p[i]) > share * total) return i;
        return (int)(std::max_element(p, p + outputs) - p);
    };
    reader.score(Outputs::classes(*model));
    Outputs tokens = Outputs::tokens(*model, draw(model->classes, uniform[1]));
    reader.score(tokens);
    int32_t token = model->token_of_rank[tokens.lo + draw(tokens.n(), uniform[2])];
    if (model->window) {
        reader.trust.add(reader.log_probabilities((uint16_t)token));
        reader.trust.store(ring);
    }
    return token;
} OR_FAIL(0)

// ln p of each target from lo to hi under one view alone.
EXPORT void saffu_view_score(const View *view, const uint16_t *rank, const uint16_t *ids, const int64_t *starts,
                             int64_t documents, int64_t lo, int64_t hi, double *out) KERNEL {
    Pace pace;
    each_target(starts, documents, lo, hi, [&](int64_t p, int64_t start) {
        pace.step(1 << 16);
        Match found = match(*view, Context{ids + p, p - start});
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
} OR_FAIL()

// Sums of the followers' shares by class for chosen contexts of a level: (contexts, classes).
EXPORT void saffu_class_rows(const uint32_t *begin, const uint16_t *follow, const float *mass, const uint16_t *class_of_rank,
                             const uint32_t *contexts, int64_t n, int32_t classes, float *out) KERNEL {
    std::vector<double> sums(classes);
    Pace pace;
    for (int64_t row = 0; row < n; row++) {
        pace.step((begin[contexts[row] + 1] - begin[contexts[row]]) * 6 + classes * 4);
        std::fill(sums.begin(), sums.end(), 0.0);
        for (uint32_t i = begin[contexts[row]]; i < begin[contexts[row] + 1]; i++)
            sums[class_of_rank[follow[i]]] += mass[i];
        for (int k = 0; k < classes; k++) out[row * classes + k] = (float)sums[k];
    }
} OR_FAIL()
}
