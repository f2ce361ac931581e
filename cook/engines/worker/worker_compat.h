// What differs between the flavours and ages of the engine: COOK_IK is ik_llama.cpp, and each
// COOK_HAS_... a feature that compile.py found in the header's text.
#ifndef COOK_WORKER_COMPAT_H
#define COOK_WORKER_COMPAT_H

#include "llama.h"
#include "ggml-backend.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef COOK_IK
#define COOK_FLAVOUR "ik_llama.cpp"
typedef const struct llama_model * model_vocab;
static model_vocab vocab_of(const struct llama_model * m) { return m; }
static int32_t vocab_size(const struct llama_model * m) { return llama_n_vocab(m); }
static bool is_eog(const struct llama_model * m, llama_token t) { return llama_token_is_eog(m, t); }
static llama_token bos_of(const struct llama_model * m) { return llama_token_bos(m); }
static llama_token eos_of(const struct llama_model * m) { return llama_token_eos(m); }
static bool adds_bos(const struct llama_model * m) { return llama_add_bos_token(m) == 1; }
static bool adds_eos(const struct llama_model * m) { return llama_add_eos_token(m) == 1; }
static int32_t n_ctx_train(const struct llama_model * m) { return llama_n_ctx_train(m); }
static int32_t n_layer(const struct llama_model * m) { return llama_n_layer(m); }
static void free_model(struct llama_model * m) { llama_free_model(m); }
static void kv_clear(struct llama_context * c) { llama_kv_cache_clear(c); }
static bool kv_cut_of(struct llama_context * c, int32_t sequence, int32_t from) { return llama_kv_cache_seq_rm(c, sequence, from, -1); }
static void kv_share(struct llama_context * c, int32_t to, int32_t n) { llama_kv_cache_seq_cp(c, 0, to, 0, n); }
static bool is_recurrent(const struct llama_model * m) { return llama_model_has_recurrent(m); }
static const char * engine_version(void) { return ""; }
#else
#define COOK_FLAVOUR "llama.cpp"
typedef const struct llama_vocab * model_vocab;
static model_vocab vocab_of(const struct llama_model * m) { return llama_model_get_vocab(m); }
static int32_t vocab_size(const struct llama_model * m) { return llama_vocab_n_tokens(vocab_of(m)); }
static bool is_eog(const struct llama_model * m, llama_token t) { return llama_vocab_is_eog(vocab_of(m), t); }
static llama_token bos_of(const struct llama_model * m) { return llama_vocab_bos(vocab_of(m)); }
static llama_token eos_of(const struct llama_model * m) { return llama_vocab_eos(vocab_of(m)); }
static bool adds_bos(const struct llama_model * m) { return llama_vocab_get_add_bos(vocab_of(m)); }
static bool adds_eos(const struct llama_model * m) { return llama_vocab_get_add_eos(vocab_of(m)); }
static int32_t n_ctx_train(const struct llama_model * m) { return llama_model_n_ctx_train(m); }
static int32_t n_layer(const struct llama_model * m) { return llama_model_n_layer(m); }
static void free_model(struct llama_model * m) { llama_model_free(m); }
static void kv_clear(struct llama_context * c) { llama_memory_clear(llama_get_memory(c), true); }
static bool kv_cut_of(struct llama_context * c, int32_t sequence, int32_t from) { return llama_memory_seq_rm(llama_get_memory(c), sequence, from, -1); }
static void kv_share(struct llama_context * c, int32_t to, int32_t n) { llama_memory_seq_cp(llama_get_memory(c), 0, to, 0, n); }
#ifdef COOK_HAS_HYBRID
static bool is_recurrent(const struct llama_model * m) { return llama_model_is_recurrent(m) || llama_model_is_hybrid(m); }
#else
static bool is_recurrent(const struct llama_model * m) { return llama_model_is_recurrent(m); }
#endif
#ifdef COOK_HAS_VERSION
static const char * engine_version(void) { return llama_version(); }
#else
static const char * engine_version(void) { return ""; }
#endif
#endif

// FEW_ROWS: as many tokens as a processor computes as it does a server's few. With more, other kernels
// round otherwise and break near ties: llama.cpp's flash attention by tiles from 64 (GGML_FA_TILE_Q,
// ggml-cpu/common.h), ik's weights quantized again from 32 or less (loading.py says how many).
#ifdef COOK_IK
enum { FEW_ROWS = 31 };
static bool has_gpu(void) { return llama_supports_gpu_offload(); }
#else
enum { FEW_ROWS = 60 };
static bool has_gpu(void) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        const enum ggml_backend_dev_type type = ggml_backend_dev_type(ggml_backend_dev_get(i));
        if (type != GGML_BACKEND_DEVICE_TYPE_CPU && type != GGML_BACKEND_DEVICE_TYPE_ACCEL) { return true; }
    }
    return false;
}
#endif

// What the first sequence holds, as bytes that another context of the same model takes over; 0 where
// the engine can't, and where it holds nothing.
#ifdef COOK_IK
static size_t kv_size(struct llama_context * c) { (void) c; return 0; }
static size_t kv_get(struct llama_context * c, uint8_t * to, size_t n) { (void) c; (void) to; (void) n; return 0; }
static size_t kv_set(struct llama_context * c, const uint8_t * from, size_t n) { (void) c; (void) from; (void) n; return 0; }
#else
static size_t kv_size(struct llama_context * c) { return llama_state_seq_get_size(c, 0); }
static size_t kv_get(struct llama_context * c, uint8_t * to, size_t n) { return llama_state_seq_get_data(c, to, n, 0); }
static size_t kv_set(struct llama_context * c, const uint8_t * from, size_t n) { return llama_state_seq_set_data(c, from, n, 0); }
#endif

static bool kv_cut(struct llama_context * c, int32_t from) { return kv_cut_of(c, 0, from); }

// Rows of `columns` values as `type`; `importance` of the columns, or NULL. Bytes written.
static size_t quantize_rows(enum ggml_type type, const float * from, void * to, int64_t rows, int64_t columns, const float * importance) {
#ifdef COOK_HAS_QUANTIZE_USER_DATA
    static const struct quantize_user_data plain;  // llama-quantize without --symmetric-q40, --slow-iq2ks
    return ggml_quantize_chunk(type, from, to, 0, rows, columns, importance, &plain);
#else
    return ggml_quantize_chunk(type, from, to, 0, rows, columns, importance);
#endif
}

static ggml_to_float_t dequantizer_of(enum ggml_type type) {
#ifdef COOK_IK
    return ggml_internal_get_type_traits(type).to_float;
#else
    return ggml_get_type_traits(type)->to_float;
#endif
}

// The engine's own draft/target pick of one token from `row` (what a server spends per sampled
// token): fill the candidate array, top-k, softmax, draw.
static void engine_pick(const float * row, int32_t n, int32_t k, llama_token_data * buf) {
    for (int32_t i = 0; i < n; i++) { buf[i] = (llama_token_data) { i, row[i], 0.0f }; }
#ifdef COOK_IK
    llama_token_data_array arr = { buf, (size_t) n, -1, false };
    llama_sample_top_k(NULL, &arr, k, 1);
    llama_sample_softmax(NULL, &arr);
#else
    static struct llama_sampler * chain;
    static int32_t chain_k;
    if (!chain || chain_k != k) {
        if (chain) { llama_sampler_free(chain); }
        chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(k));
        llama_sampler_chain_add(chain, llama_sampler_init_dist(1));
        chain_k = k;
    }
    llama_token_data_array arr = { buf, (size_t) n, -1, false };
    llama_sampler_apply(chain, &arr);
#endif
}

#endif
