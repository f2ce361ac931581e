// Heads of mainline that draft from the target's hidden states ("rows"), one float row a token.
//
// The functions that switch rows on and give them are C++ symbols of libllama whose header is not
// installed (src/llama-ext.h). They are looked up by their mangled names, which hold the types of
// their arguments: where one is absent, or means something else, this build has no heads for us.
#ifndef COOK_WORKER_HEADS_H
#define COOK_WORKER_HEADS_H

#ifdef COOK_HAS_HEADS
#include <dlfcn.h>

static void (*rows_on)(struct llama_context *, bool, bool);
static float * (*rows_of)(struct llama_context *);
static float * (*row_at)(struct llama_context *, int32_t);
static struct llama_batch_ext * ext;  // of a head's context; NULL where a model is loaded
static const float * no_row;
static const float ** row_in;  // of each token of `batch`: what the target had before it; NULL is zeros

// `rows_on` stays NULL where one of them is missing.
static void find_heads(void) {
    *(void **) &rows_of = dlsym(RTLD_DEFAULT, "_Z26llama_get_embeddings_nextnP13llama_context");
    *(void **) &row_at = dlsym(RTLD_DEFAULT, "_Z30llama_get_embeddings_nextn_ithP13llama_contexti");
    if (rows_of && row_at) { *(void **) &rows_on = dlsym(RTLD_DEFAULT, "_Z26llama_set_embeddings_nextnP13llama_contextbb"); }
}

static int32_t row_size(void) { return llama_model_n_embd_out(model); }

// The model that was loaded before a head, and stays for it to draft for. The two change places, so
// that all functions are of either one: in between requests the head is what is loaded.
static struct {
    struct llama_model * model;
    struct llama_context * ctx;
    struct llama_batch batch;
    struct llama_batch_ext * ext;
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
    if (ext) { llama_batch_ext_free(ext); }
    free((void *) row_in);
    free((void *) no_row);
    ext = NULL; row_in = NULL; no_row = NULL;
}

static void make_head(void) {
    ext = llama_batch_ext_init(ctx);
    row_in = calloc((size_t) n_batch, sizeof *row_in);
    no_row = calloc((size_t) row_size(), sizeof *no_row);
    if (!ext || !row_in || !no_row) { fail("out of memory for a head's batch"); }
    rows_on(ctx, true, true);
}

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
#endif
