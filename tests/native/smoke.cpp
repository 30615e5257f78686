// Calls kernels without Python and prints what they return, so that machines and compilers can be compared: counts and
// tables exactly, probabilities to four digits. `make portable` runs it under emulators.
#include "counted/query.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

extern "C" {
EXPORT void saffu_free(void *data);
EXPORT int32_t saffu_failure();
EXPORT void saffu_count_rows(const uint16_t *ids, const int64_t *starts, int64_t documents, const int64_t *ranges,
                             int64_t n_ranges, const int32_t *distances, int32_t columns, int32_t width, int64_t lo,
                             int64_t hi, int64_t *offsets, Buffer *keys, Buffer *counts);
EXPORT int64_t saffu_merge_rows(const int64_t *offsets_a, const void *a, const uint32_t *counts_a,
                                const int64_t *offsets_b, const void *b, const uint32_t *counts_b, int64_t n_buckets,
                                int32_t width, int32_t sign, int64_t *offsets, void *keys, uint32_t *counts);
EXPORT void saffu_build_levels(const int64_t *offsets, const void *keys, const uint32_t *counts, int64_t buckets,
                               int32_t columns, int32_t width, const uint16_t *rank, int64_t vocabulary,
                               const uint32_t *prune, const double *discounts, int64_t *statistics, int64_t *sizes,
                               void **arrays);
EXPORT Model *saffu_model();
EXPORT void saffu_free_model(Model *model);
EXPORT void saffu_put(Model *model, const char *name, const char *type, const void *data, int64_t size);
EXPORT const char *saffu_ready(Model *model);
EXPORT void saffu_view_score(const Model *model, const uint16_t *ids, const int64_t *starts, int64_t documents,
                             int64_t lo, int64_t hi, double *out);
}

namespace {

constexpr int VOCABULARY = 300, TOKENS = 20000;
const int64_t starts[] = {0, 7000, TOKENS}, whole[] = {0, TOKENS};

std::vector<uint16_t> text() {  // a linear congruential generator; small ids are frequent
    std::vector<uint16_t> ids(TOKENS);
    uint64_t state = 1;
    for (uint16_t &id : ids) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t share = state >> 48;
        id = (uint16_t)(EOD + share * share / 65536 * (VOCABULARY - EOD) / 65536);
    }
    return ids;
}

template <class Number> uint64_t hash(const void *data, int64_t bytes) {  // FNV-1a, on any byte order
    uint64_t sum = 14695981039346656037u;
    const Number *numbers = (const Number *)data;
    for (int64_t i = 0; i < bytes / (int64_t)sizeof(Number); i++) sum = (sum ^ numbers[i]) * 1099511628211u;
    return sum;
}

struct Rows {
    int columns, width;
    std::vector<int64_t> offsets = std::vector<int64_t>(VOCABULARY + 1);
    Buffer keys, counts;

    Rows(const std::vector<uint16_t> &ids, int columns)
        : columns(columns), width(columns <= 2 ? 2 : columns <= 5 ? 8 : 16) {
        const int32_t distances[] = {1, 2, 3, 4, 5, 6, 7, 8};
        saffu_count_rows(ids.data(), starts, 2, whole, 1, distances, columns, width, 0, VOCABULARY, offsets.data(),
                         &keys, &counts);
    }
    ~Rows() {
        saffu_free(keys.data);
        saffu_free(counts.data);
    }
    int64_t number() const { return counts.bytes / 4; }
    const uint32_t *count() const { return (const uint32_t *)counts.data; }
};

void print_rows(const Rows &rows) {
    std::printf("%d columns: %" PRId64 " rows, %016" PRIx64 " %016" PRIx64 "\n", rows.columns, rows.number(),
                (rows.width == 2 ? hash<uint16_t> : hash<uint64_t>)(rows.keys.data, rows.keys.bytes),
                hash<uint32_t>(rows.counts.data, rows.counts.bytes));
    std::vector<int64_t> offsets(VOCABULARY + 1);
    std::vector<char> keys(rows.keys.bytes);
    std::vector<uint32_t> counts(rows.number());
    int64_t left = saffu_merge_rows(rows.offsets.data(), rows.keys.data, rows.count(), rows.offsets.data(),
                                    rows.keys.data, rows.count(), VOCABULARY, rows.width, -1, offsets.data(),
                                    keys.data(), counts.data());
    std::printf("minus itself: %" PRId64 " rows\n", left);
}

struct Arrays {  // of one level
    std::vector<uint16_t> token, follow;
    std::vector<uint32_t> child, begin;
    std::vector<float> backoff, mass;
};

void print_table(const Rows &rows, const std::vector<uint16_t> &ids) {
    int depth = rows.columns - 1;
    std::vector<uint16_t> rank(VOCABULARY);
    for (int i = 0; i < VOCABULARY; i++) rank[i] = (uint16_t)(i < EOD ? VOCABULARY - EOD + i : i - EOD);
    std::vector<uint32_t> prune(depth + 1, 0);
    std::vector<int64_t> statistics(5 * (depth + 1)), sizes(2 * (depth + 1)), none(2 * (depth + 1));
    saffu_build_levels(rows.offsets.data(), rows.keys.data, rows.count(), VOCABULARY, rows.columns, rows.width,
                       rank.data(), VOCABULARY, prune.data(), nullptr, statistics.data(), sizes.data(), nullptr);
    std::vector<double> discounts(4 * (depth + 1), 0.75);
    std::vector<Arrays> levels(depth);
    std::vector<void *> pointers;
    Model *model = saffu_model();
    auto put = [&](const std::string &name, const char *type, const auto &numbers) {
        saffu_put(model, name.c_str(), type, numbers.data(), (int64_t)numbers.size());
    };
    std::vector<int32_t> distances(depth), seen(2, 0);
    for (int i = 0; i < depth; i++) distances[i] = i + 1;
    std::vector<float> unigram(VOCABULARY, 1.0f / VOCABULARY);
    std::vector<uint16_t> classes(VOCABULARY, 0);
    std::vector<int64_t> frequencies(VOCABULARY, 0);
    std::vector<double> exponents(2 * (1 + EVIDENCE * depth), 0);
    put("table 0.distances", "i4", distances);
    put("table 0.unigram", "f4", unigram);
    put("view 0", "i4", seen);
    put("output_classes", "u2", classes);
    put("frequencies", "i8", frequencies);
    put("plain", "f8", exponents);
    for (int level = 1; level <= depth; level++) {
        int64_t contexts = sizes[2 * level], followers = sizes[2 * level + 1];
        std::printf("level %d: %" PRId64 " contexts, %" PRId64 " followers, %" PRId64 " seen once\n", level, contexts,
                    followers, statistics[5 * level]);
        Arrays &a = levels[level - 1];
        a.token.resize(contexts);
        a.child.resize(contexts + 1);
        a.begin.resize(contexts + 1);
        a.backoff.resize(contexts);
        a.follow.resize(followers);
        a.mass.resize(followers);
        for (void *p : {(void *)a.token.data(), (void *)a.child.data(), (void *)a.begin.data(),
                        (void *)a.backoff.data(), (void *)a.follow.data(), (void *)a.mass.data()})
            pointers.push_back(p);
        if (level == 1) pointers[0] = nullptr;
        if (level == depth) pointers[6 * (level - 1) + 1] = nullptr;
        a.begin[contexts] = (uint32_t)followers;
        if (level < depth) a.child[contexts] = (uint32_t)sizes[2 * level + 2];
        std::string name = "table 0." + std::to_string(level) + ".";
        put(name + "token", "u2", a.token);
        put(name + "child", "u4", a.child);
        put(name + "begin", "u4", a.begin);
        put(name + "backoff", "f4", a.backoff);
        put(name + "follow", "u2", a.follow);
        put(name + "mass", "f4", a.mass);
    }
    saffu_build_levels(rows.offsets.data(), rows.keys.data, rows.count(), VOCABULARY, rows.columns, rows.width,
                       rank.data(), VOCABULARY, prune.data(), discounts.data(), statistics.data(), none.data(),
                       pointers.data());
    std::vector<double> log_p(TOKENS);
    const char *problem = saffu_ready(model);
    std::printf("%s\n", problem ? problem : "sound");
    saffu_view_score(model, ids.data(), starts, 2, 0, TOKENS, log_p.data());
    saffu_free_model(model);
    double total = 0;
    for (double one : log_p) total += one;
    std::printf("mean ln p: %.4f\n", total / TOKENS);
}

}  // namespace

int main() {
    std::vector<uint16_t> ids = text();
    for (int columns : {2, 4, 6, 9}) {
        Rows rows(ids, columns);
        print_rows(rows);
        print_table(rows, ids);
    }
    std::printf("failure: %d\n", (int)saffu_failure());
}
