// The memory of a document: counts of what it has said so far, as further factors of the model.
//
// Decayed unigrams, p_h = (c_h + strength·f)/(Σ c_h + strength), where a token's weight in c_h halves every h tokens, and
// followers of the contexts of calibrated/views.py, p_m = (c_m + s·p)/(Σ c_m + s), where p is the prediction without the
// memory or the share of a shorter context, and the counts of a context fade each time it occurs. Features are ln(p_h/f)
// and ln(1 + c_m/(s·p)), which is ln(p_m/p) but for a constant: zero for what did not follow. So few outputs have any.
#pragma once
#include "lookup.h"

#include <vector>

namespace {

constexpr int MAX_FOLLOWERS = 64;  // of a context; the least frequent makes room for another; as in calibrated/views.py
constexpr int ROOMS = 7;           // for 1, 2, 4, … 64 followers

// What one or two memories say about the outputs of one decision. Its parts are rows, then contexts.
struct Evidence {
    int n = 0, stride = 0, rows = 0, contexts = 0;
    std::vector<float> dense;                // (rows, stride): ln p without the memory, then ln(p_h/f)
    std::vector<int> place;                  // outputs that contexts say something about, one context after the other
    std::vector<float> value;                // their features
    int first[MAX_MEMORY_PARTS + 1] = {0};   // where each context begins in these
    int exponent[MAX_MEMORY_PARTS] = {0};    // which one each part gets
    std::vector<float> counts, shares, lower;  // scratch, by output

    // The features of a part, for all outputs.
    void row(int part, float *out) const {
        if (part < rows) {
            std::copy_n(dense.data() + part * stride, n, out);
            return;
        }
        std::fill_n(out, n, 0.0f);
        int context = part - rows;
        for (int j = first[context]; j < first[context + 1]; j++) out[place[j]] = value[j];
    }

    // Begins with the shares without the memory.
    void begin(const float *plain, int outputs) {
        n = outputs;
        rows = 1;
        contexts = 0;
        place.clear();
        value.clear();
        std::copy_n(plain, n, dense.begin());
        logarithms(dense.data(), n);
    }

    // Features of contexts are logarithms, which are taken at once.
    void finish() { logarithms(value.data(), (int)value.size()); }

    void resize(int outputs, int most_rows) {
        dense.resize((size_t)most_rows * outputs);
        for (auto *scratch : {&counts, &shares, &lower}) scratch->assign(outputs, 0);
        stride = outputs;
    }
};

// Contexts and their followers, found by a hash of the context.
class FollowerTable {
  public:
    static constexpr uint32_t NOWHERE = UINT32_MAX;

    FollowerTable() { clear(); }

    // Takes no longer than what was added since the last time: documents may be short.
    void clear() {
        generation++;
        if (slots.size() != SMALL || !generation) {
            std::vector<Slot>(SMALL).swap(slots);
            generation = 1;
        }
        used = 0;
        ranks.clear();
        counts.clear();
        for (auto &list : vacant) list.clear();
    }

    // Makes sure that `more` contexts can be added without moving others; true if all were moved.
    bool reserve(int more) {
        if ((used + more) * 5 < slots.size() * 3) return false;
        std::vector<Slot> old(slots.size() * 2);
        old.swap(slots);
        for (const Slot &slot : old)
            if (is_used(slot)) slots[locate(slot.hash)] = slot;
        return true;
    }

    void will_find(uint64_t hash) const { will_read(&slots[hash & (slots.size() - 1)]); }

    // The place of a context, whose followers will be read.
    uint32_t find(uint64_t hash) const {
        uint32_t at = locate(hash);
        if (!is_used(slots[at])) return NOWHERE;
        will_read(ranks.data() + slots[at].begin);
        will_read(counts.data() + slots[at].begin);
        return at;
    }

    // One more occurrence of a context, followed by the token of this rank.
    void add(uint64_t hash, Token rank, float keep, uint32_t place_in_text) {
        Slot &slot = slots[locate(hash)];
        if (!is_used(slot)) {
            slot = {hash, allocate(0), 1, 0, 0, 0, generation};
            used++;
        }
        slot.last = place_in_text;
        slot.unit = slot.n ? slot.unit / keep : 1;
        Token *rank_of = ranks.data() + slot.begin;
        float *count_of = counts.data() + slot.begin;
        int place = (int)(std::find(rank_of, rank_of + slot.n, rank) - rank_of);
        if (place == slot.n && slot.n == MAX_FOLLOWERS) {
            place = (int)(std::min_element(count_of, count_of + slot.n) - count_of);
            count_of[place] = 0;
        } else if (place == slot.n) {
            if (slot.n == 1 << slot.room) {
                move_to_larger(slot);
                rank_of = ranks.data() + slot.begin;
                count_of = counts.data() + slot.begin;
            }
            count_of[slot.n++] = 0;
        }
        rank_of[place] = rank;
        count_of[place] += slot.unit;
        if (slot.unit < 1e12f) return;
        for (int i = 0; i < slot.n; i++) count_of[i] /= slot.unit;
        slot.unit = 1;
    }

    // Calls visit(rank, count) for each follower of the context at a place.
    template <class Visit>
    void each(uint32_t at, Visit visit) const {
        const Slot &slot = slots[at];
        float weight = 1 / slot.unit;
        const Token *rank_of = ranks.data() + slot.begin;
        const float *count_of = counts.data() + slot.begin;
        for (int i = 0; i < slot.n; i++) visit(rank_of[i], count_of[i] * weight);
    }

    // The place in the text of what followed the context the last time.
    uint32_t last(uint32_t at) const { return slots[at].last; }

  private:
    static constexpr size_t SMALL = 1024;
    struct Slot {
        uint64_t hash = 0;
        uint32_t begin = 0;
        float unit = 1;           // what one more occurrence adds: counts are in units of it
        uint32_t last = 0;        // place of its latest follower in the text
        uint8_t n = 0, room = 0;
        uint16_t generation = 0;  // vacant if it is not the table's
    };
    std::vector<Slot> slots;
    uint16_t generation = 0;
    size_t used = 0;
    std::vector<Token> ranks;
    std::vector<float> counts;
    std::vector<uint32_t> vacant[ROOMS];

    bool is_used(const Slot &slot) const { return slot.generation == generation; }

    uint32_t locate(uint64_t hash) const {
        size_t mask = slots.size() - 1, at = hash & mask;
        while (is_used(slots[at]) && slots[at].hash != hash) at = (at + 1) & mask;
        return (uint32_t)at;
    }

    uint32_t allocate(int room) {
        if (!vacant[room].empty()) {
            uint32_t begin = vacant[room].back();
            vacant[room].pop_back();
            return begin;
        }
        uint32_t begin = (uint32_t)ranks.size();
        ranks.resize(begin + ((size_t)1 << room));
        counts.resize(ranks.size());
        return begin;
    }

    void move_to_larger(Slot &slot) {
        uint32_t begin = allocate(slot.room + 1);
        std::copy_n(ranks.begin() + slot.begin, slot.n, ranks.begin() + begin);
        std::copy_n(counts.begin() + slot.begin, slot.n, counts.begin() + begin);
        vacant[slot.room++].push_back(slot.begin);
        slot.begin = begin;
    }
};

class Memory {
  public:
    // Its exponents begin with number `first_exponent`.
    Memory(const Model &model, const MemoryShape &shape, int first_exponent)
        : model(model), shape(shape), first_exponent(first_exponent), decayed(shape.decays) {
        for (int h = 0; h < shape.decays; h++) {
            decayed[h].tokens.assign(model.vocabulary, 0);
            decayed[h].classes.assign(model.classes, 0);
            decayed[h].decay = std::exp2(-1 / (double)shape.half_lives[h]);
        }
    }

    int64_t age() const { return base + (int64_t)history.size(); }

    // Forgets all; the document's first `begin` tokens will not be added.
    void clear(int64_t begin = 0) {
        for (Decayed &counts : decayed) {
            for (Token token : history) counts.tokens[model.rank[token]] = 0;
            std::fill(counts.classes.begin(), counts.classes.end(), 0);
            counts.total = 0;
            counts.scale = 1;
        }
        followers.clear();
        history.clear();
        base = begin;
        is_prepared = is_looked_up = false;
    }

    // Moves to the end of a document of `age` tokens, whose last n are given.
    void seek(const Token *tail, int64_t n, int64_t age) {
        int64_t half = half_window(), excess = age - shape.window;
        int64_t begin = excess > 0 ? (excess + half - 1) / half * half : 0;
        const Token *first = tail + n - (age - begin);
        bool continues = begin == base && age >= this->age() && std::equal(history.begin(), history.end(), first);
        if (!continues) clear(begin);
        for (const Token *token = first + history.size(); token < tail + n; token++) add(*token);
    }

    // The window moves by half its length, so that what is in it follows from the age of the document.
    void add(Token token) {
        look_up();
        if (followers.reserve(shape.contexts)) is_looked_up = false;
        Token rank = model.rank[token], k = model.class_of_rank[rank];
        for (Decayed &counts : decayed) counts.add(rank, k);
        for (int c = 0; c < shape.contexts; c++)
            if (hash[c]) followers.add(hash[c], rank, shape.context[c].keep, (uint32_t)history.size());
        history.push_back(token);
        is_prepared = is_looked_up = false;
        if ((int64_t)history.size() <= shape.window) return;
        std::vector<Token> rest(history.begin() + half_window(), history.end());
        clear(base + half_window());
        for (Token kept : rest) add(kept);
    }

    // Adds the rows of decayed unigrams.
    void add_rows(const Outputs &outputs, Evidence &out) {
        prepare();
        const float *f = outputs.prior(model);
        int of_age = 0;
        while (of_age < shape.ages && age() >= shape.age_limits[of_age]) of_age++;
        for (int h = 0; h < shape.decays; h++) {
            decayed[h].ratios(outputs, f, shape.strength, out.dense.data() + out.rows * out.stride);
            out.exponent[out.rows++] = first_exponent + MEMORY_EVIDENCE * h + of_age;
        }
    }

    // Then adds what contexts say, given shares without the memory.
    void add_contexts(const Outputs &outputs, const float *plain, Evidence &out) {
        look_up();
        for (int c = 0; c < shape.contexts; c++) {
            out.first[out.contexts] = (int)out.place.size();
            int number = MEMORY_EVIDENCE * (shape.decays + c) + of_context(c, outputs, plain, out);
            out.exponent[out.rows + out.contexts++] = first_exponent + number;
        }
        out.first[out.contexts] = (int)out.place.size();
    }

  private:
    struct Decayed {
        std::vector<double> tokens, classes;  // in units of scale
        double decay = 1, total = 0, scale = 1;

        void add(Token rank, Token k) {
            scale /= decay;
            total = total * decay + 1;
            tokens[rank] += scale;
            classes[k] += scale;
            if (scale < 1e12) return;
            for (double &x : tokens) x /= scale;
            for (double &x : classes) x /= scale;
            scale = 1;
        }

        void ratios(const Outputs &outputs, const float *f, double strength, float *row) const {
            const double *count = outputs.level ? tokens.data() + outputs.lo : classes.data();
            float weight = (float)(1 / scale / (total + strength)), share = (float)(strength / (total + strength));
            log_ratios(row, count, f, weight, share, outputs.n());
        }
    };

    const Model &model;
    const MemoryShape &shape;
    int first_exponent;
    std::vector<Decayed> decayed;
    FollowerTable followers;
    std::vector<Token> history;  // the tokens that are remembered
    int64_t base = 0;               // number of tokens before them
    bool is_prepared = false, is_looked_up = false;
    uint64_t hash[MAX_MEMORY_PARTS] = {0};  // of the contexts at the end of the history; 0 where it is too short
    uint32_t found[MAX_MEMORY_PARTS] = {0};
    int match_length = 0;    // how many of the last tokens occurred before; 0 if too few
    uint32_t match_end = 0;  // the place of what followed them then

    int64_t half_window() const { return std::max(1, shape.window / 2); }

    // Hashes the contexts at the end of the history; the table is asked for their slots.
    void prepare() {
        if (is_prepared) return;
        is_prepared = true;
        for (int c = 0; c < shape.contexts; c++)
            if ((hash[c] = hash_of(c))) followers.will_find(hash[c]);
    }

    void look_up() {
        prepare();
        if (is_looked_up) return;
        is_looked_up = true;
        for (int c = 0; c < shape.contexts; c++) found[c] = hash[c] ? followers.find(hash[c]) : FollowerTable::NOWHERE;
        for (int c = 1; c < shape.contexts; c++)
            if (shape.context[c].longest) find_match(found[c - 1], shape.context[c]);
    }

    // Where the latest occurrence of the same context ended, and how many tokens before it agree.
    void find_match(uint32_t at, const MemoryContext &context) {
        match_length = 0;
        if (at == FollowerTable::NOWHERE) return;
        match_end = followers.last(at);
        match_length = context.length;
        const Token *then = history.data() + match_end, *now = history.data() + history.size();
        int64_t longest = std::min<int64_t>(context.longest, match_end);
        while (match_length < longest && then[-match_length - 1] == now[-match_length - 1]) match_length++;
    }

    uint64_t hash_of(int number) const {
        const MemoryContext &context = shape.context[number];
        if (context.longest || context.distances[context.length - 1] > (int64_t)history.size()) return 0;
        uint64_t hash = (uint64_t)(number + 1) << 32;
        for (int i = 0; i < context.length; i++) {
            Token token = history[history.size() - context.distances[i]];
            if (context.classes && i >= context.exact) token = context.classes[token];
            hash = (hash ^ (token + 1u)) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 29;
        }
        return hash ? hash : 1;
    }

    // Appends the features of a context; returns its exponent: by whether one or several outputs followed it, and how often.
    int of_context(int number, const Outputs &outputs, const float *plain, Evidence &out) const {
        const MemoryContext &context = shape.context[number];
        const float *base = context.chained ? out.shares.data() : plain;
        bool is_built_on = number + 1 < shape.contexts && shape.context[number + 1].chained;
        if (is_built_on && !context.chained) std::copy_n(plain, out.n, out.shares.begin());
        int begin = (int)out.place.size();
        float total = 0;
        auto visit = [&](Token rank, float count) {
            int i = outputs.place(model, rank);
            if (i < 0 || i >= out.n) return;
            if (out.counts[i] == 0) out.place.push_back(i);
            out.counts[i] += count;
            total += count;
        };
        if (context.longest && match_length) visit(model.rank[history[match_end]], (float)match_length);
        if (found[number] != FollowerTable::NOWHERE) followers.each(found[number], visit);
        int outputs_seen = (int)out.place.size() - begin;
        if (!outputs_seen) return 0;
        for (int j = begin; j < begin + outputs_seen; j++) {
            int i = out.place[j];
            float gain = out.counts[i] / context.strength;
            out.value.push_back(1 + gain / base[i]);  // its logarithm is taken later
            if (is_built_on) out.shares[i] += gain;
            out.counts[i] = 0;
        }
        if (is_built_on)
            scaled(out.shares.data(), out.shares.data(), context.strength / (total + context.strength), out.n);
        if (context.longest) {
            int bucket = 0;
            while (bucket < MEMORY_EVIDENCE - 1 && match_length >= shape.match_limits[bucket]) bucket++;
            return bucket;
        }
        const float *limits = shape.count_limits;
        if (outputs_seen == 1) return total < limits[0] ? 0 : total < limits[1] ? 1 : 2;
        return total < limits[2] ? 3 : 4;
    }
};

}  // namespace
