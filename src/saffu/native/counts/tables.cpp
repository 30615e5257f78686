// Tables: Kneser–Ney models of rows, as tries of contexts that are searched and read in place.
//
// Level L holds the contexts of L tokens. The contexts that extend context i of level L by one older token are those
// from child[i] to child[i + 1] of level L + 1, sorted by that token. Its followers are follow[begin[i]] … , sorted,
// with their discounted shares, mass; the discounts add up to backoff[i], the weight of the shorter context.
// Level 1 has a context for every token, level 0 is the unigram distribution.
#include "../kernels.h"
#include "wide.h"

#include <algorithm>
#include <vector>

namespace {

struct Output {  // one level of a table, as far as this range of buckets reaches
    Token *token;
    uint32_t *child, *begin;
    float *backoff;
    Token *follow;
    float *mass;
    int64_t first_context, first_follower;  // numbers of each in the ranges before this one
    int64_t contexts, followers;            // written so far
};

template <class Key> struct Builder {
    const Key *keys;
    const uint32_t *counts;
    int columns, depth;  // depth: the longest context
    const Token *rank;
    int64_t vocabulary;
    const uint32_t *prune;     // by level: followers counted this often or less are dropped
    const double *discounts;   // (depth + 1, 4), or null to gather statistics only
    int64_t *statistics;       // (depth + 1, 5): how many n-grams of each level are counted 1, 2, 3, 4 times; more
    std::vector<Output> levels;
    std::vector<std::vector<uint32_t>> sums;      // by level: adjusted count of each follower
    std::vector<std::vector<Token>> touched;      // and which are not zero

    void add(int level, Token follower, uint32_t count) {
        uint32_t &sum = sums[level][follower];
        if (!sum) touched[level].push_back(follower);
        require_count((int64_t)sum + count);
        sum += count;
    }

    // All rows from i to j share the first `level` tokens of their context. Leaves its followers in sums[level].
    void build(int level, int64_t i, int64_t j, Token token) {
        Output &here = levels[level];
        int64_t children = level < depth ? levels[level + 1].contexts : 0;
        if (level == depth) {
            for (; i < j; i++) add(level, rank[(Token)keys[i]], counts[i]);
        } else {
            int shift = 16 * (columns - level - 1);
            while (i < j) {
                Key older = keys[i] >> shift;
                int64_t end = i + 1;
                while (end < j && (keys[end] >> shift) == older) end++;
                if ((Token)older == PAD) {  // the document begins here: no older token, raw counts
                    for (; i < end; i++) add(level, rank[(Token)keys[i]], counts[i]);
                } else {
                    build(level + 1, i, end, (Token)older);
                    for (Token follower : touched[level + 1]) add(level, follower, 1);
                    clear(level + 1);
                    i = end;
                }
            }
        }
        emit(level, here, children, token);
    }

    void clear(int level) {
        for (Token follower : touched[level]) sums[level][follower] = 0;
        touched[level].clear();
    }

    void emit(int level, Output &here, int64_t children, Token token) {
        std::vector<Token> &followers = touched[level];
        std::vector<uint32_t> &sum = sums[level];
        int64_t kept = 0, total = 0;
        for (Token follower : followers) {
            total += sum[follower];
            kept += sum[follower] > prune[level];
        }
        bool has_children = level < depth && levels[level + 1].contexts > children;
        bool exists = level == 1 || kept || has_children;
        if (!discounts) {
            for (Token follower : followers) statistics[5 * level + std::min(sum[follower], 5u) - 1]++;
        } else if (exists) {
            std::sort(followers.begin(), followers.end());
            const double *discount = discounts + 4 * level;
            int64_t at = here.followers;
            double left = 1;
            for (Token follower : followers) {
                if (sum[follower] <= prune[level]) continue;
                double mass = (sum[follower] - discount[std::min(sum[follower], 3u)]) / total;
                left -= mass;
                here.follow[at] = follower;
                here.mass[at++] = (float)mass;
            }
            int64_t i = here.contexts;
            if (here.token) here.token[i] = token;
            if (here.child) here.child[i] = (uint32_t)(levels[level + 1].first_context + children);
            here.begin[i] = (uint32_t)(here.first_follower + here.followers);
            here.backoff[i] = total ? (float)std::max(left, 1e-12) : 1;
        }
        if (exists) {
            here.contexts++;
            here.followers += kept;
        }
    }

    void run(const int64_t *offsets, int64_t buckets) {
        for (int64_t bucket = 0; bucket < buckets; bucket++) {
            build(1, offsets[bucket], offsets[bucket + 1], 0);  // contexts of one token are not stored by token
            clear(1);
        }
    }
};

template <class Key>
void build_table(const int64_t *offsets, const Key *keys, const uint32_t *counts, int64_t buckets, int columns,
                 const Token *rank, int64_t vocabulary, const uint32_t *prune, const double *discounts,
                 int64_t *statistics, int64_t *sizes, void **arrays) {
    int depth = columns - 1;
    Builder<Key> builder{keys, counts, columns, depth, rank, vocabulary, prune, discounts, statistics, {}, {}, {}};
    for (int level = 0; level <= depth; level++) {
        Output output{};
        if (discounts && level) {  // six pointers for each level from 1 on
            void **a = arrays + 6 * (level - 1);
            output = {(Token *)a[0], (uint32_t *)a[1], (uint32_t *)a[2], (float *)a[3], (Token *)a[4],
                      (float *)a[5], sizes[2 * level], sizes[2 * level + 1], 0, 0};
        }
        builder.levels.push_back(output);
        builder.sums.emplace_back(level ? vocabulary : 0, 0);
        builder.touched.emplace_back();
    }
    builder.run(offsets, buckets);
    if (!discounts)
        for (int level = 1; level <= depth; level++) {
            sizes[2 * level] = builder.levels[level].contexts;
            sizes[2 * level + 1] = builder.levels[level].followers;
        }
}

}  // namespace

extern "C" {

// Rows of some consecutive buckets. Without discounts: counts of counts into `statistics` and (contexts, followers) of each
// level into `sizes`. With discounts: writes the levels into `arrays`, which hold this range alone; `sizes` are those of
// all ranges before it, so that offsets are those of the whole table.
EXPORT void saffu_build_levels(const int64_t *offsets, const void *keys, const uint32_t *counts, int64_t buckets,
                               int32_t columns, int32_t width, const Token *rank, int64_t vocabulary,
                               const uint32_t *prune, const double *discounts, int64_t *statistics, int64_t *sizes, void **arrays) KERNEL {
    auto build = [&](auto *keys) {
        build_table(offsets, keys, counts, buckets, columns, rank, vocabulary, prune, discounts, statistics, sizes, arrays);
    };
    if (width == 2) build((const uint16_t *)keys);
    else if (width == 8) build((const uint64_t *)keys);
    else build((const Wide *)keys);
} OR_FAIL()
}
