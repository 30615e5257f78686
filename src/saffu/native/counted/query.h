// A counted model in memory: tables, classes, and exponents, as model.cpp makes it of named arrays.
#pragma once
#include "../named.h"

constexpr int MAX_LEVELS = 9, MAX_VIEWS = 32;
constexpr int EVIDENCE = 4;  // a context's exponent depends on how many followers it has: up to 1, 8, 64, more
constexpr int MEMORY_EVIDENCE = 5, MAX_MEMORY_PARTS = 32;  // as in calibrated/views.py

struct Level {
    const Token *token;                 // of each context: its oldest token (null at level 1)
    const uint32_t *child, *begin;      // where its longer contexts and its followers begin
    const float *backoff;
    const Token *follow;                // followers, by rank
    const float *mass;
    const uint32_t *heavy;              // contexts with more than `many` followers, ascending
    const float *rows;                  // (heavies, classes) sums by class of their shares
    const Token *before;                // (heavies, classes + 1) how many of their followers are in classes before
    uint32_t contexts, many, heavies;
};

struct View {
    int32_t levels;
    int32_t exact;                      // number of nearest tokens that it sees exactly, not by class
    bool is_slot;                       // one token alone, whose shares are divided by the prior
    const int32_t *distances;           // of its context tokens, nearest first
    const Token *classes;               // of context tokens; null if it sees the tokens themselves
    const float *unigram;               // by rank
    const float *class_unigram;
    Level level[MAX_LEVELS];            // from 1 on
};

// One kind of context that the memory of a document counts, and what follows each of them.
struct MemoryContext {
    int32_t length;
    int32_t exact;                      // number of nearest tokens that it sees exactly, not by class
    int32_t chained;                    // whether its shares build on those of the context before it in the list
    float strength;                     // how many tokens the shares that it builds on are worth
    float keep;                         // what remains of its counts when it occurs again
    int32_t longest;                    // if not 0: only its latest occurrence counts, by how many tokens agree, at most this
    const int32_t *distances;           // of its tokens, nearest first
    const Token *classes;               // of its tokens; null if it sees the tokens themselves
};

// How the memory is made; calibrated/views.py explains it.
struct MemoryShape {
    int32_t window;                     // tokens that it holds at most; 0 for no memory
    int32_t decays, contexts, ages;
    float strength;                     // how many tokens the prior is worth in decayed unigrams
    float rate;                         // of learning
    float smallest_share;               // that a prediction without the memory counts for
    const float *half_lives;            // (decays)
    const int64_t *age_limits;          // (ages)
    const float *count_limits;          // (3) two for contexts with one follower, one for others
    const int32_t *match_limits;        // (MEMORY_EVIDENCE − 1) tokens that agree
    MemoryContext context[MAX_MEMORY_PARTS];
    int parts() const { return decays + contexts; }
    int exponents() const { return MEMORY_EVIDENCE * parts(); }
};

// Tokens are ranked class by class: class k holds the ranks from class_first[k] to class_first[k + 1].
struct Model : Named {
    int32_t vocabulary, classes, views;
    const Token *rank, *token_of_rank, *class_of_rank;
    const int32_t *class_first;
    const float *prior, *class_prior, *log_prior, *log_class_prior;
    const float *plain[2];              // exponents of classes and of tokens: of the prior, then of every view (levels, EVIDENCE)
    const float *remembered[2];         // the same of ln p_plain, then of every part of the memory (MEMORY_EVIDENCE)
    View view[MAX_VIEWS];
    MemoryShape memory, archive;        // of a document; of all documents, when they are read online
    int lookback() const {              // how many tokens before a target the views see
        int farthest = 0;
        for (int v = 0; v < views; v++)
            for (int l = 0; l < view[v].levels; l++)
                if (view[v].distances[l] > farthest) farthest = view[v].distances[l];
        return farthest;
    }
};
