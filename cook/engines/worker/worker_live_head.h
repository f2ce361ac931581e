// A head driven as mainline's server drives it, next to its target. See worker_heads.h.
#ifndef COOK_WORKER_LIVE_HEAD_H
#define COOK_WORKER_LIVE_HEAD_H

#if defined(COOK_HAS_HEADS) && !defined(COOK_IK)
// Has the target decode t[0..n) at `pos`, and the head the same with the target's rows, `pending` before
// the first: common_speculative_impl_draft_mtp::process. `rows` [n] are the target's.
static void decode_both(const int32_t * t, int32_t n, int32_t pos, bool all_outputs, float * rows, float * pending) {
    const size_t size = (size_t) row_size();
    exchange();
    batch.n_tokens = 0;
    for (int32_t i = 0; i < n; i++) { batch_add(t[i], pos + i, all_outputs || i == n - 1); }
    decode();
    const float * got = rows_of(ctx);
    if (!got) { fail("the engine gave no rows of this model"); }
    memcpy(rows, got, (size_t) n * size * 4);
    exchange();
    batch.n_tokens = 0;
    for (int32_t i = 0; i < n; i++) {
        row_in[i] = i ? rows + (size_t) (i - 1) * size : pending;
        batch_add(t[i], pos + i, false);
    }
    decode();
    memcpy(pending, rows + (size_t) (n - 1) * size, size * 4);
}

// Begins a request of a head next to its target, as op_live_shapes does: both read `prompt`. `before` is
// the row that the request before left in the server, zeros at first; `rows` are the prompt's.
static void op_begin_head(void) {
    need_context();
    int32_t n_prompt, n_before;
    const int32_t * prompt = array("prompt", &n_prompt, true);
    const float * before = array("before", &n_before, false);
    check_tokens(prompt, n_prompt);
    if (!ext || !other.model) { fail("no head is loaded next to its target"); }
    const int32_t size = row_size();
    if (n_prompt < 1 || n_prompt >= other.n_ctx) { fail("a prompt of %d tokens does not fit the context of %d", n_prompt, other.n_ctx); }
    if (n_before && n_before != size) { fail("a row of %d numbers, not %d", n_before, size); }
    float * pending = take((size_t) size, 4), * rows = take((size_t) n_prompt * (size_t) size, 4);
    if (before) { memcpy(pending, before, (size_t) size * 4); }
    forget();
    exchange();
    rows_on(ctx, true, false);
    forget();
    exchange();
    for (int32_t at = 0; at < n_prompt; at += n_batch) {
        const int32_t n = n_prompt - at < n_batch ? n_prompt - at : n_batch;
        decode_both(prompt + at, n, at, false, rows + (size_t) at * (size_t) size, pending);
    }
    put_array("rows", "f4", rows, (uint64_t) n_prompt * (uint64_t) size);
}

// One step of such a request. `text` is the token at `past` and those that the target wrote behind it.
// `first` is what others drafted; where there is none, the head drafts n_max tokens, but none below
// p_min, and at most `room` of them are verified.
static void op_step_head(void) {
    need_context();
    int32_t n, n_first, n_before;
    const int32_t * text = array("text", &n, true), * first = array("first", &n_first, false);
    const float * before = array("before", &n_before, true);
    check_tokens(text, n);
    check_tokens(first, n_first);
    if (!ext || !other.model) { fail("no head is loaded next to its target"); }
    const int32_t size = row_size(), n_max = integer("n_max", 3, 0, n_batch - 1), n_min = integer("n_min", 0, 0, 1024);
    const int32_t past = integer("past", 1, 1, other.n_ctx - 1), room = integer("room", 0, 0, other.n_ctx);
    const float p_min = (float) number("p_min", 0.0);
    if (n < 1 || n_before != size || n_first > room || n_first >= n_batch) { fail("a step of %d and %d tokens at %d, where %d fit", n, n_first, past, room); }
    float * pending = take((size_t) size, 4), * rows = take((size_t) n_batch * (size_t) size, 4), * own = take((size_t) size, 4);
    int32_t * drafts = take((size_t) n_batch, 4), count = n_first, right = 0;
    memcpy(pending, before, (size_t) size * 4);
    drafts[0] = text[0];
    for (int32_t i = 0; i < n_first; i++) { drafts[1 + i] = first[i]; }
    while (room > 0 && !n_first && count < n_max) {  // whatever fits: it is cut to the room behind
        row_in[0] = count ? own : pending;
        batch.n_tokens = 0;
        batch_add(drafts[count], past + count, true);
        decode();
        const row_result r = reduce_one(0);
        if (r.confidence < p_min) { break; }
        memcpy(own, row_at(ctx, 0), (size_t) size * 4);
        drafts[++count] = r.argmax;
    }
    cut(past);
    if (!n_first && count < n_min) { count = 0; }
    if (count > room) { count = room; }
    decode_both(drafts, count + 1, past, true, rows, pending);
    while (right < count && right + 1 < n && drafts[right + 1] == text[right + 1]) {
        if (is_eog(other.model, drafts[right + 1]) && right + 1 < count) { break; }
        right++;
    }
    cut(past + right + 1);
    exchange();
    cut(past + right + 1);
    exchange();
    put_field(",\"draft_n\":%d,\"draft_n_accepted\":%d", count, right);
    put_array("row", "f4", rows + (size_t) right * (size_t) size, (uint64_t) size);
}
#endif
#endif
