// Reductions of one row of logits (worker_reduce.c): the only part of the worker that computes much.
#ifndef COOK_WORKER_REDUCE_H
#define COOK_WORKER_REDUCE_H

#include <stdint.h>

enum { TOP_MAX = 256 };

// What is known of one position. Log-probabilities are natural logarithms.
typedef struct {
    int32_t argmax;      // lowest id among equals
    float   max;         // its logit
    float   second;      // second largest logit
    float   confidence;  // softmax of the best token over the ten largest logits, temperature 1
    double  lse;         // log-sum-exp at temperature 1
    double  lse_t;       // the same of logits/temperature (only if a temperature is given)
    float   entropy;     // nats, temperature 1
    int32_t rank;        // how many logits exceed the emitted token's; -1 if there is none
    int32_t bad;         // 1 if some logit is NaN or +inf
} row_result;

typedef struct {
    const float * row;
    int32_t n;
    int32_t token;        // emitted token, or -1
    float   inv_temp;     // 1/temperature, or 0 when not asked
    int32_t top;          // how many of the largest logits to return (0..TOP_MAX)
    int32_t * top_ids;    // [top], by falling logit
    float   * top_logits; // [top]
    int32_t n_ref;        // the trace's top-K to compare with (0: none)
    const int32_t * ref_ids;
    const float * ref_logp;
    float   * ref_out;    // [4]: see compare_top() in worker_reduce.c
} row_job;

void reduce_row(const row_job * job, row_result * out);

// exp(x) for x <= 0, as the reductions compute it; below -87 it gives about 1e-38.
float exp_neg(float x);

#endif
