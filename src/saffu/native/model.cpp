// Counted models, made of named arrays and checked: the only place that knows how one lies in memory.
//
//     output_classes, context_classes.K, plain, memory      (tokens) classes, and (2, exponents) of classes and of tokens
//     frequencies                                           (tokens) how often each was counted
//     view V, table V.distances, table V.unigram            number of classes and of tokens seen exactly; the table's arrays
//     table V.L.token, .child, .begin, .backoff, .follow, .mass     its level L, as counts/tables.cpp explains them
//     document.*, archive.*, learning, ages, …              how memories are made, if there are any: views.py:memory_arrays
#include "counted/query.h"

#include <algorithm>
#include <cmath>

namespace {

constexpr double LARGEST_EXPONENT = 1e3;  // by magnitude; larger ones would overflow in single precision
constexpr int MAX_DISTANCE = 256;         // no view sees tokens as far away as this
constexpr int64_t MOST_COUNTED = (int64_t)1 << 46;  // of a token; fewer than 2^16 tokens have fewer than 2^62
constexpr uint32_t MANY = 64, CLASSES_PER_FOLLOWER = 8;  // contexts with more followers have sums by class

bool are_classes(Model &model, const std::string &name, const Token *&out) {
    if (!model.get(name, out, model.vocabulary)) return false;
    int highest = *std::max_element(out, out + model.vocabulary);
    return model.require(highest < model.vocabulary, name);
}

// Ranks tokens class by class, by id within a class, the markers last; their classes do not matter.
bool rank_tokens(Model &model) {
    const std::string name = "output_classes";
    int64_t tokens = model.size(name);
    model.vocabulary = (int32_t)tokens;
    const Token *class_of;
    if (!model.require(tokens > EOD && tokens <= UINT16_MAX + 1, name) || !are_classes(model, name, class_of)) return false;
    int32_t predicted = model.vocabulary - EOD;
    model.classes = *std::max_element(class_of + EOD, class_of + tokens) + 1;
    int32_t *first = model.make<int32_t>(model.classes + 1);
    Token *rank = model.make<Token>(tokens), *token_of = model.make<Token>(tokens), *classes = model.make<Token>(tokens);
    for (int64_t token = EOD; token < tokens; token++) first[class_of[token] + 1]++;
    for (int k = 0; k < model.classes; k++) {
        if (!model.require(first[k + 1] > 0, name)) return false;
        first[k + 1] += first[k];
    }
    std::vector<int32_t> next(first, first + model.classes);
    for (int32_t token = 0; token < model.vocabulary; token++) {
        int32_t at = token < EOD ? predicted + token : next[class_of[token]]++;
        rank[token] = (Token)at;
        token_of[at] = (Token)token;
        classes[at] = token < EOD ? 0 : class_of[token];
    }
    model.rank = rank;
    model.token_of_rank = token_of;
    model.class_of_rank = classes;
    model.class_first = first;
    return true;
}

// Sums over classes of what is given by rank.
template <class Number>
std::vector<double> by_class(const Model &model, const Number *shares) {
    std::vector<double> sums(model.classes, 0.0);
    for (int k = 0; k < model.classes; k++)
        for (int r = model.class_first[k]; r < model.class_first[k + 1]; r++) sums[k] += shares[r];
    return sums;
}

// The prior f: relative frequencies, with half a count for what never occurred.
bool make_prior(Model &model) {
    const int64_t *frequencies;
    if (!model.get("frequencies", frequencies, model.vocabulary)) return false;
    int32_t predicted = model.vocabulary - EOD;
    double total = 0;
    for (int32_t token = 0; token < model.vocabulary; token++) {
        if (!model.require(frequencies[token] >= 0 && frequencies[token] < MOST_COUNTED, "frequencies")) return false;
        total += token < EOD ? 0 : frequencies[token] + 0.5;
    }
    std::vector<double> shares(model.vocabulary);
    float *prior = model.make<float>(model.vocabulary), *log_prior = model.make<float>(model.vocabulary);
    float *of_class = model.make<float>(model.classes), *log_of_class = model.make<float>(model.classes);
    for (int32_t r = 0; r < model.vocabulary; r++) {
        double log_share = std::log((r < predicted ? frequencies[model.token_of_rank[r]] + 0.5 : 1e-30) / total);
        shares[r] = std::exp(log_share);
        prior[r] = (float)shares[r];
        log_prior[r] = (float)log_share;
    }
    std::vector<double> sums = by_class(model, shares.data());
    for (int k = 0; k < model.classes; k++) {
        of_class[k] = (float)sums[k];
        log_of_class[k] = (float)std::log(sums[k]);
    }
    model.prior = prior;
    model.log_prior = log_prior;
    model.class_prior = of_class;
    model.log_class_prior = log_of_class;
    return true;
}

bool are_distances(Model &model, const std::string &name, const int32_t *&distances, int32_t &length) {
    length = (int32_t)std::min<int64_t>(model.size(name), MAX_LEVELS);
    if (!model.require(length > 0 && length < MAX_LEVELS, name) || !model.get(name, distances, length)) return false;
    bool ascending = distances[length - 1] < MAX_DISTANCE;
    for (int l = 0; l < length; l++) ascending = ascending && distances[l] > (l ? distances[l - 1] : 0);
    return model.require(ascending, name);
}

// Classes of context tokens: null if tokens are seen themselves.
bool are_context_classes(Model &model, int32_t number, const Token *&classes) {
    classes = nullptr;
    return !number || are_classes(model, "context_classes." + std::to_string(number), classes);
}

// Whether lookup can follow a level: offsets that ascend from zero to their ends; followers that can be predicted, sorted; the
// tokens of siblings sorted; shares and back-offs that are proper numbers. Levels above have been checked before.
bool is_sound(const Level &here, const Level *above, int64_t followers, int64_t children, int64_t predicted) {
    if (here.begin[0] != 0 || here.begin[here.contexts] != followers) return false;
    if (here.child && (here.child[0] != 0 || here.child[here.contexts] != children)) return false;
    for (int64_t i = 0; i < here.contexts; i++) {
        if (here.begin[i + 1] < here.begin[i] || here.begin[i + 1] > followers) return false;
        if (here.child && (here.child[i + 1] < here.child[i] || here.child[i + 1] > children)) return false;
        if (!(here.backoff[i] > 0 && here.backoff[i] < 2)) return false;
        for (int64_t j = here.begin[i]; j < here.begin[i + 1]; j++) {
            if (here.follow[j] >= predicted || (j > here.begin[i] && here.follow[j] <= here.follow[j - 1])) return false;
            if (!(here.mass[j] >= 0 && here.mass[j] < 2)) return false;
        }
    }
    for (int64_t p = 0; above && p < above->contexts; p++)
        for (int64_t i = above->child[p] + 1; i < above->child[p + 1]; i++)
            if (here.token[i] <= here.token[i - 1]) return false;
    return true;
}

bool add_level(Model &model, View &view, const std::string &table, int level) {
    const std::string here_is = table + std::to_string(level), name = here_is + ".";
    Level &here = view.level[level - 1];
    const Level *above = level > 1 ? &here - 1 : nullptr;
    bool is_deepest = level == view.levels;
    int64_t contexts = above ? model.size(name + "token") : model.vocabulary, followers = model.size(name + "follow");
    int64_t children = is_deepest ? 0 : model.size(table + std::to_string(level + 1) + ".token");
    here.contexts = (uint32_t)contexts;
    here.many = std::max(MANY, (uint32_t)model.classes / CLASSES_PER_FOLLOWER);
    return model.require(std::max({contexts, followers, children}) < UINT32_MAX, here_is) &&
           model.get(name + "begin", here.begin, contexts + 1) && model.get(name + "backoff", here.backoff, contexts) &&
           model.get(name + "follow", here.follow, followers) && model.get(name + "mass", here.mass, followers) &&
           (!above || model.get(name + "token", here.token, contexts)) &&
           (is_deepest || model.get(name + "child", here.child, contexts + 1)) &&
           model.require(is_sound(here, above, followers, children, model.vocabulary - EOD), here_is);
}

bool add_view(Model &model, int v) {
    const std::string name = "view " + std::to_string(v), table = "table " + std::to_string(v) + ".";
    View &view = model.view[v];
    const int32_t *seen;  // by class; exactly
    if (!are_distances(model, table + "distances", view.distances, view.levels) || !model.get(name, seen, 2) ||
        !are_context_classes(model, seen[0], view.classes) || !model.get(table + "unigram", view.unigram, model.vocabulary))
        return false;
    view.exact = seen[1];
    view.is_slot = view.levels == 1 && !seen[0];
    bool sound = view.exact >= 0 && view.exact <= view.levels;
    for (int32_t r = 0; r < model.vocabulary - EOD; r++) sound = sound && view.unigram[r] >= 1e-30f && view.unigram[r] < INFINITY;
    std::vector<double> sums = by_class(model, view.unigram);
    float *of_class = model.make<float>(model.classes);
    std::copy(sums.begin(), sums.end(), of_class);
    view.class_unigram = of_class;
    for (int level = 1; level <= view.levels; level++) sound = sound && add_level(model, view, table, level);
    return model.require(sound, name);
}

bool add_context(Model &model, const std::string &name, MemoryContext &context) {
    const int32_t *seen;  // exactly; whether it is chained; at most; by class
    const float *weights;
    if (!model.get(name, seen, 4) || !model.get(name + ".weights", weights, 2) ||
        !are_distances(model, name + ".distances", context.distances, context.length) ||
        !are_context_classes(model, seen[3], context.classes))
        return false;
    context.exact = seen[0];
    context.chained = seen[1];
    context.longest = seen[2];
    context.strength = weights[0];
    context.keep = weights[1];
    bool is_seen = context.exact >= 0 && context.exact <= context.length && context.longest >= 0;
    bool counts = context.strength > 0 && context.strength < 1e6f && context.keep > 0 && context.keep <= 1;
    return model.require(is_seen && counts, name);
}

bool add_memory(Model &model, const std::string &name, MemoryShape &shape) {
    const float *learning;  // strength, rate, smallest share
    const int32_t *window;
    shape.decays = (int32_t)std::min<int64_t>(model.size(name + ".half_lives"), MAX_MEMORY_PARTS);
    shape.ages = MEMORY_EVIDENCE - 1;
    if (!model.get(name + ".window", window, 1) || !model.get(name + ".half_lives", shape.half_lives, shape.decays) ||
        !model.get("ages", shape.age_limits, shape.ages) || !model.get("learning", learning, 3) ||
        !model.get("count_limits", shape.count_limits, 3) || !model.get("match_limits", shape.match_limits, MEMORY_EVIDENCE - 1))
        return false;
    shape.window = window[0];
    shape.strength = learning[0];
    shape.rate = learning[1];
    shape.smallest_share = learning[2];
    bool sound = shape.window > 0 && shape.strength > 0 && shape.rate >= 0 && shape.smallest_share > 0;
    for (int h = 0; h < shape.decays; h++) sound = sound && shape.half_lives[h] >= 1;
    for (std::string next; sound && model.size(next = name + " " + std::to_string(shape.contexts)); shape.contexts++)
        sound = shape.parts() < MAX_MEMORY_PARTS && add_context(model, next, shape.context[shape.contexts]);
    return model.require(sound, name);
}

// Exponents of both levels, in single precision.
bool add_exponents(Model &model, const std::string &name, int64_t number, const float *(&out)[2]) {
    const double *stored;
    if (!model.get(name, stored, 2 * number)) return false;
    for (int level = 0; level < 2; level++) {
        float *own = out[level] ? const_cast<float *>(out[level]) : model.make<float>(number);
        for (int64_t j = 0; j < number; j++) {
            double exponent = stored[level * number + j];
            if (!model.require(std::abs(exponent) <= LARGEST_EXPONENT, name)) return false;
            own[j] = (float)exponent;
        }
        out[level] = own;
    }
    return true;
}

bool add_all_exponents(Model &model) {
    int64_t of_views = 1;
    for (int v = 0; v < model.views; v++) of_views += EVIDENCE * model.view[v].levels;
    if (!add_exponents(model, "plain", of_views, model.plain)) return false;
    return !model.memory.window || add_exponents(model, "memory", 1 + model.memory.exponents(), model.remembered);
}

bool make_ready(Model &model) {
    if (!rank_tokens(model) || !make_prior(model)) return false;
    for (; !model.views || model.size("view " + std::to_string(model.views)); model.views++)
        if (!model.require(model.views < MAX_VIEWS, "views") || !add_view(model, model.views)) return false;
    if (model.size("document.window")) {
        if (!add_memory(model, "document", model.memory) || !add_memory(model, "archive", model.archive)) return false;
        if (!model.require(model.memory.parts() + model.archive.parts() < MAX_MEMORY_PARTS, "archive")) return false;
    }
    return add_all_exponents(model);
}

// Calls visit(context, its first follower, the one after its last) for the contexts of a level with many followers.
template <class Visit>
void each_heavy(const Level &level, Visit visit) {
    for (uint32_t i = 0; i < level.contexts; i++)
        if (level.begin[i + 1] - level.begin[i] > level.many) visit(i, level.begin[i], level.begin[i + 1]);
}

// Bytes for the sums by class of a level.
int64_t room_for(const Model &model, const Level &level) {
    int64_t heavies = 0;
    each_heavy(level, [&](uint32_t, uint32_t, uint32_t) { heavies++; });
    return (heavies * (int64_t)(sizeof(uint32_t) + model.classes * sizeof(float) + (model.classes + 1) * sizeof(Token)) + 3) / 4 * 4;
}

// Sums of the followers' shares by class for contexts with many, and how many of these are in the classes before each:
// both save time.
void add_class_sums(const Model &model, Level &level, char *room) {
    std::vector<uint32_t> contexts;
    each_heavy(level, [&](uint32_t context, uint32_t, uint32_t) { contexts.push_back(context); });
    if (contexts.empty()) return;
    uint32_t *heavy = (uint32_t *)room;
    float *rows = (float *)(heavy + contexts.size());
    Token *before = (Token *)(rows + contexts.size() * model.classes);
    level.heavy = heavy;
    level.rows = rows;
    level.before = before;
    level.heavies = (uint32_t)contexts.size();
    std::copy(contexts.begin(), contexts.end(), heavy);
    std::vector<double> sums(model.classes);
    each_heavy(level, [&](uint32_t, uint32_t first, uint32_t last) {
        std::fill(sums.begin(), sums.end(), 0.0);
        int next = 0;  // class
        for (uint32_t at = first; at < last; at++) {
            int k = model.class_of_rank[level.follow[at]];
            for (; next <= k; next++) *before++ = (Token)(at - first);
            sums[k] += level.mass[at];
        }
        for (; next <= model.classes; next++) *before++ = (Token)(last - first);
        for (double sum : sums) *rows++ = (float)sum;
    });
}

}  // namespace

extern "C" {

EXPORT Model *saffu_model() KERNEL { return new Model(); } OR_FAIL(nullptr)
EXPORT void saffu_free_model(Model *model) { delete model; }

// An array of a model, which must outlive it. Types are named as in NumPy: u2, u4, i4, i8, f4, f8.
EXPORT void saffu_put(Model *model, const char *name, const char *type, const void *data, int64_t size) KERNEL {
    model->put(name, type, data, size);
} OR_FAIL()

// Makes a model of its arrays, after checking them. Returns null or, if they do not make one, what is wrong.
EXPORT const char *saffu_ready(Model *model) KERNEL {
    return make_ready(*model) ? nullptr : model->problem.c_str();
} OR_FAIL(nullptr)

// Takes the exponents from other arrays of the same shape, for calibration, which tries many.
EXPORT const char *saffu_exponents(Model *model) KERNEL {
    return add_all_exponents(*model) ? nullptr : model->problem.c_str();
} OR_FAIL(nullptr)

// Bytes that sums by class take, which make reading faster; and these sums, in room that the caller has, in memory or not.
EXPORT int64_t saffu_room(const Model *model) KERNEL {
    int64_t bytes = 0;
    for (int v = 0; v < model->views; v++)
        for (int l = 0; l < model->view[v].levels; l++) bytes += room_for(*model, model->view[v].level[l]);
    return bytes;
} OR_FAIL(0)

EXPORT void saffu_fill(Model *model, char *room) KERNEL {
    for (int v = 0; v < model->views; v++)
        for (int l = 0; l < model->view[v].levels; l++) {
            Level &level = model->view[v].level[l];
            add_class_sums(*model, level, room);
            room += room_for(*model, level);
        }
} OR_FAIL()
}
