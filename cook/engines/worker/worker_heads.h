// Heads that draft from the target's hidden states ("rows"), one float row a token.
//
// The functions that give and take rows are C++ symbols of libllama whose headers are not installed
// (src/llama-ext.h; ik: src/llama-spec-features.h). They are looked up by their mangled names, which
// hold the types of their arguments: where one is absent, or means something else, this build has no
// heads for us.
#ifndef COOK_WORKER_HEADS_H
#define COOK_WORKER_HEADS_H

#ifdef COOK_HAS_HEADS
#include <dlfcn.h>

static int32_t n_branches;  // of drafts, next to the text, that a head's context was made for
static const float * no_row;
static const float ** row_in;  // of each token of `batch`: what the target had before it; NULL is zeros

#ifdef COOK_IK
// What ik's header has for rows (llama_set_draft_input_hidden_state) takes as many as the batch before
// had: the server takes this one, too.
static bool (*take_rows)(struct llama_context *, const float *, size_t);
static float * ext;  // the rows of `batch`, of a head's context; NULL where a model is loaded

static void find_heads(void) {
    *(void **) &take_rows = dlsym(RTLD_DEFAULT, "_Z39llama_set_draft_input_hidden_state_copyP13llama_contextPKfm");
}

static bool has_heads(void) { return take_rows; }
static bool makes_head(const struct llama_context_params * c) { return c->mtp && c->mtp_op_type != MTP_OP_NONE; }
static int32_t row_size(void) { return (int32_t) llama_model_mtp_feature_width(model); }

// A context is made to give rows, or not to.
static void rows_on(struct llama_context * c, bool on, bool masked) { (void) c; (void) on; (void) masked; }
static float * rows_of(struct llama_context * c) { return llama_get_embeddings(c); }
static float * row_at(struct llama_context * c, int32_t i) { return llama_get_embeddings_ith(c, i); }

// What p_min is held against: of all tokens (common_sampler_sample_speculative).
static float confidence_of(const row_result * r) { return exp_neg((float) (r->max - r->lse)); }

static void new_ext(void) { ext = calloc((size_t) n_batch, (size_t) row_size() * sizeof *ext); }
static void free_ext(void) { free(ext); }

// As llama_decode, of a batch whose tokens have rows. A batch without outputs is of a prompt: its last
// token is computed all the same, as by the server (mtp_update_kv_cache).
static int32_t decode_head(void) {
    const size_t size = (size_t) row_size(), n = (size_t) batch.n_tokens;
    bool outputs = false;
    for (size_t i = 0; i < n; i++) {
        memcpy(ext + i * size, row_in[i] ? row_in[i] : no_row, size * sizeof *ext);
        outputs = outputs || batch.logits[i];
        row_in[i] = NULL;
    }
    batch.logits[n - 1] = true;
    llama_set_mtp_op_type(ctx, !outputs ? MTP_OP_WARMUP : n > 1 ? MTP_OP_UPDATE_ACCEPTED : MTP_OP_DRAFT_GEN);
    return take_rows(ctx, ext, n * size) ? llama_decode(ctx, batch) : -1;
}
#else
static void (*rows_on)(struct llama_context *, bool, bool);
static float * (*rows_of)(struct llama_context *);
static float * (*row_at)(struct llama_context *, int32_t);
static struct llama_batch_ext * ext;  // of a head's context; NULL where a model is loaded

// `rows_on` stays NULL where one of them is missing.
static void find_heads(void) {
    *(void **) &rows_of = dlsym(RTLD_DEFAULT, "_Z26llama_get_embeddings_nextnP13llama_context");
    *(void **) &row_at = dlsym(RTLD_DEFAULT, "_Z30llama_get_embeddings_nextn_ithP13llama_contexti");
    if (rows_of && row_at) { *(void **) &rows_on = dlsym(RTLD_DEFAULT, "_Z26llama_set_embeddings_nextnP13llama_contextbb"); }
}

static bool has_heads(void) { return rows_on; }
static bool makes_head(const struct llama_context_params * c) { return c->ctx_type == LLAMA_CONTEXT_TYPE_MTP; }
static int32_t row_size(void) { return llama_model_n_embd_out(model); }
static float confidence_of(const row_result * r) { return r->confidence; }
static void new_ext(void) { ext = llama_batch_ext_init(ctx); }
static void free_ext(void) { if (ext) { llama_batch_ext_free(ext); } }

// As llama_decode, of a batch whose tokens have rows.
static int32_t decode_head(void) {
    llama_batch_ext_clear(ext);
    for (int32_t i = 0; i < batch.n_tokens; i++) {
        const int32_t at = llama_batch_ext_add_token(ext, batch.seq_id[i][0], batch.token[i]);
        const struct llama_embd row = { row_in[i] ? row_in[i] : no_row, 1, (size_t) row_size() };
        if (at < 0 || !llama_batch_ext_set_embd_token(ext, at, row)) { fail("the head's batch takes no row %d", i); }
        llama_batch_ext_set_pos(ext, at, &batch.pos[i]);
        llama_batch_ext_set_output_logits(ext, at, batch.logits[i]);
        row_in[i] = NULL;
    }
    return llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, ext);
}
#endif

// The model that was loaded before a head, and stays for it to draft for. The two change places, so
// that all functions are of either one: in between requests the head is what is loaded.
static struct {
    struct llama_model * model;
    struct llama_context * ctx;
    struct llama_batch batch;
    __typeof__(ext) ext;
    const float * no_row, ** row_in;
    placement placed;
    char * weights;
    int32_t n_vocab, n_ctx, n_batch, n_ubatch;
    bool offloads, exchanged;
} other;

#define COOK_SWAP(x) do { __typeof__(x) kept = x; x = other.x; other.x = kept; } while (0)
static void exchange(void) {
    COOK_SWAP(model); COOK_SWAP(ctx); COOK_SWAP(batch); COOK_SWAP(ext); COOK_SWAP(no_row); COOK_SWAP(row_in); COOK_SWAP(placed);
    COOK_SWAP(weights); COOK_SWAP(n_vocab); COOK_SWAP(n_ctx); COOK_SWAP(n_batch); COOK_SWAP(n_ubatch); COOK_SWAP(offloads);
    n_held = n_held_by_slots = 0;
    other.exchanged = !other.exchanged;
}

static void free_head(void) {
    free_ext();
    free((void *) row_in);
    free((void *) no_row);
    ext = NULL; row_in = NULL; no_row = NULL;
}

static void make_head(int32_t branches) {
    n_branches = branches;
    new_ext();
    row_in = calloc((size_t) n_batch, sizeof *row_in);
    no_row = calloc((size_t) row_size(), sizeof *no_row);
    if (!ext || !row_in || !no_row) { fail("out of memory for a head's batch"); }
    rows_on(ctx, true, true);
}
#endif
#endif
