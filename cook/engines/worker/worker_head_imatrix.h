// What goes into the matrices of a head: the sum of squares of every column, of every expert, and how
// many rows it was (as IMatrixCollector::collect_imatrix of tools/imatrix/imatrix.cpp counts).
#ifndef COOK_WORKER_HEAD_IMATRIX_H
#define COOK_WORKER_HEAD_IMATRIX_H

#if defined(COOK_HAS_HEADS) && !defined(COOK_IK)
typedef struct { char name[GGML_MAX_NAME]; int64_t columns, matrices, n_counts; float * sums, * counts; } matrix_inputs;
enum { MATRICES_MAX = 256 };
static matrix_inputs inputs[MATRICES_MAX];
static int n_inputs;
static bool collecting, collects_output;
static const char * collecting_failed;  // where it did: no jump may pass through the library
static unsigned char * copied;  // of what lies on a device
static size_t copied_size;

static void forget_inputs(void) {
    for (; n_inputs > 0; n_inputs--) { free(inputs[n_inputs - 1].sums); free(inputs[n_inputs - 1].counts); }
}

// A tensor's data in memory; the next call may overwrite what a device had.
static const unsigned char * data_of(const struct ggml_tensor * t) {
    if (ggml_backend_buffer_is_host(t->buffer)) { return t->data; }
    const size_t size = ggml_nbytes(t);
    if (size > copied_size) {
        unsigned char * more = realloc(copied, size);
        if (!more) { return NULL; }
        copied = more;
        copied_size = size;
    }
    ggml_backend_tensor_get(t, copied, 0, size);
    return copied;
}

static matrix_inputs * inputs_of(const char * name, const struct ggml_tensor * weight, bool by_expert) {
    for (int i = 0; i < n_inputs; i++) { if (strcmp(inputs[i].name, name) == 0) { return &inputs[i]; } }
    if (n_inputs == MATRICES_MAX) { return NULL; }
    matrix_inputs * m = &inputs[n_inputs];
    m->columns = weight->ne[0];
    m->matrices = weight->ne[2] * weight->ne[3];
    m->n_counts = by_expert ? m->matrices : 1;
    m->sums = calloc((size_t) (m->columns * m->matrices), sizeof *m->sums);
    m->counts = calloc((size_t) m->n_counts, sizeof *m->counts);
    if (!m->sums || !m->counts) { free(m->sums); free(m->counts); return NULL; }
    snprintf(m->name, sizeof m->name, "%s", name);
    n_inputs++;
    return m;
}

static void add_squares(float * sums, const unsigned char * row, int64_t columns) {
    const float * x = (const float *) row;
    for (int64_t j = 0; j < columns; j++) { sums[j] += x[j] * x[j]; }
}

// The scheduler's callback: first whether a node is wanted, then, once it is computed, its inputs.
static bool collect_inputs(struct ggml_tensor * t, bool ask, void * user) {
    (void) user;
    if (!collecting || (t->op != GGML_OP_MUL_MAT && t->op != GGML_OP_MUL_MAT_ID)) { return false; }
    const struct ggml_tensor * weight = t->src[0], * x = t->src[1], * ids = t->op == GGML_OP_MUL_MAT_ID ? t->src[2] : NULL;
    char name[GGML_MAX_NAME];  // "DEVICE#name#copy" where the scheduler copied it
    const char * from = strchr(weight->name, '#');
    snprintf(name, sizeof name, "%s", from ? from + 1 : weight->name);
    if (from && strchr(name, '#')) { *strchr(name, '#') = 0; }
    const bool wanted = strncmp(name, "blk.", 4) == 0 || (collects_output && strcmp(name, "output.weight") == 0);
    if (!wanted || x->type != GGML_TYPE_F32) { return false; }
    if (ask) { return true; }
    matrix_inputs * m = inputs_of(name, weight, ids != NULL);
    int32_t * chosen = ids ? malloc(ggml_nbytes(ids)) : NULL;
    if (chosen) { ggml_backend_tensor_get(ids, chosen, 0, ggml_nbytes(ids)); }
    const unsigned char * data = data_of(x);
    if (!m || !data || (ids && !chosen)) { free(chosen); collecting_failed = "out of memory for the inputs of matrices"; return false; }
    for (int64_t i = 0; ids && i < ids->ne[0]; i++) {
        for (int64_t row = 0; row < x->ne[2]; row++) {
            const int32_t expert = *(const int32_t *) ((const unsigned char *) chosen + (size_t) row * ids->nb[1] + (size_t) i * ids->nb[0]);
            if (expert < 0 || expert >= m->matrices) { collecting_failed = "a router chose an expert that is not there"; continue; }
            add_squares(m->sums + expert * m->columns, data + (size_t) (i % x->ne[1]) * x->nb[1] + (size_t) row * x->nb[2], m->columns);
            m->counts[expert]++;
        }
    }
    for (int64_t at = 0; !ids && at < x->ne[2] * x->ne[3]; at++) {
        const int64_t i2 = at % x->ne[2], i3 = at / x->ne[2];
        const int64_t matrix = (i3 % weight->ne[3]) * weight->ne[2] + i2 % weight->ne[2];
        for (int64_t row = 0; row < x->ne[1]; row++) {
            add_squares(m->sums + matrix * m->columns, data + (size_t) row * x->nb[1] + (size_t) i2 * x->nb[2] + (size_t) i3 * x->nb[3], m->columns);
        }
    }
    if (!ids) { m->counts[0] += (float) (ggml_nrows(x) / m->matrices); }
    free(chosen);
    return true;
}

// The head reads `text` with the target's `rows` [n, row_size] before each token, and its inputs are added.
static void op_collect(void) {
    need_context();
    int32_t n, n_rows;
    const int32_t * text = array("text", &n, true);
    const float * rows = array("rows", &n_rows, true);
    check_tokens(text, n);
    if (!ext) { fail("no head is loaded"); }
    if (n > n_ctx || n_rows != n * row_size()) { fail("%d numbers of rows for %d tokens of %d, in a context of %d", n_rows, n, row_size(), n_ctx); }
    collects_output = integer("output", 0, 0, 1);
    collecting_failed = NULL;
    forget();
    for (int32_t at = 0; at < n;) {
        batch.n_tokens = 0;
        for (; at < n && batch.n_tokens < n_ubatch; at++) {
            row_in[batch.n_tokens] = at ? rows + (size_t) (at - 1) * (size_t) row_size() : NULL;
            batch_add(text[at], at, true);
        }
        collecting = true;
        const int32_t rc = decode_head();
        llama_synchronize(ctx);
        collecting = false;
        if (collecting_failed) { fail("%s", collecting_failed); }
        if (rc != 0) { fail("llama_process returned %d for %d tokens of a head", rc, batch.n_tokens); }
    }
}

// All that was added since the head was loaded: names with their columns and counts in one text, sums one after another.
static void op_importance(void) {
    size_t n_sums = 0, n_counts = 0, at = 0, counted = 0;
    for (int i = 0; i < n_inputs; i++) { n_sums += (size_t) (inputs[i].columns * inputs[i].matrices); n_counts += (size_t) inputs[i].n_counts; }
    float * sums = take(n_sums, 4), * counts = take(n_counts, 4);
    put_field(",\"entries\":[");
    for (int i = 0; i < n_inputs; i++) {
        const matrix_inputs * m = &inputs[i];
        const size_t size = (size_t) (m->columns * m->matrices);
        put_field("%s[\"%s\",%lld,%lld]", i ? "," : "", m->name, (long long) size, (long long) m->n_counts);
        memcpy(sums + at, m->sums, size * 4);
        memcpy(counts + counted, m->counts, (size_t) m->n_counts * 4);
        at += size; counted += (size_t) m->n_counts;
    }
    put_field("]");
    put_array("sums", "f4", sums, n_sums);
    put_array("counts", "f4", counts, n_counts);
}
#endif
#endif
