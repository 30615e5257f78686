// Lookup of a context in the tables, and the views' shares of classes and tokens there.
#pragma once
#include "query.h"
#include "vectors.h"

#include <vector>

namespace {

struct Match {  // the contexts of a view that were seen, shortest first, and the weight of each level's shares
    int levels;
    uint32_t context[MAX_LEVELS];
    float weight[MAX_LEVELS];
};

// What precedes a position whose document began `age` tokens before: before its start lies EOD, as before any line, and
// before that PAD.
struct Context {
    const uint16_t *ids;  // the token at distance d is ids[−d]
    int64_t age;
    uint16_t operator[](int64_t distance) const {
        return distance <= age ? ids[-distance] : distance == age + 1 ? (uint16_t)EOD : (uint16_t)PAD;
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

// One position looked up in all views, and which exponent each of them gets.
struct Looked {
    Pace pace;
    Match found[MAX_VIEWS];
    int exponent[MAX_VIEWS];

    void look_up(const Model &model, const Context &context) {
        int first = 1;  // after the prior's
        pace.step(1 << 19);  // dozens of pages, each of which brings its neighbors with it
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

// The outputs of one decision: all classes, or the tokens of a class.
struct Outputs {
    int level;  // 0: classes, 1: tokens
    int lo, hi;
    int n() const { return hi - lo; }

    static Outputs classes(const Model &model) { return {0, 0, model.classes}; }
    static Outputs tokens(const Model &model, int k) { return {1, model.class_first[k], model.class_first[k + 1]}; }

    const float *prior(const Model &model) const { return level ? model.prior + lo : model.class_prior; }
    const float *log_prior(const Model &model) const { return level ? model.log_prior + lo : model.log_class_prior; }
    int place(const Model &model, uint16_t rank) const { return level ? rank - lo : model.class_of_rank[rank]; }

    void shares(const Model &model, const Looked &looked, int v, float *out) const {
        if (level) token_shares(model.view[v], looked.found[v], lo, hi, out);
        else class_shares(model, model.view[v], looked.found[v], out);
    }
};

// From scores to probabilities, in place; returns ln Σ e^score.
float normalize(float *scores, int n) {
    float top = *std::max_element(scores, scores + n);
    float total = exponentials(scores, top, n);
    for (int i = 0; i < n; i++) scores[i] /= total;
    return top + std::log(total);
}

// The product of the views at one position: the prediction without the memory.
class ViewProduct {
  public:
    explicit ViewProduct(const Model &model) : model(model), scratch(std::max(model.vocabulary, model.classes)) {}

    void stand_at(const Context &context) { looked.look_up(model, context); }

    // Scores of some outputs, not normalized.
    void scores(const Outputs &outputs, float *out) {
        int n = outputs.n();
        const float *exponents = model.plain[outputs.level];
        float prior = exponents[0];
        for (int v = 0; v < model.views; v++) prior -= model.is_slot[v] ? exponents[looked.exponent[v]] : 0;
        scaled(out, outputs.log_prior(model), prior, n);
        for (int v = 0; v < model.views; v++) {
            float exponent = exponents[looked.exponent[v]];
            if (exponent == 0) continue;
            outputs.shares(model, looked, v, scratch.data());
            add_logarithms(out, exponent, scratch.data(), n);
        }
    }

    const Model &model;
    Looked looked;

  private:
    std::vector<float> scratch;
};

// Calls visit(position, start of its document) for the targets from lo to hi.
template <class Visit>
void each_target(const int64_t *starts, int64_t documents, int64_t lo, int64_t hi, Visit visit) {
    int64_t document = std::upper_bound(starts, starts + documents + 1, lo) - starts - 1;
    for (int64_t p = lo; p < hi; p++) {
        while (p >= starts[document + 1]) document++;
        visit(p, starts[document]);
    }
}

}  // namespace
