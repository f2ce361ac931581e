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

// As op_live_shapes, of a head next to its target: mainline's common_speculative_impl_draft_mtp.
// `before` is the row that the request before left in the server, zeros at first; `row` is what
// this one leaves.
static void op_live_shapes_head(void) {
    need_context();
    int32_t n_prompt, n, n_before;
    const int32_t * prompt = array("prompt", &n_prompt, true), * emitted = array("emitted", &n, true);
    const float * before = array("before", &n_before, false);
    check_tokens(prompt, n_prompt);
    check_tokens(emitted, n);
    if (!ext || !other.model) { fail("no head is loaded next to its target"); }
    const int32_t size = row_size(), n_max = integer("n_max", 3, 1, n_batch - 1), n_min = integer("n_min", 0, 0, 1024);
    const float p_min = (float) number("p_min", 0.0);
    const int32_t limit = integer("n_predict", n, 1, INT32_MAX), server_ctx = integer("server_ctx", other.n_ctx, 1, other.n_ctx);
    if (n_prompt < 1 || n < 1 || n_prompt + n > server_ctx) { fail("%d + %d tokens do not fit the context of %d", n_prompt, n, server_ctx); }
    if (n_before && n_before != size) { fail("a row of %d numbers, not %d", n_before, size); }
    float * pending = take((size_t) size, 4), * rows = take((size_t) n_batch * (size_t) size, 4), * own = take((size_t) size, 4);
    int32_t * drafts = take((size_t) n_max + 1, 4);
    int32_t drafted = 0, accepted = 0, plain = 0;
    if (before) { memcpy(pending, before, (size_t) size * 4); }
    forget();
    exchange();
    rows_on(ctx, true, false);
    forget();
    exchange();
    for (int32_t at = 0; at < n_prompt; at += n_batch) {
        decode_both(prompt + at, n_prompt - at < n_batch ? n_prompt - at : n_batch, at, false, rows, pending);
    }
    for (int32_t i = 1; i < n;) {
        const int32_t past = n_prompt + i - 1, left = limit - i - 1;  // tokens before the last emitted one, which is at `past`
        const int32_t room = server_ctx - past - 2 < left ? server_ctx - past - 2 : left;
        int32_t count = 0, right = 0;
        drafts[0] = emitted[i - 1];
        while (room > 0 && count < n_max) {  // whatever fits: it is cut to the room behind
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
        if (count < n_min) { count = 0; }
        if (count > room) { count = room > 0 ? room : 0; }
        decode_both(drafts, count + 1, past, true, rows, pending);
        while (right < count && i + right < n && drafts[right + 1] == emitted[i + right]) {
            if (is_eog(other.model, emitted[i + right]) && right + 1 < count) { break; }
            right++;
        }
        memcpy(pending, rows + (size_t) right * (size_t) size, (size_t) size * 4);
        drafted += count; accepted += right; plain += !count;
        i += right + 1;
        cut(n_prompt + i - 1);
        exchange();
        cut(n_prompt + i - 1);
        exchange();
    }
    put_field(",\"draft_n\":%d,\"draft_n_accepted\":%d,\"plain_steps\":%d", drafted, accepted, plain);
    put_array("row", "f4", pending, (uint64_t) size);
}
#endif
#endif
