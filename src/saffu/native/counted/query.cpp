// Queries: p(n | c) = p(k(n) | c) · p(n | k(n), c), each factor a calibrated product of the views' shares and, with a
// memory, of that product and what the memory says:
//
//     ln p(o) = γ ln p_plain(o) + Σ_h a_h ln(p_h(o)/f(o)) + Σ_m a_m ln(1 + c_m(o)/(s_m·p(o))) − ln Z
//
// The exponents γ and a begin each document as they were fitted and then follow it: after each token, a step along the
// gradient, the features of what came minus their expectation, over the root of the sum of its squares (AdaGrad).
#include "memory.h"

#include <vector>

namespace {

// Targets in the order of their contexts, nearest tokens first. Those with the same context as far back as views see, and the
// same token, have the same probability; and those with similar contexts need the same tables, which are then in the cache.
class TargetsByContext {
  public:
    TargetsByContext(const Model &model, const Token *ids, const std::vector<Target> &targets)
        : ids(ids), lookback(model.lookback()) {
        struct Keyed {
            uint64_t nearest;  // tokens
            Target target;
        };
        std::vector<Keyed> keyed;
        keyed.reserve(targets.size());
        for (const Target &target : targets) {
            Context context = target.context(ids);
            uint64_t nearest = 0;
            for (int distance = 1; distance <= NEAREST; distance++) nearest = nearest << 16 | context[distance];
            keyed.push_back({nearest, target});
        }
        std::sort(keyed.begin(), keyed.end(), [&](const Keyed &a, const Keyed &b) {
            if (a.nearest != b.nearest) return a.nearest < b.nearest;
            int farther = compare(a.target, b.target, NEAREST + 1);
            return farther ? farther < 0 : ids[a.target.place] < ids[b.target.place];
        });
        places.reserve(targets.size());
        for (const Keyed &one : keyed) {
            bool is_new = distinct.empty() || ids[distinct.back().place] != ids[one.target.place];
            if (is_new || compare(distinct.back(), one.target, 1)) {
                distinct.push_back(one.target);
                first.push_back(places.size());
            }
            places.push_back(one.target.place);
        }
        first.push_back(places.size());
    }

    // Whether a distinct target has the context of the one before it.
    bool has_same_context(size_t number) const { return number && !compare(distinct[number - 1], distinct[number], 1); }

    // Calls visit(place) for all targets like a distinct one.
    template <class Visit>
    void each_like(size_t number, Visit visit) const {
        for (size_t i = first[number]; i < first[number + 1]; i++) visit(places[i]);
    }

    std::vector<Target> distinct;

  private:
    static constexpr int NEAREST = 4;
    const Token *ids;
    int lookback;
    std::vector<int64_t> places;
    std::vector<size_t> first;  // place of each distinct target

    // Below, at, or above 0, as contexts from a distance on are ordered.
    int compare(const Target &a, const Target &b, int distance) const {
        Context left = a.context(ids), right = b.context(ids);
        for (; distance <= lookback; distance++)
            if (left[distance] != right[distance]) return left[distance] < right[distance] ? -1 : 1;
        return 0;
    }
};

// Reads documents with the memory, token by token.
class Reader {
  public:
    Reader(const Model &model, bool is_online)
        : model(model), views(model), memory(model, model.memory, 1), is_online(is_online), J(1 + model.memory.exponents()) {
        if (is_online) archive.emplace_back(model, model.archive, J);
        for (auto *numbers : {&exponents_of, &squares_of})
            for (auto &level : *numbers) level.resize(J + (is_online ? model.archive.exponents() : 0));
        int widest = model.classes;
        for (int k = 0; k < model.classes; k++) widest = std::max(widest, Outputs::tokens(model, k).n());
        shares.resize(model.classes + widest);
        p.resize(widest);
        classes.resize(model.classes);
        evidence.resize(widest, 1 + model.memory.decays + (is_online ? model.archive.decays : 0));
        begin();
    }

    // The start of a document. Online, what was learned from others remains.
    void reset() {
        memory.clear();
        if (!is_online) begin();
    }

    // The end of a document of `age` tokens, given its last n and what was learned from it.
    void load(const Token *tail, int64_t n, int64_t age, const float *learned) {
        memory.seek(tail, n, age);
        for (int level = 0; level < 2; level++) {
            std::copy_n(learned + level * J, J, exponents(level));
            std::copy_n(learned + (2 + level) * J, J, squares(level));
        }
    }

    void store(float *learned) {
        for (int level = 0; level < 2; level++) {
            std::copy_n(exponents(level), J, learned + level * J);
            std::copy_n(squares(level), J, learned + (2 + level) * J);
        }
    }

    // ln p of one token, which is then read. `plain`: shares of the classes and of the members of its class without the
    // memory. The certainty before it goes to `certain`, unless null.
    double read(Token token, const float *plain, float *certain) {
        int rank = model.rank[token], k = model.class_of_rank[rank];
        score(Outputs::classes(model), plain);
        double log_p = normalized(model.classes, k);
        if (certain) certainty(certain);
        learn(0, k);
        Outputs tokens = Outputs::tokens(model, k);
        if (tokens.n() > 1) {
            score(tokens, plain + model.classes);
            log_p += normalized(tokens.n(), rank - tokens.lo);
            learn(1, rank - tokens.lo);
        }
        memory.add(token);
        for (Memory &all : archive) all.add(token);
        return log_p;
    }

    // Moves to the end of a document, as `load` does, and looks it up in the views.
    void seek(const Token *tail, int64_t n, int64_t age, const float *learned) {
        views.seek(Context{tail + n, age});
        if (model.memory.window) load(tail, n, age, learned);
    }

    // Leaves the scores of some outputs at that place in p.
    void score(const Outputs &outputs) {
        if (!model.memory.window) {
            views.scores(outputs, p.data());
            return;
        }
        views.shares(outputs, shares.data());
        score(outputs, shares.data());
    }

    // The same, given their shares without the memory.
    void score(const Outputs &outputs, const float *plain) {
        int n = outputs.n();
        evidence.begin(plain, n);
        memory.add_rows(outputs, evidence);
        for (Memory &all : archive) all.add_rows(outputs, evidence);
        memory.add_contexts(outputs, plain, evidence);
        for (Memory &all : archive) all.add_contexts(outputs, plain, evidence);
        evidence.finish();
        const float *exponent = exponents(outputs.level);
        scaled(p.data(), evidence.dense.data(), exponent[0], n);
        for (int part = 1; part < evidence.rows; part++)
            add_scaled(p.data(), evidence.dense.data() + part * evidence.stride, exponent[evidence.exponent[part]], n);
        for (int c = 0; c < evidence.contexts; c++) {
            float weight = exponent[evidence.exponent[evidence.rows + c]];
            for (int j = evidence.first[c]; j < evidence.first[c + 1]; j++)
                p[evidence.place[j]] += weight * evidence.value[j];
        }
    }

    // Turns the scores in p into probabilities; returns ln p of one of them.
    float normalized(int n, int target) {
        float score = p[target];
        return score - normalize(p.data(), n);
    }

    // How certain the model is of the next class, whose probabilities are in p: their entropy, and the largest ln p.
    void certainty(float *out) const {
        float entropy = 0, largest = 0;
        for (int k = 0; k < model.classes; k++) {
            entropy -= p[k] > 1e-30f ? p[k] * fast_log(p[k]) : 0;
            largest = std::max(largest, p[k]);
        }
        out[0] = entropy;
        out[1] = std::log(largest);
    }

    const Model &model;
    ViewProduct views;
    Memory memory;
    Evidence evidence;
    std::vector<float> shares, p, classes;
    float *exponents(int level) { return exponents_of[level].data(); }

  private:
    std::vector<Memory> archive;  // of all documents; empty unless they are read online
    bool is_online;
    int J;  // exponents without those of the archive
    std::vector<float> exponents_of[2], squares_of[2];  // of classes and of tokens; sums of squares of their gradients

    float *squares(int level) { return squares_of[level].data(); }

    // Nothing is learned yet; an archive says nothing at first.
    void begin() {
        for (int level = 0; level < 2; level++) {
            std::fill(exponents_of[level].begin(), exponents_of[level].end(), 0.0f);
            std::fill(squares_of[level].begin(), squares_of[level].end(), 1.0f);
            if (model.memory.window) std::copy_n(model.remembered[level], J, exponents(level));
        }
    }

    void learn(int level, int target) {
        const float *rows = evidence.dense.data();
        for (int part = 0; part < evidence.rows; part++) {
            const float *row = rows + part * evidence.stride;
            step(level, evidence.exponent[part], row[target] - dot(row, p.data(), evidence.n));
        }
        for (int c = 0; c < evidence.contexts; c++) {
            float gradient = 0;
            for (int j = evidence.first[c]; j < evidence.first[c + 1]; j++) {
                int i = evidence.place[j];
                gradient += evidence.value[j] * ((i == target ? 1 : 0) - p[i]);
            }
            step(level, evidence.exponent[evidence.rows + c], gradient);
        }
    }

    void step(int level, int number, float gradient) {
        if (gradient == 0) return;
        float &square = squares(level)[number];
        square += gradient * gradient;
        exponents(level)[number] += model.memory.rate * gradient / std::sqrt(square);
    }
};

// The place at which a share of the sum of some probabilities is reached.
int place_of(const float *p, int n, double share) {
    double below = 0, total = 0;
    for (int i = 0; i < n; i++) total += p[i];
    for (int i = 0; i < n; i++)
        if ((below += p[i]) > share * total) return i;
    return (int)(std::max_element(p, p + n) - p);
}

// Whether fewer than `top` tokens are likelier than one with probability p, where a reader is and has the probabilities of the
// classes. A class has room for no more than P(k) / p such tokens, so few classes have to be looked at.
bool is_among_top(Reader &reader, float p, int top) {
    if (p * top >= 1) return true;
    struct Room {
        int most, k;
        bool operator<(const Room &other) const { return most < other.most; }
    };
    std::vector<Room> rooms;
    int64_t most = 0, least = 0;
    for (int k = 0; k < reader.model.classes; k++) {
        if (reader.classes[k] <= p) continue;
        float room = std::min(reader.classes[k] / p, (float)Outputs::tokens(reader.model, k).n());
        rooms.push_back({(int)room, k});
        most += rooms.back().most;
    }
    std::make_heap(rooms.begin(), rooms.end());
    for (; most >= top && least < top; rooms.pop_back()) {
        std::pop_heap(rooms.begin(), rooms.end());
        Outputs tokens = Outputs::tokens(reader.model, rooms.back().k);
        reader.score(tokens);
        normalize(reader.p.data(), tokens.n());
        float limit = p / reader.classes[rooms.back().k];
        int likelier = 0;
        for (int i = 0; i < tokens.n(); i++) likelier += reader.p[i] > limit;
        least += likelier;
        most += likelier - rooms.back().most;
    }
    return least < top;
}

}  // namespace

extern "C" {

// Without a memory: ln p of each target from lo to hi, into out[0 … hi − lo), and unless null its certainty (hi − lo, 2).
EXPORT void saffu_score(const Model *model, const Token *ids, const int64_t *starts, int64_t documents, int64_t lo,
                        int64_t hi, double *out, float *certain) KERNEL {
    Reader reader(*model, false);
    Outputs classes = Outputs::classes(*model);
    std::vector<float> scores(classes.n());
    float total = 0, sure[2];
    TargetsByContext targets(*model, ids, targets_between(starts, documents, lo, hi));
    size_t number = 0;
    reader.views.each(ids, targets.distinct, [&](const Target &target) {
        int rank = model->rank[ids[target.place]], k = model->class_of_rank[rank];
        if (!targets.has_same_context(number)) {
            reader.score(classes);
            std::copy_n(reader.p.data(), classes.n(), scores.data());
            total = normalize(reader.p.data(), classes.n());
            if (certain) reader.certainty(sure);
        }
        double log_p = scores[k] - total;
        Outputs tokens = Outputs::tokens(*model, k);
        if (tokens.n() > 1) {  // otherwise its probability is 1
            reader.score(tokens);
            log_p += reader.normalized(tokens.n(), tokens.place(*model, (Token)rank));
        }
        targets.each_like(number, [&](int64_t place) {
            out[place - lo] = log_p;
            if (certain) std::copy_n(sure, 2, certain + 2 * (place - lo));
        });
        number++;
    });
} OR_FAIL()

// Without a memory: the shares of all classes and of the members of the target's class, for each target from lo to hi, one
// after the other.
EXPORT void saffu_plain_shares(const Model *model, const Token *ids, const int64_t *starts, int64_t documents,
                               int64_t lo, int64_t hi, float *out) KERNEL {
    ViewProduct views(*model);
    views.each(ids, targets_between(starts, documents, lo, hi), [&](const Target &target) {
        out += views.shares_for(ids[target.place], out);
    });
} OR_FAIL()

// A reader at the start of a document; the model must outlive it. If it is online, it remembers the documents before, too.
EXPORT Reader *saffu_reader(const Model *model, int32_t is_online) KERNEL {
    return new Reader(*model, is_online);
} OR_FAIL(nullptr)

EXPORT void saffu_free_reader(Reader *reader) { delete reader; }

// Reads the targets from lo to hi, given their shares without the memory: ln p of each, and unless null its certainty
// (hi − lo, 2). The reader must be at lo.
EXPORT void saffu_read_targets(Reader *reader, const Token *ids, const int64_t *starts, int64_t documents, int64_t lo,
                               int64_t hi, const float *plain, double *out, float *certain) KERNEL {
    each_target(starts, documents, lo, hi, [&](int64_t p, int64_t start) {
        if (p == start) reader->reset();
        out[p - lo] = reader->read(ids[p], plain, certain ? certain + 2 * (p - lo) : nullptr);
        plain += reader->model.classes + Outputs::tokens(reader->model, class_of(reader->model, ids[p])).n();
    });
} OR_FAIL()

// Reads the tokens of a document from place `from` of its last n tokens on; it has `age` tokens with them. `learned`
// (4, exponents) is what was learned before, then after them.
EXPORT void saffu_read(Reader *reader, const Token *tail, int64_t n, int64_t age, int64_t from, float *learned) KERNEL {
    reader->load(tail, from, age - (n - from), learned);
    for (int64_t p = from; p < n; p++) {
        reader->views.seek(Context{tail + p, age - (n - p)});
        reader->views.shares_for(tail[p], reader->shares.data());
        reader->read(tail[p], reader->shares.data(), nullptr);
    }
    reader->store(learned);
} OR_FAIL()

// ln p of every token after a document of `age` tokens, given its last n and, with a memory, what was learned from it; −inf
// for what is never predicted. `certain` (2) gets the certainty.
EXPORT void saffu_distribution(Reader *reader, const Token *tail, int64_t n, int64_t age, const float *learned,
                               float *out, float *certain) KERNEL {
    const Model &model = reader->model;
    std::fill(out, out + model.vocabulary, -INFINITY);
    reader->seek(tail, n, age, learned);
    std::vector<float> of_classes, scores;
    auto log_probabilities = [&](const Outputs &outputs, std::vector<float> &log_p) {
        reader->score(outputs);
        log_p.assign(reader->p.begin(), reader->p.begin() + outputs.n());
        float total = normalize(reader->p.data(), outputs.n());
        for (float &x : log_p) x -= total;
    };
    log_probabilities(Outputs::classes(model), of_classes);
    reader->certainty(certain);
    for (int k = 0; k < model.classes; k++) {
        Outputs tokens = Outputs::tokens(model, k);
        log_probabilities(tokens, scores);
        for (int i = 0; i < tokens.n(); i++) out[model.token_of_rank[tokens.lo + i]] = of_classes[k] + scores[i];
    }
} OR_FAIL()

// Only the certainty (2) after such a document, and, if `classes` is not null, the probabilities of the classes.
EXPORT void saffu_certainty(Reader *reader, const Token *tail, int64_t n, int64_t age, const float *learned,
                            float *certain, float *classes) KERNEL {
    reader->seek(tail, n, age, learned);
    reader->score(Outputs::classes(reader->model));
    reader->normalized(reader->model.classes, 0);
    reader->certainty(certain);
    if (classes) std::copy_n(reader->p.data(), reader->model.classes, classes);
} OR_FAIL()

// After that, the probabilities of the tokens of class k, given the class.
EXPORT void saffu_members(Reader *reader, int32_t k, float *out) KERNEL {
    Outputs tokens = Outputs::tokens(reader->model, k);
    reader->score(tokens);
    reader->normalized(tokens.n(), 0);
    std::copy_n(reader->p.data(), tokens.n(), out);
} OR_FAIL()

// Samples a token from that distribution; with a memory, it is then read. Of the numbers from [0, 1) in `uniform` (tries, 2),
// the first is for a class and the second for a token of that class. Unless `top` is 0, tokens that are not among as many most
// likely ones are drawn again; returns −1 if all tries gave such tokens.
EXPORT int32_t saffu_sample(Reader *reader, const Token *tail, int64_t n, int64_t age, float *learned,
                            const double *uniform, int32_t tries, int32_t top) KERNEL {
    const Model &model = reader->model;
    reader->seek(tail, n, age, learned);
    reader->score(Outputs::classes(model));
    normalize(reader->p.data(), model.classes);
    std::copy_n(reader->p.data(), model.classes, reader->classes.data());
    float rejected = 0;
    for (; tries; tries--, uniform += 2) {
        int k = place_of(reader->classes.data(), model.classes, uniform[0]);
        Outputs tokens = Outputs::tokens(model, k);
        reader->score(tokens);
        normalize(reader->p.data(), tokens.n());
        int place = place_of(reader->p.data(), tokens.n(), uniform[1]);
        float p = reader->classes[k] * reader->p[place];
        if (top && (p <= rejected || !is_among_top(*reader, p, top))) {
            rejected = std::max(rejected, p);
            continue;
        }
        Token token = model.token_of_rank[tokens.lo + place];
        if (model.memory.window) {
            reader->views.shares_for(token, reader->shares.data());
            reader->read(token, reader->shares.data(), nullptr);
            reader->store(learned);
        }
        return token;
    }
    return -1;
} OR_FAIL(0)

// What an explanation is made of, for all classes and all predicted tokens by rank (parts, classes + tokens): ln of the shares
// of the prior and of each view, ln p_plain, and what each part of the memory adds to the scores; and the exponents (parts, 2)
// of classes and of tokens, which for tokens and the memory are those of the last class.
EXPORT void saffu_explain(Reader *reader, const Token *tail, int64_t n, int64_t age, const float *learned, float *out,
                          float *exponents) KERNEL {
    const Model &model = reader->model;
    const MemoryShape &shape = model.memory;
    int64_t width = model.classes + model.class_first[model.classes];
    reader->seek(tail, n, age, learned);
    for (int k = -1; k < model.classes; k++) {
        Outputs outputs = k < 0 ? Outputs::classes(model) : Outputs::tokens(model, k);
        int level = outputs.level, count = outputs.n();
        float *row = out + (level ? model.classes + outputs.lo : 0), *weight = exponents + level;
        std::copy_n(outputs.log_prior(model), count, row);
        weight[0] = model.plain[level][0];
        for (int v = 0; v < model.views; v++) {
            row += width;
            weight += 2;
            outputs.shares(model, *reader->views.looked, v, row);
            logarithms(row, count);
            weight[0] = model.plain[level][reader->views.looked->exponent[v]];
        }
        if (!shape.window) continue;
        reader->score(outputs);
        const Evidence &evidence = reader->evidence;
        for (int part = 0; part <= shape.parts(); part++) {
            row += width;
            weight += 2;
            float exponent = reader->exponents(level)[evidence.exponent[part]];
            weight[0] = exponent;
            evidence.row(part, row);
            if (part) scaled(row, row, exponent, count);
        }
    }
} OR_FAIL()

// The contexts of a view that were seen after a document, one for each level, shortest first; returns their number.
EXPORT int32_t saffu_match(const Model *model, int32_t view, const Token *tail, int64_t n, int64_t age,
                           uint32_t *contexts) KERNEL {
    Match found = match(model->view[view], Context{tail + n, age});
    std::copy_n(found.context + 1, found.levels, contexts);
    return found.levels;
} OR_FAIL(0)

// ln p of each target from lo to hi under the first view alone.
EXPORT void saffu_view_score(const Model *model, const Token *ids, const int64_t *starts, int64_t documents, int64_t lo,
                             int64_t hi, double *out) KERNEL {
    const View &view = model->view[0];
    each_target(starts, documents, lo, hi, [&](int64_t p, int64_t start) {
        Match found = match(view, Context{ids + p, p - start});
        Token target = model->rank[ids[p]];
        double share = (double)found.weight[0] * view.unigram[target];
        for (int l = found.levels; l > 0; l--) {
            const Level &level = view.level[l - 1];
            const Token *first = level.follow + level.begin[found.context[l]];
            const Token *last = level.follow + level.begin[found.context[l] + 1];
            const Token *place = std::lower_bound(first, last, target);
            if (place != last && *place == target) share += (double)found.weight[l] * level.mass[place - level.follow];
        }
        out[p - lo] = std::log(share);
    });
} OR_FAIL()
}
