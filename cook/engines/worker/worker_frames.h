// Frames, the flat JSON header, errors, and memory of one request.
#ifndef COOK_WORKER_FRAMES_H
#define COOK_WORKER_FRAMES_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define PROTOCOL 1
#define HEADER_MAX (1u << 20)
#define PAYLOAD_MAX (1ull << 31)

static jmp_buf on_error;
static char error_text[1024];

__attribute__((noreturn, format(printf, 1, 2)))
static void fail(const char * format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error_text, sizeof error_text, format, args);
    va_end(args);
    longjmp(on_error, 1);
}

// Everything a request allocates, freed when it ends, however it ends.
static void * owned[64];
static int n_owned;

static void * take(size_t count, size_t size) {
    if (n_owned == 64) { fail("worker bug: too many allocations in one request"); }
    void * p = calloc(count ? count : 1, size);
    if (!p) { fail("out of memory (%zu x %zu bytes)", count, size); }
    return owned[n_owned++] = p;
}

static void release_all(void) {
    while (n_owned > 0) { free(owned[--n_owned]); }
}

static int reply_fd;

static void read_exact(void * to, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t r = read(0, (char *) to + done, n - done);
        if (r == 0) { _exit(0); }  // the client went away
        if (r < 0 && errno != EINTR) { _exit(4); }
        if (r > 0) { done += (size_t) r; }
    }
}

static void write_exact(const void * from, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t r = write(reply_fd, (const char *) from + done, n - done);
        if (r < 0 && errno != EINTR) { _exit(4); }
        if (r > 0) { done += (size_t) r; }
    }
}

static char * head;            // header of the request in hand
static unsigned char * body;   // its payload
static uint64_t body_size;

static struct { const char * name; const char * type; const void * data; uint64_t count; } out_arrays[32];
static int n_out_arrays;
static char fields[16384];      // scalars of the reply, as JSON after a comma
static size_t n_fields;

static void put_array(const char * name, const char * type, const void * data, uint64_t count) {
    if (n_out_arrays == 32) { fail("worker bug: too many arrays"); }
    out_arrays[n_out_arrays].name = name;
    out_arrays[n_out_arrays].type = type;
    out_arrays[n_out_arrays].data = data;
    out_arrays[n_out_arrays++].count = count;
}

__attribute__((format(printf, 1, 2)))
static void put_field(const char * format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(fields + n_fields, sizeof fields - n_fields, format, args);
    va_end(args);
    if (n < 0 || n_fields + (size_t) n >= sizeof fields) { fail("worker bug: reply header too long"); }
    n_fields += (size_t) n;
}

static void escape(char * to, size_t cap, const char * from) {
    size_t n = 0;
    for (; *from && n + 7 < cap; from++) {
        const unsigned char c = (unsigned char) *from;
        if (c == '"' || c == '\\') { to[n++] = '\\'; to[n++] = (char) c; }
        else if (c < 0x20) { n += (size_t) snprintf(to + n, 7, "\\u%04x", c); }
        else { to[n++] = (char) c; }
    }
    to[n] = 0;
}

static size_t type_size(const char * type) { return strcmp(type, "u1") == 0 ? 1 : type[1] == '8' ? 8 : 4; }

static void send_reply(bool ok) {
    char text[32768];
    size_t n;
    uint64_t payload = 0;
    if (ok) {
        n = (size_t) snprintf(text, sizeof text, "{\"ok\":true,\"arrays\":[");
        for (int i = 0; i < n_out_arrays; i++) {
            n += (size_t) snprintf(text + n, sizeof text - n, "%s[\"%s\",\"%s\",%llu]", i ? "," : "",
                out_arrays[i].name, out_arrays[i].type, (unsigned long long) out_arrays[i].count);
            payload += out_arrays[i].count * type_size(out_arrays[i].type);
        }
        n += (size_t) snprintf(text + n, sizeof text - n, "]%s}", fields);
    } else {
        char safe[2048];
        escape(safe, sizeof safe, error_text);
        n = (size_t) snprintf(text, sizeof text, "{\"ok\":false,\"error\":\"%s\"}", safe);
    }
    const uint32_t header = (uint32_t) n;
    write_exact("COOK", 4);
    write_exact(&header, 4);
    write_exact(&payload, 8);
    write_exact(text, n);
    if (ok) {
        for (int i = 0; i < n_out_arrays; i++) {
            write_exact(out_arrays[i].data, out_arrays[i].count * type_size(out_arrays[i].type));
        }
    }
}

static const char * skip_string(const char * p) {  // p at the opening quote; returns past the closing
    for (p++; *p && *p != '"'; p++) { if (*p == '\\' && p[1]) { p++; } }
    return *p ? p + 1 : p;
}

// The value of `key` in the flat header, or NULL.
static const char * find(const char * key) {
    const size_t len = strlen(key);
    for (const char * p = head; *p;) {
        if (*p != '"') { p++; continue; }
        const char * start = p + 1;
        const char * end = skip_string(p);
        p = end;
        while (*p == ' ') { p++; }
        if (*p != ':') { continue; }
        for (p++; *p == ' '; p++) {}
        if ((size_t) (end - 1 - start) == len && memcmp(start, key, len) == 0) { return p; }
        if (*p == '"') { p = skip_string(p); }
    }
    return NULL;
}

static double number(const char * key, double fallback) {
    const char * v = find(key);
    if (!v || *v == 'n') { return fallback; }
    if (*v == 't' || *v == 'f') { return *v == 't'; }
    return strtod(v, NULL);
}

static int32_t integer(const char * key, int32_t fallback, int32_t low, int32_t high) {
    const double v = number(key, fallback);
    if (!(v >= low && v <= high)) { fail("%s is %g, outside [%d, %d]", key, v, low, high); }
    return (int32_t) v;
}

static char * string(const char * key) {  // NULL when absent
    const char * v = find(key);
    if (!v || *v != '"') { return NULL; }
    const char * end = skip_string(v);
    char * to = take((size_t) (end - v), 1), * o = to;
    for (v++; v < end - 1; v++) {
        if (*v != '\\') { *o++ = *v; continue; }
        v++;
        if (*v == 'n') { *o++ = '\n'; }
        else if (*v == 't') { *o++ = '\t'; }
        else if (*v == 'u') { char hex[5] = { v[1], v[2], v[3], v[4], 0 }; *o++ = (char) strtol(hex, NULL, 16); v += 4; }
        else { *o++ = *v; }
    }
    return to;
}

static const void * array(const char * name, int32_t * count, bool needed) {
    char key[64];
    snprintf(key, sizeof key, "%s@", name);
    const double at = number(key, -1);
    snprintf(key, sizeof key, "%s#", name);
    const double n = number(key, 0);
    *count = 0;
    if (at < 0) {
        if (needed) { fail("the request has no array '%s'", name); }
        return NULL;
    }
    if (n < 0 || n > INT32_MAX || (uint64_t) at % 4 || at + n * 4 > (double) body_size) { fail("array '%s' lies outside the payload", name); }
    *count = (int32_t) n;
    return body + (uint64_t) at;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

#endif
