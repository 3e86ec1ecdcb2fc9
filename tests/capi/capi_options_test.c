/* Every option at the ends of its range and beyond, as a C program gives it. */
#include <errno.h>
#include <sidestep/sidestep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { size = 300005 };

typedef struct option_case {
    const char* option;
    const char* value;
    const char* verdict;
} option_case;

static const option_case cases[] = {
#define OPTION_CASE(where, option, value, verdict) {#option, #value, #verdict},
#include "tests/option_cases.h"
#undef OPTION_CASE
};

static int failures = 0;

/* Members are unsigned here; a value that one does not hold is passed over. */
static int set(sidestep_options* options, const option_case* given) {
    char* end = NULL;
    errno = 0;
    const unsigned long long value = strtoull(given->value, &end, 10);
    if (errno != 0 || *end != '\0' || given->value[0] == '-') return 0;
    uint32_t* narrow = NULL;
    uint64_t* wide = NULL;
    if (strcmp(given->option, "require") == 0) narrow = &options->require;
    if (strcmp(given->option, "prefer") == 0) narrow = &options->prefer;
    if (strcmp(given->option, "lanes") == 0) narrow = &options->lanes;
    if (strcmp(given->option, "deadline") == 0) wide = &options->deadline_ms;
    if (strcmp(given->option, "stall_limit") == 0) wide = &options->stall_limit_ms;
    if (strcmp(given->option, "max_staging") == 0) wide = &options->max_staging;
    if (strcmp(given->option, "chunk") == 0) wide = &options->chunk;
    if (wide != NULL) *wide = value;
    if (narrow != NULL) *narrow = (uint32_t)value;
    return wide != NULL || (narrow != NULL && value <= UINT32_MAX);
}

/* That of the table, but for the values that say "no limit" and "the default" here. */
static const char* verdict_of(const option_case* given, const sidestep_options* options) {
    if (options->deadline_ms == SIDESTEP_NO_LIMIT || options->stall_limit_ms == SIDESTEP_NO_LIMIT) return "taken";
    return given->verdict;
}

static int names_range(const option_case* given) {
    char start[64];
    const sidestep_error* error = sidestep_last_error();
    snprintf(start, sizeof start, "%s is %s", given->option, given->value);
    return strncmp(error->message, start, strlen(start)) == 0 && strstr(error->hint, "it may be 0 (") != NULL;
}

static int expect(const option_case* given, const sidestep_options* options, sidestep_status status,
                  const char* what) {
    const char* verdict = verdict_of(given, options);
    int well = status == SIDESTEP_OK;
    if (strcmp(verdict, "refused") == 0) well = status == SIDESTEP_INVALID_ARGUMENT && names_range(given);
    if (strcmp(verdict, "tight") == 0)
        well = well || status == SIDESTEP_TIMED_OUT || status == SIDESTEP_PATH_UNAVAILABLE;
    if (well) return status == SIDESTEP_OK;
    fprintf(stderr, "%s = %s has to be %s, %s: %d %s. %s\n", given->option, given->value, verdict, what, (int)status,
            sidestep_last_error()->message, sidestep_last_error()->hint);
    ++failures;
    return 0;
}

int main(int argc, char** argv) {
    if (argc != 2) return 1;
    char source[600];
    char target[600];
    snprintf(source, sizeof source, "file:%s/options_source", argv[1]);
    snprintf(target, sizeof target, "file:%s/options_target", argv[1]);
    static unsigned char from[size];
    static unsigned char to[size];
    for (int i = 0; i < size; ++i) from[i] = (unsigned char)((unsigned)i * 2654435761u >> 13);
    sidestep_context* context = NULL;
    sidestep_allocation* memory = NULL;
    if (sidestep_open("dgx-h100", &context) != SIDESTEP_OK ||
        sidestep_allocate(context, "gpu:0", size, &memory) != SIDESTEP_OK)
        return 1;
    const sidestep_buffer a = {source, NULL, 0, SIDESTEP_WHOLE};
    const sidestep_buffer b = {target, NULL, 0, SIDESTEP_WHOLE};
    const sidestep_buffer bytes = {"host", from, 0, size};
    const sidestep_buffer back = {"host", to, 0, size};
    const sidestep_buffer gpu = sidestep_allocation_buffer(memory);
    if (sidestep_copy(context, &bytes, &a, NULL, NULL) != SIDESTEP_OK) return 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        sidestep_options options = SIDESTEP_OPTIONS;
        if (!set(&options, &cases[i])) continue;
        expect(&cases[i], &options, sidestep_copy(context, &a, &b, &options, NULL), "file to file");
        expect(&cases[i], &options, sidestep_copy(context, &a, &gpu, &options, NULL), "file to gpu");
        memset(to, 0, size);
        if (expect(&cases[i], &options, sidestep_copy(context, &a, &back, &options, NULL), "file to host") &&
            memcmp(from, to, size) != 0)
            ++failures;
        const sidestep_batch_item items[] = {{a, b}, {bytes, gpu}};
        expect(&cases[i], &options, sidestep_copy_batch(context, items, 2, &options, NULL), "a batch");
        char* text = NULL;
        expect(&cases[i], &options,
               sidestep_route(context, "gpu:0", "gpu:5", size, &options, SIDESTEP_TEXT, &text), "a route");
        sidestep_free(text);
    }
    sidestep_release(memory);
    sidestep_close(context);
    if (failures == 0) puts("all options are as the table has them");
    return failures == 0 ? 0 : 1;
}
