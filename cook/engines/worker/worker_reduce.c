// Reductions of one row of logits, in one streaming pass over the vocabulary.
//
// A row is walked in blocks that fit the first-level cache: each block is read from memory once
// and reduced several ways from cache (maximum, rank of one token, exponential sums, top-K).
// The loops are plain so that the compiler vectorises them; compile.py passes the flags that
// allow it (-fassociative-math and friends) to this file alone, and -march=native where there is one.
#include "worker_reduce.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 1024, GROUP = 32, CONFIDENCE_TOP = 10, REF_CHUNK = 256 };

// What is inside is computed first: sums outside of it may be reassociated.
#if defined(__has_builtin)
#if __has_builtin(__builtin_assoc_barrier)
#define FIRST(x) __builtin_assoc_barrier(x)
#elif __has_builtin(__arithmetic_fence)
#define FIRST(x) __arithmetic_fence(x)
#endif
#endif
#ifndef FIRST
#define FIRST(x) (x)
#endif

// exp(x) for -87 <= x <= 0. Cephes' polynomial after reduction by ln 2 in two parts; relative
// error below 2e-7 (tests/engines/test_worker.py checks it).
static inline float exp_near(float x) {
    const float k = x * 1.44269504088896341f;
    const int32_t i = (int32_t) (k - 0.5f);  // k <= 0: truncation rounds to nearest
    const float n = (float) i;
    float r = FIRST(x - n * 0.693359375f);  // exact; ln 2 in one part would cost five bits
    r -= n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t i; float f; } scale = { (i + 127) << 23 };
    return p * scale.f;
}

static inline float floor87(float x) { return x < -87.0f ? -87.0f : x; }

float exp_neg(float x) { return exp_near(floor87(x)); }

// The largest `cap` (logit, id) pairs seen so far, as a binary heap with the smallest on top.
typedef struct { float v[TOP_MAX]; int32_t id[TOP_MAX]; int32_t n, cap; float least; } top_heap;

static inline int top_less(const top_heap * h, int a, int b) {
    return h->v[a] < h->v[b] || (h->v[a] == h->v[b] && h->id[a] > h->id[b]);
}

static inline void top_swap(top_heap * h, int a, int b) {
    const float v = h->v[a]; h->v[a] = h->v[b]; h->v[b] = v;
    const int32_t i = h->id[a]; h->id[a] = h->id[b]; h->id[b] = i;
}

static void top_sink(top_heap * h, int at, int n) {
    for (;;) {
        int least = at;
        const int l = 2 * at + 1, r = l + 1;
        if (l < n && top_less(h, l, least)) { least = l; }
        if (r < n && top_less(h, r, least)) { least = r; }
        if (least == at) { return; }
        top_swap(h, at, least);
        at = least;
    }
}

static void top_push(top_heap * h, float v, int32_t id) {
    if (h->n < h->cap) {
        int at = h->n++;
        h->v[at] = v; h->id[at] = id;
        while (at > 0 && top_less(h, at, (at - 1) / 2)) { top_swap(h, at, (at - 1) / 2); at = (at - 1) / 2; }
    } else {
        h->v[0] = v; h->id[0] = id;  // callers pass v > least; ids rise, so equals keep the lower id
        top_sink(h, 0, h->n);
    }
    if (h->n == h->cap) { h->least = h->v[0]; }
}

// Heap -> falling order.
static void top_sort(top_heap * h) {
    for (int n = h->n; n > 1; n--) { top_swap(h, 0, n - 1); top_sink(h, 0, n - 1); }
}

static float block_max(const float * x, int n) {
    float m = x[0];
    for (int i = 1; i < n; i++) { m = x[i] > m ? x[i] : m; }
    return m;
}

// How many exceed `limit`, and whether any is NaN or +inf. These by their bits:
// -ffinite-math-only would fold isnan() away. -inf is a legal logit.
static int32_t block_above(const float * x, int n, float limit, int32_t * bad) {
    int32_t above = 0, found = 0;
    for (int i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        above += x[i] > limit;
        found |= (bits & 0x7f800000) == 0x7f800000 && bits != (int32_t) 0xff800000u;
    }
    *bad |= found;
    return above;
}

// Sum of e^(x-m) and of (x-m) e^(x-m).
static void block_exp(const float * x, int n, float m, float * s1, float * s2) {
    float a = 0.0f, b = 0.0f;
    for (int i = 0; i < n; i++) {
        const float d = floor87(x[i] - m);
        const float e = exp_near(d);
        a += e;
        b += d * e;
    }
    *s1 = a; *s2 = b;
}

// The same, and the sum of e^((x-m) scale).
static void block_exp_scaled(const float * x, int n, float m, float scale, float * s1, float * s2, float * st) {
    float a = 0.0f, b = 0.0f, c = 0.0f;
    for (int i = 0; i < n; i++) {
        const float d = floor87(x[i] - m);
        const float e = exp_near(d);
        a += e;
        b += d * e;
        c += exp_neg(d * scale);
    }
    *s1 = a; *s2 = b; *st = c;
}

// The trace's stored top-K against this row (docs/internals/scoring.md#divergence-from-the-stored-candidates):
// divergence with all other tokens taken as one, the target's probability outside the K, and bounds
// of the acceptance of rejection sampling.
static void compare_top(const row_job * job, double lse) {
    float q_log[REF_CHUNK], p_log[REF_CHUNK];
    double kld = 0.0, p_in = 0.0, q_in = 0.0, both = 0.0;
    for (int32_t at = 0; at < job->n_ref; at += REF_CHUNK) {
        const int32_t len = job->n_ref - at < REF_CHUNK ? job->n_ref - at : REF_CHUNK;
        int32_t have = 0;
        for (int32_t i = at; i < at + len; i++) {
            const int32_t id = job->ref_ids[i];
            if (id < 0 || id >= job->n) { continue; }  // absent, or this model cannot say it
            q_log[have] = (float) (job->row[id] - lse);
            p_log[have++] = job->ref_logp[i];
        }
        float k = 0.0f, p_sum = 0.0f, q_sum = 0.0f, least = 0.0f;
        for (int32_t i = 0; i < have; i++) {
            const float p = exp_neg(p_log[i]), q = exp_neg(q_log[i]);
            k += p * (p_log[i] - q_log[i]);
            p_sum += p;
            q_sum += q;
            least += p < q ? p : q;
        }
        kld += k; p_in += p_sum; q_in += q_sum; both += least;
    }
    const double p_out = p_in < 1.0 ? 1.0 - p_in : 0.0, q_out = q_in < 1.0 ? 1.0 - q_in : 0.0;
    // sums of single-precision probabilities: what is left below 1e-6 is rounding
    if (p_out > 1e-6) { kld += p_out * log(p_out / (q_out > 1e-7 ? q_out : 1e-7)); }
    job->ref_out[0] = (float) (kld > 0.0 ? kld : 0.0);
    job->ref_out[1] = (float) p_out;
    job->ref_out[2] = (float) both;
    job->ref_out[3] = (float) (both + (p_out < q_out ? p_out : q_out));
}

void reduce_row(const row_job * job, row_result * out) {
    const float * x = job->row;
    const int32_t n = job->n;
    const float mine = job->token >= 0 ? x[job->token] : 0.0f;
    top_heap heap;
    heap.n = 0;
    heap.cap = job->top > CONFIDENCE_TOP ? job->top : CONFIDENCE_TOP;
    if (heap.cap > n) { heap.cap = n; }
    heap.least = -3.4e38f;
    double s1 = 0.0, s2 = 0.0, st = 0.0;
    float m = -3.4e38f;
    int32_t best_block = 0, rank = 0, bad = 0;
    for (int32_t at = 0; at < n; at += BLOCK) {
        const int len = n - at < BLOCK ? n - at : BLOCK;
        const float * b = x + at;
        const float bm = block_max(b, len);
        rank += block_above(b, len, mine, &bad);
        if (bm > m) {
            const double shift = (double) m - bm;  // <= 0; move the sums to the new maximum
            const double f = exp(shift);
            s2 = (s2 + (shift > -700.0 ? shift : 0.0) * s1) * f;
            s1 *= f;
            if (job->inv_temp > 0.0f) { st *= exp(shift * job->inv_temp); }
            m = bm;
            best_block = at;
        }
        float a1, a2, at_t = 0.0f;
        if (job->inv_temp > 0.0f) { block_exp_scaled(b, len, m, job->inv_temp, &a1, &a2, &at_t); }
        else { block_exp(b, len, m, &a1, &a2); }
        s1 += a1;
        s2 += a2;
        st += at_t;
        if (heap.n < heap.cap || bm > heap.least) {
            for (int g = 0; g < len; g += GROUP) {
                const int end = g + GROUP < len ? g + GROUP : len;
                if (heap.n == heap.cap && block_max(b + g, end - g) <= heap.least) { continue; }
                for (int i = g; i < end; i++) {
                    if (heap.n < heap.cap || b[i] > heap.least) { top_push(&heap, b[i], at + i); }
                }
            }
        }
    }
    int32_t am = best_block;
    while (am < n - 1 && x[am] != m) { am++; }
    top_sort(&heap);
    double ten = 0.0;
    for (int i = 0; i < heap.n && i < CONFIDENCE_TOP; i++) { ten += exp((double) heap.v[i] - heap.v[0]); }
    out->argmax = am;
    out->max = m;
    out->second = heap.n > 1 ? heap.v[1] : m;
    out->confidence = (float) (1.0 / ten);
    out->lse = m + log(s1);
    out->lse_t = job->inv_temp > 0.0f ? (double) m * job->inv_temp + log(st) : 0.0;
    out->entropy = (float) (log(s1) - s2 / s1);
    out->rank = job->token >= 0 ? rank : -1;
    out->bad = bad;
    if (job->n_ref) { compare_top(job, out->lse); }
    for (int i = 0; i < job->top; i++) {
        job->top_ids[i] = i < heap.n ? heap.id[i] : -1;
        job->top_logits[i] = i < heap.n ? heap.v[i] : 0.0f;
    }
}
