// Calibration: the moments of the features of held-out targets, for Newton's method.
#include "lookup.h"

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

// Moments of both levels at the given targets, in order, without or with the cache: (2, 2 + J + J²), J the number of
// exponents.
EXPORT void saffu_moments(const Model *model, const uint16_t *ids, const int64_t *starts, int64_t documents,
                          const int64_t *targets, int64_t n_targets, int32_t with_cache, int32_t J, double *out) KERNEL {
    int widest = model->classes, parts = 1 + model->views + (with_cache ? CACHES : 0);
    for (int k = 0; k < model->classes; k++)
        widest = std::max(widest, model->class_first[k + 1] - model->class_first[k]);
    std::vector<float> features((int64_t)parts * widest), p(widest);
    std::vector<int> index(parts, 0);
    Cache cache(*model);
    Looked looked;
    for (int64_t t = 0; t < n_targets; t++) {
        int64_t at = targets[t], start = *(std::upper_bound(starts, starts + documents + 1, at) - 1);
        if (with_cache) cache.stand_at(ids, start, at);
        looked.look_up(*model, Context{ids + at, at - start}, with_cache ? &cache : nullptr);
        for (int j = 1; j < parts; j++) index[j] = looked.exponent[j - 1];
        int rank = model->rank[ids[at]], k = model->class_of_rank[rank];
        for (const Outputs &outputs : {Outputs::classes(*model), Outputs::tokens(*model, k)}) {
            int n = outputs.n();
            if (n < 2) continue;
            const float *log_prior = outputs.log_prior(*model);
            std::copy(log_prior, log_prior + n, features.begin());
            for (int v = 0; v < model->views; v++) {
                float *row = features.data() + (v + 1) * widest;
                outputs.shares(*model, looked, v, row);
                logarithms(row, n);
                if (model->is_slot[v])
                    for (int i = 0; i < n; i++) row[i] -= log_prior[i];
            }
            if (with_cache) outputs.cached(looked, widest, features.data() + (1 + model->views) * widest);
            const float *exponents = (with_cache ? model->cached : model->plain)[outputs.level];
            add_moments(features.data(), widest, n, parts, exponents, index.data(), J,
                        outputs.level ? rank - outputs.lo : k, p.data(), out + outputs.level * (2 + J + (int64_t)J * J));
        }
    }
} OR_FAIL()
}
