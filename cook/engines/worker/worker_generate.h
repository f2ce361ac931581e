// Writing on from a prompt, a token a step: how a trace is recorded. Included by worker.c.
#ifndef COOK_WORKER_GENERATE_H
#define COOK_WORKER_GENERATE_H

#include <math.h>

static uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

typedef struct { float v; int32_t id; } candidate;

static int falling(const void * a, const void * b) {
    const candidate * x = a, * y = b;
    return x->v < y->v ? 1 : x->v > y->v ? -1 : (x->id > y->id) - (x->id < y->id);
}

typedef struct { float temperature, top_p, min_p; int32_t top_k; uint64_t seed; } chain_params;

// top-k, top-p, min-p, temperature, draw: mainline's default order (common.h), on one raw row.
// The draw is cook's own (splitmix64 of seed and step, inverse CDF): the same distribution as a
// server's with these settings, not the same draws. Sets *logp, the log-probability under the chain.
static int32_t draw(const float * row, const row_result * r, const chain_params * c, uint64_t step, candidate * buf, float * logp) {
    if (c->temperature <= 0.0f) { *logp = 0.0f; return r->argmax; }
    int32_t n = 0;
    if (c->top_k > 0 && c->top_k <= TOP_MAX) {
        int32_t ids[TOP_MAX];
        float logits[TOP_MAX];
        row_job job = { .row = row, .n = n_vocab, .token = -1, .top = c->top_k < n_vocab ? c->top_k : n_vocab, .top_ids = ids, .top_logits = logits };
        row_result unused;
        reduce_row(&job, &unused);
        for (; n < job.top; n++) { buf[n] = (candidate) { logits[n], ids[n] }; }
    } else {
        for (; n < n_vocab; n++) { buf[n] = (candidate) { row[n], n }; }
        qsort(buf, (size_t) n, sizeof *buf, falling);
        if (c->top_k > 0 && c->top_k < n) { n = c->top_k; }
    }
    if (c->top_p < 1.0f) {
        double z = 0.0, run = 0.0;
        for (int32_t i = 0; i < n; i++) { z += exp((double) buf[i].v - buf[0].v); }
        for (int32_t i = 0; i < n; i++) {
            run += exp((double) buf[i].v - buf[0].v) / z;
            if (run >= c->top_p) { n = i + 1; break; }
        }
    }
    if (c->min_p > 0.0f) {
        const float least = buf[0].v + logf(c->min_p);
        while (n > 1 && buf[n - 1].v < least) { n--; }
    }
    double z = 0.0;
    for (int32_t i = 0; i < n; i++) { z += exp(((double) buf[i].v - buf[0].v) / c->temperature); }
    const double u = (double) (mix(c->seed ^ mix(step)) >> 11) * 0x1.0p-53 * z;
    double run = 0.0;
    int32_t i = 0;
    for (; i < n - 1; i++) { run += exp(((double) buf[i].v - buf[0].v) / c->temperature); if (u < run) { break; } }
    *logp = (float) (((double) buf[i].v - buf[0].v) / c->temperature - log(z));
    return buf[i].id;
}

static void op_generate(void) {
    need_context();
    int32_t n_prompt;
    const int32_t * prompt = array("prompt", &n_prompt, true);
    check_tokens(prompt, n_prompt);
    const int32_t limit = integer("n_predict", 128, 1, 1 << 24), extra = integer("extra", 0, 0, 1024);
    const int32_t top = integer("top", 0, 0, TOP_MAX), width = integer("width", 1, 1, n_ubatch);
    const chain_params chain = { .temperature = (float) number("temperature", 0.0), .top_p = (float) number("top_p", 1.0),
        .min_p = (float) number("min_p", 0.0), .top_k = integer("top_k", 0, 0, INT32_MAX), .seed = (uint64_t) number("seed", 0.0) };
    if (n_prompt < 1 || n_prompt >= n_ctx) { fail("a prompt of %d tokens does not fit the context of %d", n_prompt, n_ctx); }
    if (width > 1 && is_recurrent(model)) { fail("a recurrent model cannot write in batches of %d tokens: what its state took in cannot be taken out", width); }
    const int32_t room = n_ctx - n_prompt, most = limit + extra < room ? limit + extra : room;
    const size_t c = (size_t) most;
    int32_t * ids = take(c, 4), * top_ids = take(c * (size_t) top, 4);
    float * logp = take(c, 4), * chain_logp = take(c, 4), * lse = take(c, 4), * margin = take(c, 4), * top_logits = take(c * (size_t) top, 4);
    candidate * buf = chain.temperature > 0.0f ? take((size_t) n_vocab, sizeof(candidate)) : NULL;

    forget();
    int64_t t0 = now_ns();
    prefill(prompt, 0, n_prompt, n_batch, true);
    llama_synchronize(ctx);
    const int64_t prefill_ns = now_ns() - t0;
    t0 = now_ns();
    int32_t n = 0, emitted = -1;  // emitted: tokens that belong to the reply, once it has ended
    const char * stop = "context";
    for (; n < most; n++) {
        const float * row = llama_get_logits_ith(ctx, n == 0 ? batch.n_tokens - 1 : 0);
        if (!row) { fail("the engine gave no logits at token %d", n); }
        jobs[0] = (row_job) { .row = row, .n = n_vocab, .token = -1, .top = top, .top_ids = top_ids + (size_t) n * top, .top_logits = top_logits + (size_t) n * top };
        reduce_rows(1);
        if (results[0].bad) { fail("the model gives logits that are not numbers (token %d)", n); }
        ids[n] = draw(row, &results[0], &chain, (uint64_t) n, buf, &chain_logp[n]);
        lse[n] = (float) results[0].lse;
        logp[n] = (float) (row[ids[n]] - results[0].lse);
        margin[n] = results[0].max - results[0].second;
        if (emitted < 0 && is_eog(model, ids[n])) { emitted = n + 1; stop = "eog"; }
        if (emitted < 0 && n + 1 == limit) { emitted = n + 1; stop = "limit"; }
        if (emitted >= 0 && (n + 1 >= emitted + extra || strcmp(stop, "limit") == 0)) { n++; break; }
        if (n + 1 == most) { continue; }
        // A batch as wide as those that verify drafts rounds as they do. What stands behind the
        // token changes nothing else of its row: it is the token itself, and is cut off again.
        batch.n_tokens = 0;
        for (int32_t at = n_prompt + n; batch.n_tokens < width && at < n_ctx; at++) { batch_add(ids[n], at, true); }
        decode();
        if (width > 1) { cut(n_prompt + n + 1); }
    }
    put_field(",\"prefill_ns\":%lld,\"decode_ns\":%lld,\"emitted\":%d,\"stop\":\"%s\"", (long long) prefill_ns,
        (long long) (now_ns() - t0), emitted < 0 ? n : emitted, stop);
    put_array("tokens", "i4", ids, (uint64_t) n);
    put_array("logp", "f4", logp, (uint64_t) n);
    put_array("chain_logp", "f4", chain_logp, (uint64_t) n);
    put_array("logsumexp", "f4", lse, (uint64_t) n);
    put_array("margin", "f4", margin, (uint64_t) n);
    if (top) { put_array("top_ids", "i4", top_ids, (uint64_t) n * top); put_array("top_logits", "f4", top_logits, (uint64_t) n * top); }
}

#endif
