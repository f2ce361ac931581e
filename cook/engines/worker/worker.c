// cook's worker: one engine library, one model, one sequence, driven over pipes.
//
// Public llama.h/ggml.h calls only, compiled by compile.py against the engine's own headers
// and libraries; worker_compat.h holds all that differs between flavours and ages of the engine.
// The Python client is worker.py.
//
// Protocol 1. A frame, both ways: "COOK", u32 header bytes, u64 payload bytes, header, payload;
// all numbers little-endian. The header is a flat JSON object; an array NAME of a request is given
// by "NAME@" (byte offset in the payload) and "NAME#" (elements of 4 bytes). A reply is
// {"ok":true,"arrays":[[name,type,elements],...],...} with the arrays one after another, or
// {"ok":false,"error":...}. Logs go to stderr. Any failure of the engine ends one request; a crash
// ends this process only.
#include "llama.h"
#include "ggml.h"
#include "ggml-backend.h"

#include "worker_compat.h"
#include "worker_frames.h"
#include "worker_reduce.h"
#include "worker_params.h"
#include "worker_quantize.h"

#include <pthread.h>
#include <stdatomic.h>

// ---------------------------------------------------------------- reducing rows, threaded

enum { THREADS_MAX = 64 };
static row_job * jobs;  // as many as the physical batch holds, from the first model with a context on
static row_result * results;
static atomic_int next_row;
static const volatile uint8_t * swept;  // instead of reducing, each of `n_rows` shares of it is read
static int n_rows, n_pool, n_busy, generation, n_swept;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_go = PTHREAD_COND_INITIALIZER, pool_done = PTHREAD_COND_INITIALIZER;

static void reduce_some(void) {
    for (int i; (i = atomic_fetch_add(&next_row, 1)) < n_rows;) {
        if (!swept) { reduce_row(&jobs[i], &results[i]); }
        for (int at = n_swept / n_rows * i, left = swept ? n_swept / n_rows : 0; left > 0; at += 64, left -= 64) { (void) swept[at]; }
    }
}

static void * pool_main(void * arg) {
    (void) arg;
    int seen = 0;
    for (;;) {
        pthread_mutex_lock(&pool_lock);
        while (generation == seen) { pthread_cond_wait(&pool_go, &pool_lock); }
        seen = generation;
        pthread_mutex_unlock(&pool_lock);
        reduce_some();
        pthread_mutex_lock(&pool_lock);
        if (--n_busy == 0) { pthread_cond_signal(&pool_done); }
        pthread_mutex_unlock(&pool_lock);
    }
    return NULL;
}

static void pool_start(int threads) {
    for (; n_pool < threads - 1 && n_pool < THREADS_MAX; n_pool++) {
        pthread_t id;
        if (pthread_create(&id, NULL, pool_main, NULL) != 0) { return; }
        pthread_detach(id);
    }
}

// Reduces jobs[0..n) into results[0..n).
static void reduce_rows(int n) {
    n_rows = n;
    atomic_store(&next_row, 0);
    if (n_pool == 0 || n == 1) { reduce_some(); return; }
    pthread_mutex_lock(&pool_lock);
    n_busy = n_pool;
    generation++;
    pthread_cond_broadcast(&pool_go);
    pthread_mutex_unlock(&pool_lock);
    reduce_some();
    pthread_mutex_lock(&pool_lock);
    while (n_busy > 0) { pthread_cond_wait(&pool_done, &pool_lock); }
    pthread_mutex_unlock(&pool_lock);
}

// ---------------------------------------------------------------- the model

static struct llama_model * model;
static struct llama_context * ctx;
static struct llama_batch batch;
static bool telling;  // while a model loads, all that the library says goes to the log
static int32_t n_vocab, n_ctx, n_batch, n_ubatch;
static bool offloads;  // has layers on a GPU
static int32_t few_rows = FEW_ROWS;

// Tokens of a reply that are read at once: on a processor as many as are computed like a server's few.
static int32_t reply_rows(void) { return offloads || n_ubatch < few_rows ? n_ubatch : few_rows; }
static placement placed;  // the model keeps pointers into it
static char * weights;  // what the client calls the model as it lies in memory; its context may be another's

// Tokens of `held` that the KV cache is known to hold between requests of "read", "time" and "replay".
static int32_t * held, n_held;
static int32_t n_held_by_slots;  // the same between requests of "time_slots", of all its sequences; one of the two is 0

#include "worker_heads.h"

static void free_context(void) {
#ifdef COOK_HAS_HEADS
    free_head();
#endif
    if (ctx) { llama_batch_free(batch); llama_free(ctx); ctx = NULL; }
}

static void unload(void) {
    free_context();
    if (model) { free_model(model); model = NULL; }
    forget_placement(&placed);
    free(weights);
    weights = NULL;
}

// A head of mainline mirrors each verification, and gives no logits there.
static bool is_mirror(void) {
#if defined(COOK_HAS_HEADS) && !defined(COOK_IK)
    return ext;
#else
    return false;
#endif
}

static void need_context(void) { if (!ctx) { fail("no model with a context is loaded"); } }

static void check_tokens(const int32_t * t, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        if (t[i] < 0 || t[i] >= n_vocab) { fail("token %d at %d is outside this model's vocabulary of %d", t[i], i, n_vocab); }
    }
}

static void batch_add_to(int32_t sequence, int32_t token, int32_t pos, bool output) {
    const int32_t i = batch.n_tokens++;
    batch.token[i] = token;
    batch.pos[i] = pos;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = output;
}

static void batch_add(int32_t token, int32_t pos, bool output) { batch_add_to(0, token, pos, output); }

static void decode(void) {
#ifdef COOK_HAS_HEADS
    const int rc = ext ? decode_head() : llama_decode(ctx, batch);
#else
    const int rc = llama_decode(ctx, batch);
#endif
    if (rc != 0) {
        fail("llama_decode returned %d for %d tokens at position %d (context %d)%s", rc, batch.n_tokens, batch.pos[0], n_ctx,
            rc == 1 ? ": no room in the KV cache" : "");
    }
}

static void cut(int32_t from) {
    if (!kv_cut(ctx, from)) { fail("this model's memory cannot be rolled back to position %d (recurrent?)", from); }
}

// Empties the KV cache.
static void forget(void) {
    n_held = n_held_by_slots = 0;
    kv_clear(ctx);
}

// Decodes t[from..to) at those positions in batches of at most `width`; output on the last token
// only (as the servers evaluate a prompt), or on none.
static void prefill(const int32_t * t, int32_t from, int32_t to, int32_t width, bool output_last) {
    for (int32_t at = from; at < to;) {
        batch.n_tokens = 0;
        while (at < to && batch.n_tokens < width) { batch_add(t[at], at, false); at++; }
        batch.logits[batch.n_tokens - 1] = output_last && at == to;
        decode();
    }
}

// Has t[0..n) in the KV cache, read in whole batches but for what the request before left there.
static void read_held(const int32_t * t, int32_t n) {
    int32_t common = 0;
    while (common < n && common < n_held && held[common] == t[common]) { common++; }
    if (common == 0 || (common < n_held && !kv_cut(ctx, common))) {
        forget();
        common = 0;
    }
    n_held = 0;
    prefill(t, common, n, n_batch, false);
    llama_synchronize(ctx);
}

static void keep_held(const int32_t * t, int32_t n) {
    int32_t * kept = realloc(held, (size_t) n * 4 + 4);
    if (!kept) { fail("out of memory for %d tokens", n); }
    held = kept;
    memcpy(held, t, (size_t) n * 4);
}

// The KV cache holds t[0..n) alone: the next request may begin there.
static void now_holds(const int32_t * t, int32_t n) {
    keep_held(t, n);
    n_held = n;
}

static row_result reduce_one(int32_t i) {
    jobs[0] = (row_job) { .row = llama_get_logits_ith(ctx, i), .n = n_vocab, .token = -1 };
    if (!jobs[0].row) { fail("the engine gave no logits for row %d", i); }
    reduce_rows(1);
    if (results[0].bad) { fail("the model gives logits that are not numbers"); }
    return results[0];
}

#include "worker_head_imatrix.h"

// Headers and library of one commit? The defaults that all versions share, seen through our struct.
static void check_defaults(void) {
    const struct llama_context_params c = llama_context_default_params();
    const struct llama_model_params m = llama_model_default_params();
    const bool sane = c.n_ctx == 512 && c.n_batch == 2048 && c.n_ubatch == 512 && c.n_seq_max == 1
        && c.rope_freq_base == 0.0f && c.rope_freq_scale == 0.0f && c.yarn_ext_factor == -1.0f
        && c.type_k == GGML_TYPE_F16 && c.type_v == GGML_TYPE_F16 && c.cb_eval == NULL
        && c.abort_callback == NULL && !c.embeddings && c.offload_kqv
        && m.main_gpu == 0 && m.tensor_split == NULL && m.progress_callback == NULL
        && m.kv_overrides == NULL && !m.vocab_only && !m.check_tensors;
    if (!sane) { fail("the engine's headers and its library are not of one version (default parameters differ)"); }
}

// Room for the rows of one physical batch; never less than one.
static void make_rows(int32_t n) {
    row_job * more_jobs = realloc(jobs, (size_t) n * sizeof *jobs);
    if (more_jobs) { jobs = more_jobs; }
    row_result * more_results = realloc(results, (size_t) n * sizeof *results);
    if (more_results) { results = more_results; }
    if (!more_jobs || !more_results) { fail("out of memory for the results of %d rows", n); }
}

static void op_load(void) {
    const char * path = string("path");
    if (!path) { fail("the request has no 'path'"); }
    check_defaults();
#ifdef COOK_HAS_HEADS
    if (other.model) { unload(); exchange(); }  // a head goes, and its target is what was loaded
    if (integer("onto", 0, 0, 1)) { need_context(); exchange(); }
    other.exchanged = false;
#endif
    struct llama_model_params mp = llama_model_default_params();
    struct llama_context_params cp = llama_context_default_params();
    set_parameters(&mp, &cp);
    mp.vocab_only = integer("vocab_only", 0, 0, 1);
    few_rows = integer("few_rows", FEW_ROWS, 1, FEW_ROWS);
    const char * wanted = string("weights");
    const bool known = model && weights && wanted && strcmp(weights, wanted) == 0;
    const int64_t start = now_ns();
    telling = true;
    uint8_t * carried = NULL;
    size_t bytes = 0;
    const int32_t n_carried = known && ctx && integer("carry", 0, 0, 1) ? n_held : 0;
    if (n_carried > 0) {
        llama_synchronize(ctx);
        bytes = kv_size(ctx);
        carried = take(bytes, 1);
        if (bytes == 0 || kv_get(ctx, carried, bytes) != bytes) { fail("the engine cannot tell what its KV cache holds"); }
    }
    if (known) {
        free_context();
    } else {
        unload();
        place(&mp, &placed);
        const int32_t numa = integer("numa", 0, 0, 8);
        if (numa) { llama_numa_init((enum ggml_numa_strategy) numa); }
        model = llama_model_load_from_file(path, mp);
        offloads = has_gpu() && mp.n_gpu_layers != 0;
        if (!model) { fail("the engine cannot load %s", path); }
        n_vocab = vocab_size(model);
        if (n_vocab < 1 || n_vocab > 10000000) { fail("implausible vocabulary size %d: headers and library differ?", n_vocab); }
        if (wanted) { weights = keep_text(wanted); }
    }
    int32_t threads = 0, threads_batch = 0;
    if (!mp.vocab_only) {
        cp.n_ctx = (uint32_t) integer("n_ctx", 4096, 1, 1 << 30);
        // As the servers do: no batch is larger than the context, and no physical one than that.
        cp.n_batch = (uint32_t) integer("n_batch", 2048, 1, INT32_MAX);
        cp.n_ubatch = (uint32_t) integer("n_ubatch", 512, 1, INT32_MAX);
        if (cp.n_batch > cp.n_ctx) { cp.n_batch = cp.n_ctx; }
        if (cp.n_ubatch > cp.n_batch) { cp.n_ubatch = cp.n_batch; }
        cp.n_threads = integer("threads", 1, 1, 1024);
        cp.n_threads_batch = integer("threads_batch", (int32_t) cp.n_threads, 1, 1024);
#if defined(COOK_HAS_HEADS) && !defined(COOK_IK)
        forget_inputs();
        if (integer("collects", 0, 0, 1)) { cp.cb_eval = collect_inputs; }
#endif
        ctx = llama_init_from_model(model, cp);
        if (!ctx) { unload(); fail("the engine cannot make a context of %u tokens for %s", cp.n_ctx, path); }
        n_ctx = (int32_t) llama_n_ctx(ctx);
        n_batch = (int32_t) llama_n_batch(ctx);
        n_ubatch = (int32_t) llama_n_ubatch(ctx);
        threads = (int32_t) llama_n_threads(ctx);
        threads_batch = (int32_t) llama_n_threads_batch(ctx);
        batch = llama_batch_init(n_batch, 0, 1);
#ifdef COOK_HAS_HEADS
        const bool rows = integer("rows", 0, 0, 1);
        if ((rows || makes_head(&cp)) && !has_heads()) { fail("this build of the engine has no functions for heads that cook knows"); }
        if (makes_head(&cp)) { make_head((int32_t) cp.n_seq_max - 1); }
        if (rows) { rows_on(ctx, true, false); }
#endif
        make_rows(n_ubatch);
        pool_start(integer("threads", 1, 1, 1024));
        // One prompt through the model: finite logits, or refuse. KV is left empty, as found.
        const llama_token first = bos_of(model) >= 0 ? bos_of(model) : 0;
        batch.n_tokens = 0;
        batch_add(first, 0, true);
        decode();
        reduce_one(0);
        forget();
        if (carried) {
            if (kv_set(ctx, carried, bytes) != bytes) { fail("a context of %d tokens cannot take over the %d of the one before", n_ctx, n_carried); }
            n_held = n_carried;  // `held` still has them
        }
    }
    put_field(",\"known\":%s,\"carried\":%d,\"load_ns\":%lld,\"n_ctx\":%d,\"n_batch\":%d,\"n_ubatch\":%d,\"n_threads\":%d,\"n_threads_batch\":%d",
        known ? "true" : "false", n_carried, (long long) (now_ns() - start), n_ctx, n_batch, n_ubatch, threads, threads_batch);
    put_parameters(&mp, &cp);
}

static void op_info(void) {
    if (!model) { fail("no model is loaded"); }
    char text[256] = "", safe[1024];
    llama_model_desc(model, text, sizeof text);
    escape(safe, sizeof safe, text);
    int32_t * eog = take((size_t) n_vocab, 4), n = 0;
    for (int32_t t = 0; t < n_vocab; t++) { if (is_eog(model, t)) { eog[n++] = t; } }
    put_array("eog", "i4", eog, (uint64_t) n);
    put_field(",\"description\":\"%s\",\"n_vocab\":%d,\"bos\":%d,\"eos\":%d,\"add_bos\":%s,\"add_eos\":%s,"
        "\"n_ctx_train\":%d,\"n_layer\":%d,\"size_bytes\":%llu,\"parameters\":%llu,\"recurrent\":%s",
        safe, n_vocab, bos_of(model), eos_of(model), adds_bos(model) ? "true" : "false", adds_eos(model) ? "true" : "false",
        n_ctx_train(model), n_layer(model), (unsigned long long) llama_model_size(model),
        (unsigned long long) llama_model_n_params(model), is_recurrent(model) ? "true" : "false");
}

static void op_tokenize(void) {
    if (!model) { fail("no model is loaded"); }
    int32_t words;
    const char * text = array("text", &words, true);
    const int32_t bytes = integer("bytes", 0, 0, words * 4);
    const bool special = integer("add_special", 1, 0, 1), parse = integer("parse_special", 1, 0, 1);
    int32_t room = bytes + 16;
    int32_t * ids = take((size_t) room, 4);
    int32_t n = llama_tokenize(vocab_of(model), text, bytes, ids, room, special, parse);
    if (n < 0 && n > INT32_MIN) {  // a space that is no token becomes three byte tokens: it says how many
        room = -n;
        ids = take((size_t) room, 4);
        n = llama_tokenize(vocab_of(model), text, bytes, ids, room, special, parse);
    }
    if (n < 0) { fail("the engine cannot tokenize this text (%d)", n); }
    put_array("tokens", "i4", ids, (uint64_t) n);
}

static void op_detokenize(void) {
    if (!model) { fail("no model is loaded"); }
    int32_t n;
    const int32_t * ids = array("tokens", &n, true);
    check_tokens(ids, n);
    const bool render = integer("special", 1, 0, 1);
    int32_t room = n * 16 + 256;
    char * text = take((size_t) room, 1);
#ifdef COOK_IK
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
#else
    model_vocab vocab = vocab_of(model);
#endif
    int32_t used = llama_detokenize(vocab, ids, n, text, room, false, render);
    if (used < 0) {
        room = -used;
        text = take((size_t) room, 1);
        used = llama_detokenize(vocab, ids, n, text, room, false, render);
    }
    if (used < 0) { fail("the engine cannot detokenize (%d)", used); }
    put_array("text", "u1", text, (uint64_t) used);
}

// ---------------------------------------------------------------- replay

typedef struct { int32_t id; float confidence; } drafted;

// Draft greedily from the KV cache as it stands: `token` goes to `pos`. Stops after `steps`, or after
// a token whose confidence is below `stop_below` (that token is reported).
static int32_t draft_from(int32_t token, int32_t pos, int32_t steps, float stop_below, drafted * to) {
    for (int32_t i = 0; i < steps; i++) {
        batch.n_tokens = 0;
        batch_add(token, pos + i, true);
        decode();
        const row_result r = reduce_one(0);
        to[i] = (drafted) { r.argmax, r.confidence };
        token = r.argmax;
        if (r.confidence < stop_below) { return i + 1; }
    }
    return steps;
}

// One teacher-forced pass over prompt + emitted: the prompt in whole batches, as a server reads it,
// then the reply in batches of `width`. Position i of every result predicts emitted[i].
// With bare != 0 the same batches and logits mask run and nothing is reduced (the benchmark's base).
static void op_replay(void) {
    need_context();
    int32_t n_prompt, n, n_ref_ids, n_ref;
    const int32_t * prompt = array("prompt", &n_prompt, true);
    const int32_t * emitted = array("emitted", &n, true);
    const int32_t * ref_ids = array("reference_ids", &n_ref_ids, false);
    const float * ref_logp = array("reference_logp", &n_ref, false);
    check_tokens(prompt, n_prompt);
    check_tokens(emitted, n);
    const int32_t total = n_prompt + n - 1;
    if (n_prompt < 1 || n < 1) { fail("replay needs a prompt and at least one emitted token"); }
    if (total > n_ctx) { fail("%d tokens do not fit the context of %d", total, n_ctx); }
    if (n_ref != n_ref_ids || (n_ref && n_ref % n)) { fail("reference arrays do not match %d positions", n); }
    const int32_t k_ref = n_ref / n;
    const int32_t width = integer("width", reply_rows(), 1, n_ubatch);
    const int32_t top = integer("top", 0, 0, TOP_MAX);
    const int32_t steps = integer("rollout_steps", 0, 0, 256);
    const float stop_below = (float) number("rollout_stop_below", 0.0);
    const float temperature = (float) number("temperature", 0.0);
    const bool bare = integer("bare", 0, 0, 1);
    const int32_t ahead = integer("ahead", 0, 0, n_prompt - 1);  // of the prompt, read in whole batches

    const size_t c = (size_t) n;
    int32_t * argmax = take(c, 4), * rank = take(c, 4), * top_ids = take(c * (size_t) top, 4);
    float * confidence = take(c, 4), * lse = take(c, 4), * logq = take(c, 4), * logq_t = take(c, 4), * margin = take(c, 4);
    float * entropy = take(c, 4), * top_logits = take(c * (size_t) top, 4), * ref = take(c * 4, 4);
    int32_t * row_of = take((size_t) width, 4);

    read_held(prompt, ahead);
    int64_t decode_ns = 0, reduce_ns = 0;
    for (int32_t at = ahead; at < total;) {
        batch.n_tokens = 0;
        int32_t rows = 0;
        const bool reads = !ahead && at < n_prompt;
        const int32_t end = reads ? n_prompt : total, most = reads ? n_batch : width;
        for (; at < end && batch.n_tokens < most; at++) {
            const bool output = at >= n_prompt - 1;
            if (output) { row_of[rows++] = batch.n_tokens; }
            batch_add(at < n_prompt ? prompt[at] : emitted[at - n_prompt], at, output);
        }
        int64_t t0 = now_ns();
        decode();
        llama_synchronize(ctx);
        int64_t t1 = now_ns();
        decode_ns += t1 - t0;
        if (bare) { continue; }
        const int32_t first = at - n_prompt + 1 - rows;  // index into emitted of the first row
        for (int32_t r = 0; r < rows; r++) {
            const int32_t i = first + r;
            jobs[r] = (row_job) { .row = llama_get_logits_ith(ctx, row_of[r]), .n = n_vocab, .token = emitted[i],
                .inv_temp = temperature > 0.0f && temperature != 1.0f ? 1.0f / temperature : 0.0f,
                .top = top, .top_ids = top_ids + (size_t) i * top, .top_logits = top_logits + (size_t) i * top,
                .n_ref = k_ref, .ref_ids = ref_ids + (size_t) i * k_ref, .ref_logp = ref_logp + (size_t) i * k_ref, .ref_out = ref + (size_t) i * 4 };
            if (!jobs[r].row) { fail("the engine gave no logits for position %d", i); }
        }
        if (rows) { reduce_rows(rows); }
        for (int32_t r = 0; r < rows; r++) {
            const int32_t i = first + r;
            const row_result * x = &results[r];
            if (x->bad) { fail("the model gives logits that are not numbers (position %d)", i); }
            const float mine = jobs[r].row[emitted[i]];
            argmax[i] = x->argmax;
            confidence[i] = x->confidence;
            lse[i] = (float) x->lse;
            logq[i] = (float) (mine - x->lse);
            logq_t[i] = jobs[r].inv_temp > 0.0f ? (float) ((double) mine * jobs[r].inv_temp - x->lse_t) : logq[i];
            rank[i] = x->rank;
            margin[i] = x->max - x->second;
            entropy[i] = x->entropy;
        }
        reduce_ns += now_ns() - t1;
    }
    put_field(",\"decode_ns\":%lld,\"reduce_ns\":%lld", (long long) decode_ns, (long long) reduce_ns);
    if (ahead && kv_cut(ctx, ahead)) { now_holds(prompt, ahead); }
    if (bare) { return; }
    put_array("argmax", "i4", argmax, c);
    put_array("confidence", "f4", confidence, c);
    put_array("logsumexp", "f4", lse, c);
    put_array("logq", "f4", logq, c);
    put_array("logq_t", "f4", logq_t, c);
    put_array("rank", "i4", rank, c);
    put_array("margin", "f4", margin, c);
    put_array("entropy", "f4", entropy, c);
    if (top) { put_array("top_ids", "i4", top_ids, c * (size_t) top); put_array("top_logits", "f4", top_logits, c * (size_t) top); }
    if (k_ref) { put_array("reference", "f4", ref, c * 4); }
    if (steps) {
        // The KV cache now holds the whole text; mismatches from the back, so that each prefix is intact.
        int32_t misses = 0;
        for (int32_t i = 1; i < n; i++) { misses += argmax[i] != emitted[i]; }
        int32_t * where = take((size_t) misses, 4), * length = take((size_t) misses, 4);
        int32_t * ids = take((size_t) misses * steps, 4);
        float * conf = take((size_t) misses * steps, 4);
        drafted * scratch = take((size_t) steps, sizeof(drafted));
        int64_t t0 = now_ns();
        // past the end: what a draft that agreed to the last token would have said next
        drafted * tail = take((size_t) steps, sizeof(drafted));
        int32_t * tail_ids = take((size_t) steps, 4), past_end = n_ctx - total;
        float * tail_conf = take((size_t) steps, 4);
        if (past_end > 0) { past_end = draft_from(emitted[n - 1], total, steps < past_end ? steps : past_end, stop_below, tail); }
        for (int32_t s = 0; s < past_end; s++) { tail_ids[s] = tail[s].id; tail_conf[s] = tail[s].confidence; }
        put_array("tail_tokens", "i4", tail_ids, (uint64_t) past_end);
        put_array("tail_confidence", "f4", tail_conf, (uint64_t) past_end);
        for (int32_t i = n - 1, m = misses - 1; i >= 1; i--) {
            if (argmax[i] == emitted[i]) { continue; }
            cut(n_prompt + i);
            const int32_t room = n_ctx - (n_prompt + i);
            where[m] = i;
            // no drafting past a token the server would already have stopped at
            length[m] = confidence[i] < stop_below ? 0
                : draft_from(argmax[i], n_prompt + i, steps < room ? steps : room, stop_below, scratch);
            for (int32_t s = 0; s < length[m]; s++) { ids[(size_t) m * steps + s] = scratch[s].id; conf[(size_t) m * steps + s] = scratch[s].confidence; }
            m--;
        }
        put_field(",\"rollout_ns\":%lld", (long long) (now_ns() - t0));
        put_array("rollout_position", "i4", where, (uint64_t) misses);
        put_array("rollout_length", "i4", length, (uint64_t) misses);
        put_array("rollout_tokens", "i4", ids, (uint64_t) misses * steps);
        put_array("rollout_confidence", "f4", conf, (uint64_t) misses * steps);
    }
}

// ---------------------------------------------------------------- live shapes

// Drives this model as draft exactly as the server does, given what the target emitted.
// mainline: common/speculative.cpp draft_simple + server-context.cpp (pre_decode, decode, post_decode).
// ik and mainline of 2025: common_speculative_state_draft (fresh process: empty draft cache; its reuse of
// discarded drafts, which needs n_min > 0, is refused here and modelled in speculation/simulate.py).
static void op_live_shapes(void) {
    need_context();
    int32_t n_prompt, n;
    const int32_t * prompt = array("prompt", &n_prompt, true);
    const int32_t * emitted = array("emitted", &n, true);
    check_tokens(prompt, n_prompt);
    check_tokens(emitted, n);
    const char * name = string("profile");
    const bool ik = name && strcmp(name, "ik-2026-08") == 0, old = name && strcmp(name, "mainline-2025") == 0;
    if (!ik && !old && !(name && strcmp(name, "mainline-2026-10") == 0)) { fail("unknown profile '%s'", name ? name : ""); }
    const bool keeps = ik || old;  // the draft's KV cache is kept and extended, not mirrored by re-evaluation
    const int32_t n_max = integer("n_max", 3, 1, 1024), n_min = integer("n_min", 0, 0, 1024);
    const float p_min = (float) number("p_min", 0.0);
    const int32_t limit = integer("n_predict", n, 1, INT32_MAX);
    const int32_t server_ctx = integer("server_ctx", n_ctx, 1, n_ctx);
    const int32_t width = integer("width", n_batch, 1, n_batch);
    if (old && n_min > 0 && p_min > 0.0f) { fail("n_min with p_min cannot be verified under profile mainline-2025"); }
    if (n_prompt < 1 || n < 1 || n_prompt + n > n_ctx) { fail("%d + %d tokens do not fit the context of %d", n_prompt, n, n_ctx); }

    const size_t c = (size_t) n;
    int32_t * text = take((size_t) n_prompt + c, 4);
    memcpy(text, prompt, (size_t) n_prompt * 4);
    memcpy(text + n_prompt, emitted, c * 4);
    int32_t * start = take(c, 4), * length = take(c, 4), * accepted = take(c, 4);
    int32_t * ids = take(c * (size_t) n_max, 4);
    float * conf = take(c * (size_t) n_max, 4);
    drafted * d = take((size_t) n_max, sizeof(drafted));
    int32_t cycles = 0, plain = 0, known = 0;
    int64_t total = 0, sum_drafted = 0, sum_accepted = 0;

    forget();
    if (!keeps) { prefill(text, 0, n_prompt, width, true); known = n_prompt; }
    for (int32_t i = 1; i < n;) {
        const int32_t past = n_prompt + i - 1;  // tokens before the last emitted one, which is at `past`
        int32_t room = server_ctx - past - 2;
        const int32_t left = limit - i - 1;
        if (left < room) { room = left; }
        int32_t len = 0;
        if (keeps) {
            int32_t lim = n_max < room ? n_max : room;
            if (lim < n_min) { lim = 0; }
            if (lim > 0) {
                if (known > past) { cut(past); known = past; }
                if (known < past) { prefill(text, known, past, width, false); }
                // ik drafts n_max tokens whatever the limit and p_min (its confidence is always 1), then truncates;
                // mainline of 2025 keeps the token that fell below p_min
                const int32_t got = draft_from(text[past], past, ik ? n_max : lim, ik ? 0.0f : p_min, d);
                known = past + got;  // the last drafted token is not decoded
                len = got < lim ? got : lim;
                if (len < n_min) { len = 0; }
            }
        } else if (room > 0) {
            const int32_t steps = n_max < room ? n_max : room;
            int32_t got = draft_from(text[past], past, steps, p_min, d);
            if (d[got - 1].confidence < p_min) { got--; }
            len = got < n_min ? 0 : got;
            cut(past);
        }
        if (!keeps) {
            // the verify batch, mirrored: [last token, draft...], output on the last
            batch.n_tokens = 0;
            batch_add(text[past], past, len == 0);
            for (int32_t k = 0; k < len; k++) { batch_add(d[k].id, past + 1 + k, k == len - 1); }
            decode();
        }
        int32_t j = 0;
        while (j < len && i + j < n && d[j].id == emitted[i + j]) {
            if (!keeps && is_eog(model, emitted[i + j]) && j + 1 < len) { break; }
            j++;
        }
        if (len == 0) { plain++; i++; continue; }
        start[cycles] = i; length[cycles] = len; accepted[cycles] = j;
        for (int32_t k = 0; k < len; k++) { ids[total] = d[k].id; conf[total] = d[k].confidence; total++; }
        cycles++; sum_drafted += len; sum_accepted += j;
        i += j + 1;
        if (!keeps) { cut(n_prompt + i - 1); }
    }
    put_field(",\"draft_n\":%lld,\"draft_n_accepted\":%lld,\"plain_steps\":%d", (long long) sum_drafted, (long long) sum_accepted, plain);
    put_array("start", "i4", start, (uint64_t) cycles);
    put_array("length", "i4", length, (uint64_t) cycles);
    put_array("accepted", "i4", accepted, (uint64_t) cycles);
    put_array("tokens", "i4", ids, (uint64_t) total);
    put_array("confidence", "f4", conf, (uint64_t) total);
}

#include "worker_generate.h"

// ---------------------------------------------------------------- timing

// Reads `text` into the KV cache as a prompt is read, and times what follows its first `known` tokens.
// Without a warm-up: what takes long needs none.
static void op_read(void) {
    need_context();
    int32_t n;
    const int32_t * text = array("text", &n, true);
    check_tokens(text, n);
    if (n > n_ctx) { fail("%d tokens do not fit the context of %d", n, n_ctx); }
    const int32_t known = integer("known", 0, 0, n);
    read_held(text, known);
    const int64_t t0 = now_ns();
    prefill(text, known, n, n_batch, true);
    llama_synchronize(ctx);
    put_field(",\"read_ns\":%lld", (long long) (now_ns() - t0));
    now_holds(text, n);
}

// Times one batch of `tokens` (real text) at context `depth`, `repeats` times, rolling back between. `singles`
// decodes follow in that time. Before each, all threads read `sweep` bytes, as a draft's target its weights.
// sample_k > 0 also times the engine's own pick of a token from each output row.
static void op_time(void) {
    need_context();
    int32_t n;
    const int32_t * text = array("text", &n, true);
    check_tokens(text, n);
    const int32_t depth = integer("depth", 0, 0, n_ctx), b = integer("tokens", 1, 1, n_ctx);
    const int32_t repeats = integer("repeats", 5, 1, 100000), sample_k = integer("sample_k", 0, 0, n_vocab);
    const int32_t singles = integer("singles", 0, 0, n_ctx), end = depth + b + singles, bytes = integer("sweep", 0, 0, 1 << 30);
    const bool all = integer("all_outputs", 0, 0, 1);
    if (end > n || end > n_ctx) { fail("text of %d tokens is too short for depth %d + %d", n, depth, b + singles); }
    if (all && b > n_batch) { fail("%d outputs exceed the batch of %d", b, n_batch); }
    int64_t * decode_ns = take((size_t) repeats, 8), * sample_ns = take((size_t) repeats, 8);
    llama_token_data * buf = sample_k ? take((size_t) n_vocab, sizeof *buf) : NULL;
    const bool mirrors = is_mirror();
    uint8_t * others = bytes ? memset(take((size_t) bytes, 1), 1, (size_t) bytes) : NULL;  // pages of its own
    read_held(text, depth);
    for (int32_t r = -1; r < repeats; r++) {  // -1: warm-up
        if (others) { swept = others; n_swept = bytes; reduce_rows(n_pool + 1); swept = NULL; }
        const int64_t t0 = now_ns();
        batch.n_tokens = 0;
        for (int32_t i = 0; all && i < b; i++) { batch_add(text[depth + i], depth + i, true); }
        if (all) { decode(); } else { prefill(text, depth, depth + b, n_batch, !mirrors || b == 1); }
        prefill(text, depth + b, end, 1, true);
        llama_synchronize(ctx);
        const int64_t t1 = now_ns();
        for (int32_t i = 0; sample_k && i < (all ? b : !mirrors || b == 1); i++) {
            const int32_t row = all ? i : batch.n_tokens - 1;
            if (sample_k == 1) { reduce_one(row); }
            else { engine_pick(llama_get_logits_ith(ctx, row), n_vocab, sample_k, buf); }
        }
        if (r >= 0) { decode_ns[r] = t1 - t0; sample_ns[r] = now_ns() - t1; }
        if (depth == 0) { forget(); } else { cut(depth); }
    }
    now_holds(text, depth);
    put_array("decode_ns", "i8", decode_ns, (uint64_t) repeats);
    put_array("sample_ns", "i8", sample_ns, (uint64_t) repeats);
}

// Times one batch of several sequences, `tokens` of each, as a server with as many slots decodes
// them: `before` [slots, depth] is what they hold, `next` [slots, tokens] the batch, of the first
// `sequences` of them. The context was made with n_seq_max >= slots.
static void op_time_slots(void) {
    need_context();
    int32_t n_before, n_next;
    const int32_t * before = array("before", &n_before, true), * next = array("next", &n_next, true);
    check_tokens(before, n_before);
    check_tokens(next, n_next);
    const int32_t slots = integer("slots", 1, 1, 256), s = integer("sequences", 1, 1, slots);
    const int32_t repeats = integer("repeats", 5, 1, 100000);
    const bool all = integer("all_outputs", 0, 0, 1);
    if (n_before < slots || n_before % slots || n_next < slots || n_next % slots) { fail("texts of %d and %d tokens for %d slots", n_before, n_next, slots); }
    const int32_t depth = n_before / slots, b = n_next / slots;
    if (slots > (int32_t) llama_n_seq_max(ctx)) { fail("%d slots in a context of %d sequences", slots, (int32_t) llama_n_seq_max(ctx)); }
    if (s * b > n_batch || depth + b > n_ctx / slots) { fail("%d x %d tokens at %d fit neither the batch nor the context", s, b, depth); }
    int64_t * decode_ns = take((size_t) repeats, 8);
    if (n_held_by_slots != n_before || memcmp(held, before, (size_t) n_before * 4) != 0) {
        forget();
        for (int32_t q = 0; q < slots; q++) {
            for (int32_t at = 0; at < depth;) {
                batch.n_tokens = 0;
                while (at < depth && batch.n_tokens < n_batch) { batch_add_to(q, before[q * depth + at], at, false); at++; }
                batch.logits[batch.n_tokens - 1] = true;
                decode();
            }
        }
        keep_held(before, n_before);
        n_held_by_slots = n_before;
    }
    llama_synchronize(ctx);
    for (int32_t r = -1; r < repeats; r++) {  // -1: warm-up
        const int64_t t0 = now_ns();
        batch.n_tokens = 0;
        for (int32_t q = 0; q < s; q++) {
            for (int32_t i = 0; i < b; i++) { batch_add_to(q, next[q * b + i], depth + i, all || (!is_mirror() && q == s - 1 && i == b - 1)); }
        }
        decode();
        llama_synchronize(ctx);
        if (r >= 0) { decode_ns[r] = now_ns() - t0; }
        for (int32_t q = 0; q < s; q++) {
            if (!kv_cut_of(ctx, q, depth)) { fail("this model's memory cannot be rolled back to position %d (recurrent?)", depth); }
        }
    }
    put_array("decode_ns", "i8", decode_ns, (uint64_t) repeats);
}

#include "worker_replay_head.h"
#include "worker_live_head.h"

// ---------------------------------------------------------------- main

static void op_hello(void) {
    check_defaults();
    char safe[256];
    escape(safe, sizeof safe, engine_version());
    put_field(",\"protocol\":%d,\"flavour\":\"%s\",\"version\":\"%s\",\"context_params_bytes\":%zu,\"model_params_bytes\":%zu",
        PROTOCOL, COOK_FLAVOUR, safe, sizeof(struct llama_context_params), sizeof(struct llama_model_params));
    put_parameter_names();
}

// For the tests: the reductions on a row of the caller's, and a crash on request.
static void op_selftest(void) {
    int32_t n, k = integer("top", 0, 0, TOP_MAX);
    row_result r;
    row_job job = { .row = array("row", &n, true), .token = integer("token", -1, -1, INT32_MAX),
        .inv_temp = (float) number("inverse_temperature", 0.0), .top = k, .top_ids = take((size_t) k, 4), .top_logits = take((size_t) k, 4) };
    if (integer("abort", 0, 0, 1)) { fprintf(stderr, "selftest: aborting as asked\n"); abort(); }
    job.n = n;
    if (n < 1 || job.token >= n) { fail("selftest: bad row"); }
    reduce_row(&job, &r);
    float * exps = take((size_t) n, 4);
    for (int32_t i = 0; i < n; i++) { exps[i] = exp_neg(job.row[i] - r.max); }
    put_field(",\"argmax\":%d,\"rank\":%d,\"bad\":%d", r.argmax, r.rank, r.bad);
    double * values = take(6, 8);
    const double all[6] = { r.max, r.second, r.confidence, r.lse, r.lse_t, r.entropy };
    memcpy(values, all, sizeof all);
    put_array("values", "f8", values, 6);
    put_array("exp", "f4", exps, (uint64_t) n);
    put_array("top_ids", "i4", job.top_ids, (uint64_t) k);
    put_array("top_logits", "f4", job.top_logits, (uint64_t) k);
}

static void on_log(enum ggml_log_level level, const char * text, void * user) {
    static enum ggml_log_level last;
    if (level != GGML_LOG_LEVEL_CONT) { last = level; }
    if (user || telling || last == GGML_LOG_LEVEL_WARN || last == GGML_LOG_LEVEL_ERROR) { fputs(text, stderr); }
}

static const struct { const char * name; void (*run)(void); } ops[] = {
    { "hello", op_hello }, { "load", op_load }, { "info", op_info }, { "tokenize", op_tokenize },
    { "detokenize", op_detokenize }, { "replay", op_replay }, { "live_shapes", op_live_shapes },
    { "generate", op_generate }, { "read", op_read }, { "time", op_time }, { "time_slots", op_time_slots }, { "selftest", op_selftest },
    { "quantize", op_quantize },
#ifdef COOK_HAS_HEADS
    { "rows", op_rows }, { "replay_head", op_replay_head },
#ifndef COOK_IK
    { "collect", op_collect }, { "importance", op_importance }, { "begin_head", op_begin_head }, { "step_head", op_step_head },
#endif
#endif
};

int main(void) {
    reply_fd = dup(1);
    dup2(2, 1);  // whatever a library prints must not enter the frames
    llama_log_set(on_log, getenv("COOK_WORKER_VERBOSE") ? (void *) ops : NULL);
#if defined(COOK_HAS_LOAD_ALL)
    ggml_backend_load_all();
#endif
    llama_backend_init();
#ifdef COOK_HAS_HEADS
    find_heads();
#endif
    for (;;) {
        char magic[4];
        uint32_t n_head;
        read_exact(magic, 4);
        read_exact(&n_head, 4);
        read_exact(&body_size, 8);
        if (memcmp(magic, "COOK", 4) != 0 || n_head > HEADER_MAX || body_size > PAYLOAD_MAX) {
            fprintf(stderr, "worker: not a frame, or one too large\n");
            return 3;
        }
        head = malloc(n_head + 1);
        body = malloc(body_size + 1);
        if (!head || !body) { fprintf(stderr, "worker: out of memory\n"); return 3; }
        read_exact(head, n_head);
        head[n_head] = 0;
        read_exact(body, body_size);
        n_out_arrays = 0;
        n_fields = 0;
        fields[0] = 0;
        volatile bool ok = false;
        if (setjmp(on_error) == 0) {
            const char * op = string("op");
            size_t i = 0;
            while (i < sizeof ops / sizeof *ops && !(op && strcmp(op, ops[i].name) == 0)) { i++; }
            if (i == sizeof ops / sizeof *ops) { fail("unknown operation '%s'", op ? op : ""); }
            ops[i].run();
            ok = true;
        }
        telling = false;
#ifdef COOK_HAS_HEADS
        if (other.exchanged) { exchange(); }
#endif
        send_reply(ok);
        release_all();
        free(head);
        free(body);
    }
}
