// Calibration: the moments of the features of held-out targets, for Newton's method.
#include "memory.h"

#include <vector>

namespace {

// Adds log-likelihood, targets, gradient (J), and covariance (J, J) of one decision among n outputs to `sums`. Feature j of
// φ (parts, n) has exponent index[j].
void add_moments(const float *features, int stride, int n, int parts, const float *exponents, const int *index, int J,
                 int target, float *p, double *sums) {
    double *gradient = sums + 2, *covariance = gradient + J;
    std::fill(p, p + n, 0.0f);
    for (int j = 0; j < parts; j++) add_scaled(p, features + j * stride, exponents[index[j]], n);
    float of_target = p[target];
    sums[0] += of_target - normalize(p, n);
    sums[1] += 1;
    std::vector<float> weighted(n);
    std::vector<double> expected(parts);
    for (int j = 0; j < parts; j++) {
        const float *row = features + j * stride;
        expected[j] = dot(row, p, n);
        gradient[index[j]] += row[target] - expected[j];
    }
    for (int j = 0; j < parts; j++) {
        const float *row = features + j * stride;
        for (int i = 0; i < n; i++) weighted[i] = p[i] * (row[i] - (float)expected[j]);
        for (int other = 0; other <= j; other++) {
            double both = dot(weighted.data(), features + other * stride, n);
            covariance[index[j] * J + index[other]] += both;
            if (other < j) covariance[index[other] * J + index[j]] += both;
        }
    }
}

}  // namespace

extern "C" {

// Moments of both levels at the given targets, in order: (2, 2 + J + J²), J the number of exponents. Those of the views or,
// given where the memory begins anew (memories + 1), those of the memory on top of the views.
EXPORT void saffu_moments(const Model *model, const Token *ids, const int64_t *starts, int64_t documents,
                          const int64_t *targets, int64_t n_targets, const int64_t *memory_starts, int64_t memories,
                          int32_t J, double *out) KERNEL {
    const MemoryShape &shape = model->memory;
    int widest = model->classes, parts = 1 + (memory_starts ? shape.parts() : model->views);
    for (int k = 0; k < model->classes; k++) widest = std::max(widest, Outputs::tokens(*model, k).n());
    std::vector<float> features((int64_t)parts * widest), p(widest);
    std::vector<int> index(parts, 0);
    ViewProduct views(*model);
    Memory memory(*model, shape, 1);
    Evidence evidence;
    evidence.resize(widest, 1 + shape.decays);
    int64_t memory_start = -1;

    auto view_features = [&](const Outputs &outputs) {
        int n = outputs.n();
        const float *log_prior = outputs.log_prior(*model);
        std::copy(log_prior, log_prior + n, features.begin());
        for (int v = 0; v < model->views; v++) {
            float *row = features.data() + (v + 1) * widest;
            index[v + 1] = views.looked->exponent[v];
            outputs.shares(*model, *views.looked, v, row);
            logarithms(row, n);
            if (model->view[v].is_slot)
                for (int i = 0; i < n; i++) row[i] -= log_prior[i];
        }
    };
    auto memory_features = [&](const Outputs &outputs) {
        views.shares(outputs, p.data());
        evidence.begin(p.data(), outputs.n());
        memory.add_rows(outputs, evidence);
        memory.add_contexts(outputs, p.data(), evidence);
        evidence.finish();
        for (int part = 0; part < parts; part++) {
            index[part] = evidence.exponent[part];
            evidence.row(part, features.data() + part * widest);
        }
    };

    for (int64_t t = 0; t < n_targets; t++) {
        int64_t at = targets[t], start = *(std::upper_bound(starts, starts + documents + 1, at) - 1);
        views.seek(Context{ids + at, at - start});
        if (memory_starts) {
            int64_t begin = *(std::upper_bound(memory_starts, memory_starts + memories + 1, at) - 1);
            if (begin != memory_start) memory.clear();
            memory_start = begin;
            while (begin + memory.age() < at) memory.add(ids[begin + memory.age()]);
        }
        int rank = model->rank[ids[at]], k = model->class_of_rank[rank];
        for (const Outputs &outputs : {Outputs::classes(*model), Outputs::tokens(*model, k)}) {
            int n = outputs.n();
            if (n < 2) continue;
            if (memory_starts) memory_features(outputs);
            else view_features(outputs);
            const float *exponents = (memory_starts ? model->remembered : model->plain)[outputs.level];
            add_moments(features.data(), widest, n, parts, exponents, index.data(), J,
                        outputs.level ? rank - outputs.lo : k, p.data(), out + outputs.level * (2 + J + (int64_t)J * J));
        }
    }
} OR_FAIL()
}
