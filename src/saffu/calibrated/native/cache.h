// The recency cache: the document so far, as further views of the model.
//
// Three decayed unigram caches, p_h = (c_h + STRENGTH·f)/(Σ c_h + STRENGTH), where c_h adds up the tokens of the last
// `window`, each at half its weight every HALF_LIFE tokens; a bigram cache, p_b = (count of what followed the last token
// before + p_200)/(their number + 1), and a trigram cache likewise on top of it. Features are ln(p_h/f), ln(p_b/p_200), and
// ln(p_t/p_b): zero where the past is uninformative. A token is scored before it is added.
#pragma once
#include "query.h"
#include "vectors.h"

#include <algorithm>
#include <cmath>
#include <vector>

constexpr int DECAYS = 3, CACHES = 5;
constexpr double HALF_LIFE[DECAYS] = {30, 200, 1500}, STRENGTH = 5;
constexpr int MIDDLE = 1;  // the decay that bigrams fall back to

class Cache {
  public:
    Cache(const Model &model)
        : model(model), last(model.window ? model.vocabulary : 0, -1) {
        for (int h = 0; h < DECAYS; h++) {
            tokens[h].assign(last.size(), 0);
            classes[h].assign(model.classes, 0);
            decay[h] = std::exp2(-1 / HALF_LIFE[h]);
            left[h] = std::exp2(-model.window / HALF_LIFE[h]);
        }
    }

    // Moves to target p of the document that begins at `start`, right before p is predicted.
    void stand_at(const uint16_t *ids, int64_t start, int64_t p) {
        if (ids == this->ids && start == this->start && p >= at && p - at < model.window) {
            while (at < p) add();
            look_up();
            return;
        }
        clear();
        this->ids = ids;
        this->start = start;
        base = at = std::max(start, p - model.window);
        while (at < p) add();
        look_up();
    }

    // The age of the document, 0 to EVIDENCE − 1.
    static int age_of(int64_t age) { return age < 30 ? 0 : age < 200 ? 1 : age < 1500 ? 2 : 3; }

    // Which exponent a cache gets, 0 to EVIDENCE − 1: by the age of the document, or by the number of matches.
    int evidence(int cache) const {
        if (cache < DECAYS) return age_of(at - start);
        size_t matches = cache == DECAYS ? bigrams.size() : trigrams.size();
        return matches == 0 ? 0 : matches == 1 ? 1 : matches <= 4 ? 2 : 3;
    }

    // ln-ratios of classes (CACHES, n = classes), rows `stride` apart.
    void class_features(int stride, float *out) const {
        fill(classes, model.class_prior, 0, model.classes, stride, out,
             [&](uint16_t rank) { return (int)model.class_of_rank[rank]; });
    }

    // ln-ratios of the tokens with ranks lo … hi − 1.
    void token_features(int lo, int hi, int stride, float *out) const {
        fill(tokens, model.prior + lo, lo, hi - lo, stride, out, [&](uint16_t rank) { return rank - lo; });
    }

  private:
    const Model &model;
    std::vector<double> tokens[DECAYS], classes[DECAYS];  // in units of scale
    double total[DECAYS] = {0, 0, 0}, scale[DECAYS] = {1, 1, 1};
    double decay[DECAYS], left[DECAYS];  // of a weight, with every token, and after all of the window
    const uint16_t *ids = nullptr;
    int64_t start = -1, at = 0, base = 0;
    std::vector<int64_t> last;       // by token: where it occurred last, from base on
    std::vector<int64_t> previous;   // by position from base: where its token occurred before
    std::vector<uint16_t> bigrams, trigrams;  // ranks of what followed

    int64_t occurrence_before(int64_t i) const { return previous[i - base]; }

    void add() {  // the token at `at`, whose weight is 1 now and halves as others come
        uint16_t token = ids[at], rank = model.rank[token], k = model.class_of_rank[rank];
        previous.push_back(last[token]);
        last[token] = at;
        for (int h = 0; h < DECAYS; h++) {
            scale[h] /= decay[h];
            total[h] = total[h] * decay[h] + 1;
            tokens[h][rank] += scale[h];
            classes[h][k] += scale[h];
            if (scale[h] > 1e12) {
                for (double &x : tokens[h]) x /= scale[h];
                for (double &x : classes[h]) x /= scale[h];
                scale[h] = 1;
            }
        }
        at++;
        if (at - model.window > base) drop(at - model.window - 1);
        if (at - base > 4 * model.window) forget_distant();
    }

    // What followed the last one and two tokens before.
    void look_up() {
        bigrams.clear();
        trigrams.clear();
        if (at - start < 2) return;
        int64_t oldest = std::max(base, at - model.window);
        for (int64_t i = occurrence_before(at - 1); i >= oldest; i = occurrence_before(i)) {
            bigrams.push_back(model.rank[ids[i + 1]]);
            if (i > std::max(start, at - model.window) && ids[i - 1] == ids[at - 2]) trigrams.push_back(bigrams.back());
        }
    }

    void clear() {
        for (int64_t i = std::max(base, at - model.window - 1); i < at; i++) {
            last[ids[i]] = -1;
            for (auto &counts : tokens) counts[model.rank[ids[i]]] = 0;
        }
        for (int h = 0; h < DECAYS; h++) {
            std::fill(classes[h].begin(), classes[h].end(), 0);
            total[h] = 0;
            scale[h] = 1;
        }
        previous.clear();
    }

    void drop(int64_t i) {  // the token that leaves the window
        uint16_t token = ids[i], rank = model.rank[token], k = model.class_of_rank[rank];
        bool occurs_no_more = last[token] == i;
        if (occurs_no_more) last[token] = -1;
        for (int h = 0; h < DECAYS; h++) {
            tokens[h][rank] = occurs_no_more ? 0 : std::max(0.0, tokens[h][rank] - scale[h] * left[h]);
            classes[h][k] = std::max(0.0, classes[h][k] - scale[h] * left[h]);
            total[h] = std::max(0.0, total[h] - left[h]);
        }
    }

    void forget_distant() {  // so that a long document needs no more memory than its window
        int64_t fresh = at - model.window;
        previous.erase(previous.begin(), previous.begin() + (fresh - base));
        base = fresh;
    }

    template <class Place>
    void fill(const std::vector<double> *counts, const float *f, int lo, int n, int stride, float *out, Place place) const {
        for (int h = 0; h < DECAYS; h++) {
            float *row = out + h * stride;
            const double *count = counts[h].data() + lo;
            double weight = 1 / scale[h] / (total[h] + STRENGTH), share = STRENGTH / (total[h] + STRENGTH);
            for (int i = 0; i < n; i++) row[i] = (float)share + (float)(weight * count[i]) / f[i];
        }
        float *of_bigrams = out + DECAYS * stride, *of_trigrams = of_bigrams + stride;
        const float *middle = out + MIDDLE * stride;
        float b = (float)bigrams.size(), t = (float)trigrams.size();
        std::fill(of_bigrams, of_bigrams + n, 1 / (b + 1));
        for (uint16_t rank : bigrams) {
            int i = place(rank);
            if (i >= 0 && i < n) of_bigrams[i] += 1 / (b + 1) / (middle[i] * f[i]);
        }
        std::fill(of_trigrams, of_trigrams + n, 1 / (t + 1));
        for (uint16_t rank : trigrams) {
            int i = place(rank);
            if (i >= 0 && i < n) of_trigrams[i] += 1 / (t + 1) / (of_bigrams[i] * middle[i] * f[i]);
        }
        for (int cache = 0; cache < CACHES; cache++) {
            float *row = out + cache * stride;
            logarithms(row, n);
        }
    }
};
