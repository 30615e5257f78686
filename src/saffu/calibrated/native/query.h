// A calibrated model in memory: tables, classes, and exponents, as Python lays them out (calibrated/layout.py).
#pragma once
#include "kernels.h"

constexpr int MAX_LEVELS = 9, MAX_VIEWS = 32;
constexpr int EVIDENCE = 4;  // a context's exponent depends on how many followers it has: up to 1, 8, 64, more

struct Level {
    const uint16_t *token;              // of each context: its oldest token (null at level 1)
    const uint32_t *child, *begin;      // where its longer contexts and its followers begin
    const float *backoff;
    const uint16_t *follow;             // followers, by rank
    const float *mass;
    const int32_t *heavy;               // its row of class sums, if it has many followers, else −1 (or null: none has)
    const float *rows;                  // (heavy contexts, classes)
};

struct View {
    int32_t levels;                     // 0 for unigrams
    int32_t exact;                      // number of nearest tokens that it sees exactly, not by class
    const int32_t *distances;           // of its context tokens, nearest first
    const uint16_t *classes;            // of context tokens; null if it sees the tokens themselves
    const float *unigram;               // by rank
    const float *class_unigram;
    Level level[MAX_LEVELS];            // from 1 on
};

// Tokens are ranked class by class: class k holds the ranks from class_first[k] to class_first[k + 1].
struct Model {
    int32_t vocabulary, classes, views;
    int32_t window;                     // tokens in the recency cache; 0 for no cache
    const uint16_t *rank, *token_of_rank, *class_of_rank;
    const int32_t *class_first;
    const float *prior, *class_prior, *log_prior, *log_class_prior;
    const int32_t *is_slot;             // of each view
    // Exponents of classes and of tokens: of the prior, then of every view (levels, EVIDENCE), then, only with the
    // cache, of every cache (EVIDENCE).
    const float *plain[2], *cached[2];
    const float *trust;                 // (EVIDENCE) log-odds of the cached model in documents of some age
    const View *view;
};
