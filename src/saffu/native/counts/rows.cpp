// Rows: distinct n-grams with their counts, sorted, additive.
//
// A row is a context, nearest token first, and the token that followed it: c1 c2 … t. Rows lie in buckets by c1; within
// its bucket a row is a key, the digits c2 … t in base 2^16, so that sorting keys sorts rows. All functions work on a
// range of buckets, so that several threads can share the work and memory stays bounded.
#include "../kernels.h"
#include "wide.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

template <class Key> struct Entry {  // the key as bytes, so that no padding follows it
    unsigned char key[sizeof(Key)];
    uint32_t count;

    Entry() = default;
    Entry(Key key, uint32_t count) : count(count) { std::memcpy(this->key, &key, sizeof(Key)); }
};

// What is sorted: keys that stand for one occurrence each, or entries with counts.
template <class Key> Key key_of(Key item) { return item; }
template <class Key> Key key_of(const Entry<Key> &entry) {
    Key key;
    std::memcpy(&key, entry.key, sizeof(Key));
    return key;
}
template <class Key> uint32_t count_of(Key) { return 1; }
template <class Key> uint32_t count_of(const Entry<Key> &entry) { return entry.count; }

// Least-significant-digit radix sort by `bytes` bytes of the key; comparison sort for short inputs.
template <class Item> void sort_items(Item *items, int64_t n, int bytes, std::vector<Item> &scratch) {
    if (n < 512) {
        std::sort(items, items + n, [](const Item &a, const Item &b) { return key_of(a) < key_of(b); });
        return;
    }
    if ((int64_t)scratch.size() < n) scratch = std::vector<Item>(n);
    Item *from = items, *to = scratch.data();
    for (int byte = 0; byte < bytes; byte++) {
        int64_t place[257] = {0};
        auto digit_of = [byte](const Item &item) { return (uint64_t)(key_of(item) >> (8 * byte)) & 255; };
        for (int64_t i = 0; i < n; i++) place[digit_of(from[i]) + 1]++;
        if (std::find(place + 1, place + 257, n) != place + 257) continue;  // all the same
        for (int digit = 0; digit < 256; digit++) place[digit + 1] += place[digit];
        for (int64_t i = 0; i < n; i++) to[place[digit_of(from[i])]++] = from[i];
        std::swap(from, to);
    }
    if (from != items) std::copy(from, from + n, items);
}

template <class Key, class Item> struct Buckets {
    int64_t lo, hi;                   // c1 range
    std::vector<int64_t> begin;       // of each bucket, followed by the end
    std::vector<Item> items;

    Buckets(int64_t lo, int64_t hi) : lo(lo), hi(hi), begin(hi - lo + 1, 0) {}

    void reserve() {  // from sizes in begin[bucket + 1] to places
        for (size_t b = 1; b < begin.size(); b++) begin[b] += begin[b - 1];
        items.resize(begin.back());
    }

    // Sort every bucket, add the counts of equal rows, and hand the result over to the caller.
    void finish(int columns, int64_t *offsets, Buffer *keys, Buffer *counts) {
        std::vector<Item> scratch;
        int64_t distinct = 0, total = 0;
        for (int64_t b = 0; b < hi - lo; b++) {
            sort_items(items.data() + begin[b], begin[b + 1] - begin[b], 2 * std::max(1, columns - 1), scratch);
            offsets[b] = distinct;
            for (int64_t i = begin[b]; i < begin[b + 1]; i++) {
                bool is_new = i == begin[b] || key_of(items[i]) != key_of(items[i - 1]);
                distinct += is_new;
                total = (is_new ? 0 : total) + count_of(items[i]);
                require_count(total);
            }
        }
        offsets[hi - lo] = distinct;
        scratch = std::vector<Item>();
        allocate(distinct * sizeof(Key), keys);
        allocate(distinct * sizeof(uint32_t), counts);
        Key *out = (Key *)keys->data;
        uint32_t *sums = (uint32_t *)counts->data;
        for (int64_t b = 0, at = -1; b < hi - lo; b++)
            for (int64_t i = begin[b]; i < begin[b + 1]; i++) {
                if (i == begin[b] || key_of(items[i]) != key_of(items[i - 1])) {
                    out[++at] = key_of(items[i]);
                    sums[at] = 0;
                }
                sums[at] += count_of(items[i]);
            }
    }
};

// Calls visit(c1, key) for every target in the ranges whose nearest context token lies in [lo, hi).
template <class Key, class Visit>
void each_row(const Token *ids, const int64_t *starts, int64_t documents, const int64_t *ranges, int64_t n_ranges,
              const int32_t *distances, int columns, int64_t lo, int64_t hi, Visit visit) {
    for (int64_t r = 0; r < n_ranges; r++) {
        int64_t first = ranges[2 * r], last = ranges[2 * r + 1];
        int64_t document = std::upper_bound(starts, starts + documents + 1, first) - starts - 1;
        for (int64_t p = first; p < last; p++) {
            while (document + 1 <= documents && p >= starts[document + 1]) document++;
            int64_t age = p - starts[document];
            auto token = [&](int64_t d) -> int64_t {
                return d <= age ? ids[p - d] : d == age + 1 ? EOD : PAD;
            };
            int64_t c1 = columns > 1 ? token(distances[0]) : 0;
            if (c1 < lo || c1 >= hi) continue;
            Key key = 0;
            for (int column = 1; column < columns - 1; column++) key = (key << 16) | (Key)token(distances[column]);
            visit(c1, (Key)((key << 16) | ids[p]));
        }
    }
}

template <class Key>
void count_rows(const Token *ids, const int64_t *starts, int64_t documents, const int64_t *ranges, int64_t n_ranges,
                const int32_t *distances, int columns, int64_t lo, int64_t hi, int64_t *offsets, Buffer *keys,
                Buffer *counts) {
    Buckets<Key, Key> buckets(lo, hi);
    each_row<Key>(ids, starts, documents, ranges, n_ranges, distances, columns, lo, hi,
                  [&](int64_t c1, Key) { buckets.begin[c1 - lo + 1]++; });
    buckets.reserve();
    std::vector<int64_t> place(buckets.begin.begin(), buckets.begin.end() - 1);
    each_row<Key>(ids, starts, documents, ranges, n_ranges, distances, columns, lo, hi,
                  [&](int64_t c1, Key key) { buckets.items[place[c1 - lo]++] = key; });
    buckets.finish(columns, offsets, keys, counts);
}

template <class From, class Key>
void regroup_rows(const int64_t *offsets, const From *keys, const uint32_t *counts, int64_t first_bucket,
                  int64_t n_buckets, int columns, const int32_t *chosen, int out_columns, const Token *classes,
                  int exact, int64_t lo, int64_t hi, int64_t *out_offsets, Buffer *out_keys, Buffer *out_counts) {
    Buckets<Key, Entry<Key>> buckets(lo, hi);
    // Column `place` of a new row; the first `exact` columns keep their tokens, the others become classes if given.
    auto column = [&](int64_t c1, From key, int place) -> int64_t {
        int number = chosen[place];
        int64_t token = number == 1 ? c1 : (Token)(key >> (16 * (columns - number)));
        return classes && place >= exact ? classes[token] : token;
    };
    auto each = [&](auto visit) {
        for (int64_t bucket = 0; bucket < n_buckets; bucket++) {
            int64_t c1 = first_bucket + bucket;
            if (chosen[0] == 1 && (column(c1, 0, 0) < lo || column(c1, 0, 0) >= hi)) continue;
            for (int64_t i = offsets[bucket]; i < offsets[bucket + 1]; i++) {
                int64_t first = column(c1, keys[i], 0);
                if (first < lo || first >= hi) continue;
                Key key = 0;
                for (int k = 1; k < out_columns - 1; k++) key = (key << 16) | (Key)column(c1, keys[i], k);
                visit(first, (Key)((key << 16) | (Key)(Token)keys[i]), counts[i]);
            }
        }
    };
    each([&](int64_t first, Key, uint32_t) { buckets.begin[first - lo + 1]++; });
    buckets.reserve();
    std::vector<int64_t> place(buckets.begin.begin(), buckets.begin.end() - 1);
    each([&](int64_t first, Key key, uint32_t count) { buckets.items[place[first - lo]++] = {key, count}; });
    buckets.finish(out_columns, out_offsets, out_keys, out_counts);
}

template <class Key>
int64_t merge_rows(const int64_t *offsets_a, const Key *a, const uint32_t *counts_a, const int64_t *offsets_b,
                   const Key *b, const uint32_t *counts_b, int64_t n_buckets, int sign, int64_t *offsets, Key *keys,
                   uint32_t *counts) {
    int64_t written = 0;
    for (int64_t bucket = 0; bucket < n_buckets; bucket++) {
        offsets[bucket] = written;
        int64_t i = offsets_a[bucket], j = offsets_b[bucket];
        while (i < offsets_a[bucket + 1] || j < offsets_b[bucket + 1]) {
            bool has_a = i < offsets_a[bucket + 1], has_b = j < offsets_b[bucket + 1];
            bool use_a = has_a && (!has_b || a[i] <= b[j]), use_b = has_b && (!has_a || b[j] <= a[i]);
            Key key = use_a ? a[i] : b[j];
            int64_t total = use_a ? counts_a[i++] : 0;
            if (use_b) total += sign * (int64_t)counts_b[j++];
            if (total < 0) return -1;
            if (total == 0) continue;
            require_count(total);
            keys[written] = key;
            counts[written++] = (uint32_t)total;
        }
    }
    offsets[n_buckets] = written;
    return written;
}

}  // namespace

thread_local Failure failure = NONE;

void allocate(int64_t bytes, Buffer *buffer) {
    *buffer = {std::malloc(bytes ? bytes : 1), bytes};
    if (!buffer->data) fail(OUT_OF_MEMORY);
}

extern "C" {

EXPORT void saffu_free(void *data) { std::free(data); }

// Why the last kernel of this thread failed, if it did.
EXPORT int32_t saffu_failure() {
    Failure was = failure;
    failure = NONE;
    return was;
}

// Returns freed memory to the system.
EXPORT void saffu_trim() {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

// Key widths in bytes: 2 for rows of two columns, 8 for up to five, 16 for up to nine.
#define BY_WIDTH(width, call) \
    if (width == 2) { using Key = uint16_t; call; } \
    else if (width == 8) { using Key = uint64_t; call; } \
    else { using Key = Wide; call; }

EXPORT void saffu_count_rows(const Token *ids, const int64_t *starts, int64_t documents, const int64_t *ranges,
                             int64_t n_ranges, const int32_t *distances, int32_t columns, int32_t width, int64_t lo,
                             int64_t hi, int64_t *offsets, Buffer *keys, Buffer *counts) KERNEL {
    BY_WIDTH(width, count_rows<Key>(ids, starts, documents, ranges, n_ranges, distances, columns, lo, hi, offsets, keys,
                                    counts))
} OR_FAIL()

// The source rows are those of `n_buckets` buckets from `first` on.
EXPORT void saffu_regroup_rows(const int64_t *offsets, const void *keys, const uint32_t *counts, int64_t first,
                               int64_t n_buckets, int32_t columns, int32_t width, const int32_t *chosen, int32_t out_columns,
                               int32_t out_width, const Token *classes, int32_t exact, int64_t lo, int64_t hi,
                               int64_t *out_offsets, Buffer *out_keys, Buffer *out_counts) KERNEL {
    BY_WIDTH(width, {
        using From = Key;
        const From *from = (const From *)keys;
        BY_WIDTH(out_width,
                 (regroup_rows<From, Key>(offsets, from, counts, first, n_buckets, columns, chosen, out_columns, classes,
                                          exact, lo, hi, out_offsets, out_keys, out_counts)))
    })
} OR_FAIL()

// Returns the number of rows, or −1 if a count would fall below zero.
EXPORT int64_t saffu_merge_rows(const int64_t *offsets_a, const void *a, const uint32_t *counts_a, const int64_t *offsets_b,
                                const void *b, const uint32_t *counts_b, int64_t n_buckets, int32_t width, int32_t sign,
                                int64_t *offsets, void *keys, uint32_t *counts) KERNEL {
    BY_WIDTH(width, return merge_rows(offsets_a, (const Key *)a, counts_a, offsets_b, (const Key *)b, counts_b,
                                      n_buckets, sign, offsets, (Key *)keys, counts))
    return -1;
} OR_FAIL(-1)
}
