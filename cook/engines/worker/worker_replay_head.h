// The rows of a target, and what a head drafts from them. See worker_heads.h.
#ifndef COOK_WORKER_REPLAY_HEAD_H
#define COOK_WORKER_REPLAY_HEAD_H

#ifdef COOK_HAS_HEADS
// Rows of `text` behind its first `known` tokens, which are in memory, [n, row_size] f4: the first `prompt`
// tokens are read in whole batches, what follows as a reply is. Where a head is loaded next to its
// target, the target's.
static void op_rows(void) {
    need_context();
    if (other.model) { exchange(); }
    int32_t n;
    const int32_t * text = array("text", &n, true);
    check_tokens(text, n);
    if (!has_heads() || ext) { fail("rows are a target's, of an engine that gives them"); }
    if (n > n_ctx) { fail("%d tokens do not fit the context of %d", n, n_ctx); }
    const int32_t n_prompt = integer("prompt", n, 0, n), known = integer("known", 0, 0, n);
    const size_t size = (size_t) row_size(), count = (size_t) (n - known);
    float * rows = take(count * size, 4);
    rows_on(ctx, true, false);
    if (known) { cut(known); } else { forget(); }
    const int64_t t0 = now_ns();
    for (int32_t at = known; at < n;) {
        const int32_t from = at, end = at < n_prompt ? n_prompt : n, most = at < n_prompt ? n_ubatch : reply_rows();
        batch.n_tokens = 0;
        while (at < end && batch.n_tokens < most) { batch_add(text[at], at, false); at++; }
        batch.logits[batch.n_tokens - 1] = true;
        decode();
        const float * got = rows_of(ctx);
        if (!got) { fail("the engine gave no rows of this model"); }
        memcpy(rows + (size_t) (from - known) * size, got, (size_t) (at - from) * size * 4);
    }
    const int64_t t1 = now_ns();
    rows_on(ctx, false, false);
    forget();
    put_field(",\"read_ns\":%lld", (long long) (t1 - t0));
    put_array("rows", "f4", rows, (uint64_t) count * size);
}

// All that a head drafts over a reply: [n, depth] tokens and confidences, entry i from emitted[i - 1].
//
// Behind every verification a server gives the head the accepted tokens with the target's own rows,
// and cuts what was drafted (common_speculative_impl_draft_mtp; ik: mtp_accept_batch). So each draft begins on one
// teacher-forced pass, as a short branch of its own: a wave of `wave` branches shares that pass's
// cells, and none leaves a trace. A branch ends at its first wrong token, but with `floor` > 0 not
// before its first confidence below that; what lies behind has id -1. `rows` [n_prompt + n - 1] are the target's;
// `before` is what the request before left, zeros at first. Where `known`, the tokens of such a replay, are
// given, the same batches are decoded, and nothing is taken of what comes back.
static void op_replay_head(void) {
    need_context();
    int32_t n_prompt, n, n_rows, n_before, n_known;
    const int32_t * prompt = array("prompt", &n_prompt, true), * emitted = array("emitted", &n, true);
    const int32_t * known = array("known", &n_known, false);
    const float * rows = array("rows", &n_rows, true), * before = array("before", &n_before, false);
    check_tokens(prompt, n_prompt);
    check_tokens(emitted, n);
    if (!ext) { fail("no head is loaded"); }
    const int32_t size = row_size(), depth = integer("depth", 1, 1, 256), total = n_prompt + n - 1;
    const int32_t wave = integer("wave", n_branches, 1, n_branches);
    const float floor_at = (float) number("floor", 0.0);
    if (n_prompt < 1 || n < 1 || n_rows != total * size || (n_before && n_before != size)) { fail("%d numbers of rows for %d tokens of %d", n_rows, total, size); }
    if (total + wave * depth > n_ctx) { fail("%d tokens and %d branches of %d do not fit the context of %d", total, wave, depth, n_ctx); }
    const size_t c = (size_t) n * (size_t) depth;
    if (known && (size_t) n_known != c) { fail("%d known tokens for %d drafts of %d", n_known, n, depth); }
    int32_t * ids = take(c, 4);
    float * conf = take(c, 4), * own = take((size_t) total * (size_t) size, 4);
    for (size_t i = 0; i < c; i++) { ids[i] = known ? known[i] : -1; conf[i] = 0.0f; }
    int64_t tokens = 0, passes = 0, t0 = now_ns();
    forget();
    // Rows that come back are a batch's first ones, whichever were asked for: all outputs, or none.
    for (int32_t at = 0; at < total;) {
        const bool output = at >= n_prompt;
        const int32_t from = at, end = output ? total : n_prompt, width = output ? reply_rows() : n_ubatch;
        batch.n_tokens = 0;
        for (; at < end && batch.n_tokens < width; at++) {
            row_in[batch.n_tokens] = at ? rows + (size_t) (at - 1) * (size_t) size : before;
            batch_add(at < n_prompt ? prompt[at] : emitted[at - n_prompt], at, output);
        }
        decode();
        passes++; tokens += batch.n_tokens;
        for (int32_t i = from; output && !known && i < at; i++) {
            const row_result r = reduce_one(i - from);
            const size_t entry = (size_t) (i - n_prompt + 1) * (size_t) depth;
            ids[entry] = r.argmax; conf[entry] = confidence_of(&r);
            memcpy(own + (size_t) i * (size_t) size, row_at(ctx, i - from), (size_t) size * 4);
        }
    }
    int32_t * start = take((size_t) wave, 4), * row = take((size_t) wave, 4);
    bool * right = take((size_t) wave, 1), * sure = take((size_t) wave, 1);
    // Position `at` begins entry `at - n_prompt + 1`: its first guess is emitted[entry].
    for (int32_t at = n_prompt; at < total;) {
        int32_t count = 0;
        for (; at < total && count < wave; at++) {
            const int32_t entry = at - n_prompt + 1;
            right[count] = ids[(size_t) entry * depth] == emitted[entry];
            sure[count] = floor_at > 0.0f && conf[(size_t) entry * depth] >= floor_at;
            start[count] = at;
            count += right[count] || sure[count];
        }
        for (int32_t j = 0; j < count; j++) { kv_share(ctx, j + 1, start[j] + 1); }
        for (int32_t k = 1; k < depth; k++) {
            int32_t used = 0;
            batch.n_tokens = 0;
            for (int32_t j = 0; j < count; j++) {
                if (!right[j] && !sure[j]) { continue; }
                const size_t entry = (size_t) (start[j] - n_prompt + 1) * (size_t) depth;
                row_in[batch.n_tokens] = own + (size_t) start[j] * (size_t) size;
                batch_add_to(j + 1, ids[entry + (size_t) k - 1], start[j] + k, true);
                row[used++] = j;
            }
            if (!used) { break; }
            decode();
            passes++; tokens += used;
            for (int32_t x = 0; x < used; x++) {
                const int32_t j = row[x], first = start[j] - n_prompt + 1;
                const size_t entry = (size_t) first * (size_t) depth;
                if (!known) {
                    const row_result r = reduce_one(x);
                    ids[entry + (size_t) k] = r.argmax; conf[entry + (size_t) k] = confidence_of(&r);
                    memcpy(own + (size_t) start[j] * (size_t) size, row_at(ctx, x), (size_t) size * 4);
                }
                right[j] = right[j] && first + k < n && ids[entry + (size_t) k] == emitted[first + k];
                sure[j] = sure[j] && conf[entry + (size_t) k] >= floor_at;
            }
        }
        for (int32_t j = 0; j < count; j++) { kv_cut_of(ctx, j + 1, 0); }
    }
    put_field(",\"replay_ns\":%lld,\"head_tokens\":%lld,\"passes\":%lld", (long long) (now_ns() - t0), (long long) tokens, (long long) passes);
    put_array("tokens", "i4", ids, c);
    put_array("confidence", "f4", conf, c);
}
#endif
#endif
