// Quantizes rows of a tensor that lies in a file into another file, as llama-quantize does: the same
// conversion to f32, the same ggml_quantize_chunk, the same checks of what is read and written. Every
// type of either engine works row by row (the row-interleaved ones on so many rows at once), so it
// makes no difference where the chunks begin; each thread reads, converts and writes its own, and no
// more than a chunk a thread is ever in memory.
#ifndef COOK_WORKER_QUANTIZE_H
#define COOK_WORKER_QUANTIZE_H

#include "ggml.h"

#include "worker_compat.h"
#include "worker_frames.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

enum { CHUNK_ELEMENTS = 1 << 18, CHUNK_ROWS = 16 };  // no type interleaves more than 16 rows

typedef struct {
    int from, to;                     // files
    int64_t from_at, to_at;           // of the tensor's first row
    enum ggml_type source, type;
    int64_t columns, rows;            // of one matrix
    int64_t first, end;               // rows of all matrices, to be done
    int64_t chunk;                    // rows
    int32_t source_interleave;
    const float * importance;         // columns of every matrix, or NULL
    atomic_llong next;
    atomic_int failed;                // then `reason` is why
    char reason[512];
} quantizing;

__attribute__((format(printf, 2, 3)))
static void quantizing_failed(quantizing * q, const char * format, ...) {
    if (atomic_exchange(&q->failed, 1)) { return; }
    va_list args;
    va_start(args, format);
    vsnprintf(q->reason, sizeof q->reason, format, args);
    va_end(args);
}

static bool read_at(quantizing * q, void * to, size_t n, int64_t at) {
    for (size_t done = 0; done < n;) {
        const ssize_t r = pread(q->from, (char *) to + done, n - done, at + (int64_t) done);
        if (r < 0 && errno == EINTR) { continue; }
        if (r <= 0) {
            quantizing_failed(q, "the source cannot be read at byte %lld: %s", (long long) at + (long long) done,
                r == 0 ? "it ends there" : strerror(errno));
            return false;
        }
        done += (size_t) r;
    }
    return true;
}

static bool write_at(quantizing * q, const void * from, size_t n, int64_t at) {
    for (size_t done = 0; done < n;) {
        const ssize_t r = pwrite(q->to, (const char *) from + done, n - done, at + (int64_t) done);
        if (r < 0 && errno == EINTR) { continue; }
        if (r < 0) { quantizing_failed(q, "cannot write: %s", strerror(errno)); return false; }
        done += (size_t) r;
    }
    return true;
}

// Rows [row, row + n) of one matrix, in this thread's buffers.
static bool quantize_chunk(quantizing * q, int64_t row, int64_t n, char * raw, float * values, char * out) {
    const size_t in_row = ggml_row_size(q->source, q->columns), out_row = ggml_row_size(q->type, q->columns);
    if (q->source == GGML_TYPE_F32) { raw = (char *) values; }
    if (!read_at(q, raw, (size_t) n * in_row, q->from_at + row * (int64_t) in_row)) { return false; }
    if (!ggml_validate_row_data(q->source, raw, (size_t) n * in_row)) {
        quantizing_failed(q, "the source has values that are not numbers in rows %lld to %lld", (long long) row, (long long) (row + n - 1));
        return false;
    }
    if (q->source == GGML_TYPE_F16) { ggml_fp16_to_fp32_row((const ggml_fp16_t *) raw, values, n * q->columns); }
    else if (q->source == GGML_TYPE_BF16) { ggml_bf16_to_fp32_row((const ggml_bf16_t *) raw, values, n * q->columns); }
    else if (q->source != GGML_TYPE_F32) {
        for (int64_t i = 0; i < n; i += q->source_interleave) {
            dequantizer_of(q->source)(raw + i * (int64_t) in_row, values + i * q->columns, q->source_interleave * q->columns);
        }
    }
    const float * importance = q->importance ? q->importance + row / q->rows * q->columns : NULL;
    const size_t written = quantize_rows(q->type, values, out, n, q->columns, importance);
    if (written != (size_t) n * out_row || !ggml_validate_row_data(q->type, out, written)) {
        quantizing_failed(q, "what was made of rows %lld to %lld is not valid %s", (long long) row, (long long) (row + n - 1), ggml_type_name(q->type));
        return false;
    }
    return write_at(q, out, written, q->to_at + row * (int64_t) out_row);
}

static void * quantize_some(void * arg) {
    quantizing * q = arg;
    const size_t elements = (size_t) (q->chunk * q->columns);
    char * raw = malloc((size_t) q->chunk * ggml_row_size(q->source, q->columns));
    char * out = malloc((size_t) q->chunk * ggml_row_size(q->type, q->columns));
    float * values = malloc(elements * sizeof *values);
    if (!raw || !out || !values) { quantizing_failed(q, "out of memory for %lld rows", (long long) q->chunk); }
    // Chunks are counted from the first row of each matrix: none reaches into the next.
    const int64_t a_matrix = (q->rows + q->chunk - 1) / q->chunk;
    while (!atomic_load(&q->failed)) {
        const int64_t i = atomic_fetch_add(&q->next, 1);
        const int64_t in_matrix = i % a_matrix * q->chunk;
        const int64_t row = i / a_matrix * q->rows + in_matrix;
        if (row >= q->end) { break; }
        if (row < q->first) { continue; }
        const int64_t n = q->chunk < q->rows - in_matrix ? q->chunk : q->rows - in_matrix;
        if (!quantize_chunk(q, row, n, raw, values, out)) { break; }
    }
    free(raw);
    free(out);
    free(values);
    return NULL;
}

static int64_t wide_integer(const char * key, int64_t low) {
    const double v = number(key, -1);
    if (!(v >= (double) low && v <= 9007199254740992.0)) { fail("%s is %g", key, v); }
    return (int64_t) v;
}

static enum ggml_type tensor_type(const char * key) {
    const int32_t id = integer(key, -1, 0, INT32_MAX);
    const bool known = id < GGML_TYPE_COUNT && ggml_blck_size((enum ggml_type) id) > 0 && ggml_type_size((enum ggml_type) id) > 0;
    if (!known) { fail("this engine has no type %d", id); }
    return (enum ggml_type) id;
}

// The tensor of "matrices" times "rows" rows of "columns" of type "source" at byte "offset" of the file
// "from" becomes "type" in the file "to"; of that, the chunks that begin in rows ["first", "end") of all.
// "importance": columns of every matrix, or none. "memory": bytes for all threads together.
static void op_quantize(void) {
    quantizing * q = take(1, sizeof *q);
    const char * from = string("from"), * to = string("to");
    if (!from || !to) { fail("the request has no 'from' or no 'to'"); }
    q->source = tensor_type("source");
    q->type = tensor_type("type");
    q->columns = wide_integer("columns", 1);
    q->rows = wide_integer("rows", 1);
    q->from_at = wide_integer("offset", 0);
    q->first = wide_integer("first", 0);
    q->end = wide_integer("end", 0);
    q->source_interleave = integer("source_interleave", 1, 1, CHUNK_ROWS);
    const int64_t matrices = wide_integer("matrices", 1);
    if (q->columns % ggml_blck_size(q->type) || q->columns % ggml_blck_size(q->source)) {
        fail("rows of %lld do not divide into blocks of %s", (long long) q->columns, ggml_type_name(q->type));
    }
    if (q->end > q->rows * matrices) { fail("rows up to %lld of %lld", (long long) q->end, (long long) (q->rows * matrices)); }
    int32_t given;
    q->importance = array("importance", &given, false);
    if (q->importance && given != q->columns * matrices) {
        fail("%d values of importance for %lld x %lld", given, (long long) q->columns, (long long) matrices);
    }
    if (!q->importance && ggml_quantize_requires_imatrix(q->type)) { fail("%s needs an importance matrix", ggml_type_name(q->type)); }
    if (ggml_is_quantized(q->source) && !dequantizer_of(q->source)) { fail("this engine cannot convert %s to f32", ggml_type_name(q->source)); }

    const size_t row_bytes = ggml_row_size(q->source, q->columns) + ggml_row_size(q->type, q->columns) + (size_t) q->columns * sizeof(float);
    int32_t threads = integer("threads", 1, 1, 1024);
    const double memory = number("memory", 1e9);
    int64_t chunk = CHUNK_ELEMENTS / q->columns;
    if ((double) chunk * (double) row_bytes * threads > memory) { chunk = (int64_t) (memory / (double) row_bytes / threads); }
    chunk -= chunk % CHUNK_ROWS;
    if (chunk < CHUNK_ROWS) { chunk = CHUNK_ROWS; }
    q->chunk = chunk < q->rows ? chunk : q->rows;
    atomic_init(&q->next, q->first / q->rows * ((q->rows + q->chunk - 1) / q->chunk));
    while (threads > 1 && (double) q->chunk * (double) row_bytes * threads > memory) { threads--; }

    q->from = open(from, O_RDONLY | O_CLOEXEC);
    if (q->from < 0) { fail("cannot open %s: %s", from, strerror(errno)); }
    q->to = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (q->to < 0) {
        const int why = errno;
        close(q->from);
        fail("cannot write %s: %s", to, strerror(why));
    }
    pthread_t ids[1024];
    int32_t started = 0;
    while (started < threads - 1 && pthread_create(&ids[started], NULL, quantize_some, q) == 0) { started++; }
    quantize_some(q);
    while (started > 0) { pthread_join(ids[--started], NULL); }
    close(q->from);
    if (close(q->to) != 0) { quantizing_failed(q, "cannot write %s: %s", to, strerror(errno)); }
    if (atomic_load(&q->failed)) { fail("%s", q->reason); }
}

#endif
