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
    int64_t row[MAX_LEVELS];  // of sums by class; −1 for contexts with few followers
};

// What precedes a position whose document began `age` tokens before: before its start lies EOD, as before any line, and
// before that PAD.
struct Context {
    const Token *ids;  // the token at distance d is ids[−d]
    int64_t age;
    Token operator[](int64_t distance) const {
        return distance <= age ? ids[-distance] : distance == age + 1 ? (Token)EOD : (Token)PAD;
    }
};

// The first of some ascending numbers that is not below a limit. Without branches, so that several searches overlap.
template <class Number>
const Number *first_not_below(const Number *first, const Number *last, Number limit) {
    int64_t n = last - first;
    if (n <= 0) return last;
    while (n > 1) {
        int64_t half = n / 2;
        first += half * (first[half - 1] < limit);  // compilers turn a conditional into a branch
        n -= half;
    }
    return first + (*first < limit);
}

// Goes on to the next longer context, if it was seen.
inline bool extend(const View &view, const Context &context, Match &found) {
    int level = found.levels + 1;
    if (level > view.levels) return false;
    Token token = context[view.distances[level - 1]];
    if (token == PAD && level > 1) return false;
    if (view.classes && level > view.exact) token = view.classes[token];
    uint32_t at = token;
    if (level > 1) {
        const Level &parent = view.level[level - 2], &here = view.level[level - 1];
        const uint32_t *child = parent.child + found.context[level - 1];
        const Token *last = here.token + child[1], *place = first_not_below(here.token + child[0], last, token);
        if (place == last || *place != token) return false;
        at = (uint32_t)(place - here.token);
    }
    found.context[level] = at;
    found.levels = level;
    return true;
}

inline void weigh(const View &view, Match &found) {
    float weight = 1;
    for (int l = found.levels; l > 0; l--) {
        const Level &level = view.level[l - 1];
        uint32_t context = found.context[l], followers = level.begin[context + 1] - level.begin[context];
        bool many = level.heavies && followers > level.many;
        found.row[l] = many ? first_not_below(level.heavy, level.heavy + level.heavies, context) - level.heavy : -1;
        found.weight[l] = weight;
        weight *= level.backoff[context];
    }
    found.weight[0] = weight;
}

inline Match match(const View &view, const Context &context) {
    Match found;
    found.levels = 0;
    while (extend(view, context, found)) {}
    weigh(view, found);
    return found;
}

// The followers of a context from place `first` to `last`.
struct Followers {
    uint32_t first, last;

    static Followers all(const Level &level, uint32_t context) { return {level.begin[context], level.begin[context + 1]}; }

    // Those in a class, if the context has a row.
    static Followers in_class(const Model &model, const Level &level, uint32_t context, int64_t row, int k) {
        const Token *before = level.before + row * (model.classes + 1) + k;
        return {level.begin[context] + before[0], level.begin[context] + before[1]};
    }
};

// p_v(k | c) of every class.
void class_shares(const Model &model, const View &view, const Match &match, float *out) {
    scaled(out, view.class_unigram, match.weight[0], model.classes);
    for (int l = match.levels; l > 0; l--) {
        const Level &level = view.level[l - 1];
        float weight = match.weight[l];
        if (match.row[l] >= 0) {
            add_scaled(out, level.rows + match.row[l] * model.classes, weight, model.classes);
        } else {
            Followers followers = Followers::all(level, match.context[l]);
            for (uint32_t i = followers.first; i < followers.last; i++)
                out[model.class_of_rank[level.follow[i]]] += weight * level.mass[i];
        }
    }
}

// p_v(n | c) of the tokens of a class.
void token_shares(const Model &model, const View &view, const Match &match, int k, float *out) {
    int lo = model.class_first[k], hi = model.class_first[k + 1];
    scaled(out, view.unigram + lo, match.weight[0], hi - lo);
    for (int l = match.levels; l > 0; l--) {
        const Level &level = view.level[l - 1];
        float weight = match.weight[l];
        if (match.row[l] >= 0) {
            Followers followers = Followers::in_class(model, level, match.context[l], match.row[l], k);
            for (uint32_t i = followers.first; i < followers.last; i++) out[level.follow[i] - lo] += weight * level.mass[i];
        } else {
            Followers followers = Followers::all(level, match.context[l]);
            for (uint32_t i = followers.first; i < followers.last && level.follow[i] < hi; i++)
                if (level.follow[i] >= lo) out[level.follow[i] - lo] += weight * level.mass[i];
        }
    }
}

// One position looked up in all views, and which exponent each of them gets. Done in three steps, it can begin early: each
// step asks for the memory that the next one needs.
struct Looked {
    Match found[MAX_VIEWS];
    int exponent[MAX_VIEWS];

    void look_up(const Model &model, const Context &context) {
        find(model, context);
        weigh_all(model);
    }

    void find(const Model &model, const Context &context) {
        bool more = true;
        for (int v = 0; v < model.views; v++) found[v].levels = 0;
        for (int level = 1; more; level++) {  // all views at once, because each waits for memory
            more = false;
            for (int v = 0; v < model.views; v++) {
                if (found[v].levels < level - 1 || !extend(model.view[v], context, found[v])) continue;
                const Level &here = model.view[v].level[level - 1];
                if (level < model.view[v].levels) fetch(here.child + found[v].context[level], 2);
                fetch(here.begin + found[v].context[level], 2);
                fetch(here.backoff + found[v].context[level]);
                more = true;
            }
        }
    }

    void weigh_all(const Model &model) {
        int first = 1;  // after the prior's
        for (int v = 0; v < model.views; v++) {
            const View &view = model.view[v];
            weigh(view, found[v]);
            int levels = found[v].levels;
            const uint32_t *begin = view.level[levels - 1].begin + found[v].context[levels];
            uint32_t followers = begin[1] - begin[0];
            int evidence = followers <= 1 ? 0 : followers <= 8 ? 1 : followers <= 64 ? 2 : 3;
            exponent[v] = first + EVIDENCE * (levels - 1) + evidence;
            first += EVIDENCE * view.levels;
        }
    }

    // Asks for what the shares of classes, and of the tokens of one class, are made of.
    void fetch_followers(const Model &model, int k) const {
        for (int v = 0; v < model.views; v++) {
            for (int l = found[v].levels; l > 0; l--) {
                const Level &level = model.view[v].level[l - 1];
                int64_t row = found[v].row[l];
                if (row >= 0) fetch(level.rows + row * model.classes, model.classes);
                uint32_t context = found[v].context[l];
                Followers followers = row < 0 ? Followers::all(level, context) : Followers::in_class(model, level, context, row, k);
                fetch(level.follow + followers.first, followers.last - followers.first);
                fetch(level.mass + followers.first, followers.last - followers.first);
            }
        }
    }

  private:
    template <class T>
    static void fetch(const T *data, int64_t n = 1) {
        const char *begin = (const char *)data, *end = (const char *)(data + n);
        for (const char *line = begin; line < end; line += 64) will_read(line);
        if (n > 1) will_read(end - 1);  // data need not begin where a line of the cache does
    }
};

inline int class_of(const Model &model, Token token) { return model.class_of_rank[model.rank[token]]; }

// The outputs of one decision: all classes, or the tokens of a class.
struct Outputs {
    int level;  // 0: classes, 1: tokens
    int k;      // of tokens: their class
    int lo, hi;
    int n() const { return hi - lo; }

    static Outputs classes(const Model &model) { return {0, 0, 0, model.classes}; }
    static Outputs tokens(const Model &model, int k) { return {1, k, model.class_first[k], model.class_first[k + 1]}; }

    const float *prior(const Model &model) const { return level ? model.prior + lo : model.class_prior; }
    const float *log_prior(const Model &model) const { return level ? model.log_prior + lo : model.log_class_prior; }
    int place(const Model &model, Token rank) const { return level ? rank - lo : model.class_of_rank[rank]; }

    void shares(const Model &model, const Looked &looked, int v, float *out) const {
        if (level) token_shares(model, model.view[v], looked.found[v], k, out);
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

// Calls visit(position, start of its document) for the targets from lo to hi.
template <class Visit>
void each_target(const int64_t *starts, int64_t documents, int64_t lo, int64_t hi, Visit visit) {
    int64_t document = std::upper_bound(starts, starts + documents + 1, lo) - starts - 1;
    for (int64_t p = lo; p < hi; p++) {
        while (p >= starts[document + 1]) document++;
        visit(p, starts[document]);
    }
}

// A token to predict, and where its document begins.
struct Target {
    int64_t place, start;
    Context context(const Token *ids) const { return {ids + place, place - start}; }
};

inline std::vector<Target> targets_between(const int64_t *starts, int64_t documents, int64_t lo, int64_t hi) {
    std::vector<Target> targets;
    targets.reserve(hi - lo);
    each_target(starts, documents, lo, hi, [&](int64_t p, int64_t start) { targets.push_back({p, start}); });
    return targets;
}

// The product of the views at one position: the prediction without the memory.
class ViewProduct {
  public:
    explicit ViewProduct(const Model &model) : model(model), scratch(std::max(model.vocabulary, model.classes)) {}

    void seek(const Context &context) {
        looked = &places[0];
        places[0].look_up(model, context);
    }

    // Stands at each target in turn and calls visit(target). The next two are looked up in advance, because most of the time
    // would be spent waiting for memory.
    template <class Visit>
    void each(const Token *ids, const std::vector<Target> &targets, Visit visit) {
        int64_t n = (int64_t)targets.size();
        for (int64_t i = 0; i < n + 2; i++) {
            if (i < n) places[i % 3].find(model, targets[i].context(ids));
            if (i > 0 && i <= n) {
                Looked &next = places[(i - 1) % 3];
                next.weigh_all(model);
                next.fetch_followers(model, class_of(model, ids[targets[i - 1].place]));
            }
            if (i < 2) continue;
            looked = &places[(i - 2) % 3];
            visit(targets[i - 2]);
        }
    }

    // Scores of some outputs, not normalized.
    void scores(const Outputs &outputs, float *out) {
        int n = outputs.n();
        const float *exponents = model.plain[outputs.level];
        float prior = exponents[0];
        for (int v = 0; v < model.views; v++) prior -= model.view[v].is_slot ? exponents[looked->exponent[v]] : 0;
        scaled(out, outputs.log_prior(model), prior, n);
        for (int v = 0; v < model.views; v++) {
            float exponent = exponents[looked->exponent[v]];
            if (exponent == 0) continue;
            outputs.shares(model, *looked, v, scratch.data());
            add_logarithms(out, exponent, scratch.data(), n);
        }
    }

    // Shares of some outputs, no smaller than a limit.
    void shares(const Outputs &outputs, float *out) {
        scores(outputs, out);
        normalize(out, outputs.n());
        for (int i = 0; i < outputs.n(); i++) out[i] = std::max(out[i], model.memory.smallest_share);
    }

    // Shares of all classes, then of the tokens in the class of this one; returns their number.
    int shares_for(Token token, float *out) {
        Outputs classes = Outputs::classes(model), tokens = Outputs::tokens(model, class_of(model, token));
        shares(classes, out);
        shares(tokens, out + classes.n());
        return classes.n() + tokens.n();
    }

    const Model &model;
    const Looked *looked = nullptr;

  private:
    Looked places[3];
    std::vector<float> scratch;
};

}  // namespace
