// How a model is loaded: the library's own parameters by name, and where tensors go.
//
// worker_members.h is written by compile.py from the engine's llama.h: COOK_MODEL_MEMBERS(M) and
// COOK_CONTEXT_MEMBERS(M) name every plain number of the two structs, so that one source sets what
// this very version has. A request says "model.NAME" or "context.NAME".
#ifndef COOK_WORKER_PARAMS_H
#define COOK_WORKER_PARAMS_H

#include "worker_compat.h"
#include "worker_frames.h"
#include "worker_members.h"

#include <stddef.h>

typedef struct { const char * name; size_t at; char kind; } parameter;

#define COOK_KIND(x) _Generic((x), bool: 'b', float: 'f', default: 'i')
#define COOK_OF_MODEL(n) { "model." #n, offsetof(struct llama_model_params, n), COOK_KIND(((struct llama_model_params *) 0)->n) },
#define COOK_OF_CONTEXT(n) { "context." #n, offsetof(struct llama_context_params, n), COOK_KIND(((struct llama_context_params *) 0)->n) },
static const parameter parameters[] = { COOK_MODEL_MEMBERS(COOK_OF_MODEL) COOK_CONTEXT_MEMBERS(COOK_OF_CONTEXT) };
enum { N_PARAMETERS = sizeof parameters / sizeof *parameters };

static char * parameter_at(const parameter * p, struct llama_model_params * m, struct llama_context_params * c) {
    return (p->name[0] == 'm' ? (char *) m : (char *) c) + p->at;
}

static enum ggml_type kv_type(const char * name) {
    for (int i = 0; i < (int) GGML_TYPE_COUNT; i++) {
        const char * have = ggml_type_name((enum ggml_type) i);
        if (have && strcasecmp(have, name) == 0) { return (enum ggml_type) i; }
    }
    fail("this engine has no KV cache type '%s'", name);
}

// A text is the name of a tensor type.
static void set_parameters(struct llama_model_params * m, struct llama_context_params * c) {
    for (int i = 0; i < N_PARAMETERS; i++) {
        const parameter * p = &parameters[i];
        const char * said = find(p->name);
        if (!said) { continue; }
        char * to = parameter_at(p, m, c);
        if (p->kind == 'b') { *(bool *) to = number(p->name, 0) != 0; }
        else if (p->kind == 'f') { *(float *) to = (float) number(p->name, 0); }
        else { *(int32_t *) to = *said == '"' ? (int32_t) kv_type(string(p->name)) : integer(p->name, 0, INT32_MIN, INT32_MAX); }
    }
}

static void put_parameters(struct llama_model_params * m, struct llama_context_params * c) {
    put_field(",\"parameters\":{");
    for (int i = 0; i < N_PARAMETERS; i++) {
        const parameter * p = &parameters[i];
        const char * at = parameter_at(p, m, c);
        const double value = p->kind == 'b' ? *(const bool *) at : p->kind == 'f' ? *(const float *) at : *(const int32_t *) at;
        put_field("%s\"%s\":%.9g", i ? "," : "", p->name, value);
    }
    put_field("}");
}

static void put_parameter_names(void) {
    put_field(",\"parameters\":[");
    for (int i = 0; i < N_PARAMETERS; i++) { put_field("%s\"%s\"", i ? "," : "", parameters[i].name); }
    put_field("]");
}

// ---------------------------------------------------------------- where tensors go

typedef struct {
    struct llama_model_tensor_buft_override * overrides;
    float * shares;
    char * texts[2];
#ifndef COOK_IK
    ggml_backend_dev_t * devices;
#endif
} placement;

static void forget_placement(placement * p) {
    free(p->overrides);
    free(p->shares);
    free(p->texts[0]);
    free(p->texts[1]);
#ifndef COOK_IK
    free(p->devices);
#endif
    *p = (placement) { 0 };
}

static void * keep(size_t count, size_t size) {
    void * p = calloc(count, size);
    if (!p) { fail("out of memory (%zu x %zu bytes)", count, size); }
    return p;
}

static char * keep_text(const char * text) { return strcpy(keep(strlen(text) + 1, 1), text); }

static int count_of(const char * text, char what) {
    int n = 0;
    for (; *text; text++) { n += *text == what; }
    return n;
}

// The buffer type that the servers' --override-tensor would find under this name.
static ggml_backend_buffer_type_t buffer_type(const char * name) {
    if (strcmp(name, "CPU") == 0) { return ggml_backend_cpu_buffer_type(); }
#ifdef COOK_IK
    for (size_t i = 0; i < ggml_backend_reg_get_count(); i++) {
        ggml_backend_buffer_type_t have = ggml_backend_reg_get_default_buffer_type(i);
        if (have && strcmp(ggml_backend_buft_name(have), name) == 0) { return have; }
    }
#else
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_buffer_type_t have = ggml_backend_dev_buffer_type(ggml_backend_dev_get(i));
        if (have && strcmp(ggml_backend_buft_name(have), name) == 0) { return have; }
    }
#endif
    fail("this engine has no device memory called '%s' here", name);
}

// "overrides": PATTERN=BUFFER, one a line; "tensor_split": numbers with commas; "devices": names
// with commas.
static void place(struct llama_model_params * m, placement * to) {
    const char * lines = string("overrides");
    if (lines) {
        to->texts[0] = keep_text(lines);
        to->overrides = keep((size_t) count_of(lines, '\n') + 2, sizeof *to->overrides);
        int n = 0;
        for (char * line = strtok(to->texts[0], "\n"); line; line = strtok(NULL, "\n")) {
            char * is = strrchr(line, '=');
            if (!is) { fail("an override of tensors without '=': %s", line); }
            *is = 0;
            to->overrides[n++] = (struct llama_model_tensor_buft_override) { line, buffer_type(is + 1) };
        }
        m->tensor_buft_overrides = to->overrides;
    }
    const char * shares = string("tensor_split");
    if (shares) {
        const size_t most = llama_max_devices();
        to->shares = keep(most > 128 ? most : 128, sizeof *to->shares);
        size_t n = 0;
        for (const char * p = shares; *p;) {
            char * end;
            if (n >= most) { fail("tensor_split names more devices than the %zu that this engine can use", most); }
            to->shares[n++] = strtof(p, &end);
            if (end == p) { fail("tensor_split is not numbers with commas: %s", shares); }
            p = *end ? end + 1 : end;
        }
        m->tensor_split = to->shares;
    }
    const char * devices = string("devices");
    if (devices) {
        to->texts[1] = keep_text(devices);
#ifdef COOK_IK
        m->devices = to->texts[1];
#else
        to->devices = keep((size_t) count_of(devices, ',') + 2, sizeof *to->devices);
        int n = 0;
        for (char * name = strtok(to->texts[1], ","); name && strcmp(name, "none") != 0; name = strtok(NULL, ",")) {
            to->devices[n] = ggml_backend_dev_by_name(name);
            if (!to->devices[n++]) { fail("this engine has no device called '%s' here", name); }
        }
        m->devices = to->devices;
#endif
    }
}

#endif
