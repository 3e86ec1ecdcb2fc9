/* The C interface between machines: one context serves, another copies to it and tells it so. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <sidestep/sidestep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/check.h"

static void test_what_is_refused(sidestep_context* context) {
    sidestep_serve_options options = SIDESTEP_SERVE_OPTIONS;
    sidestep_serving* serving = NULL;
    char* text = NULL;
    CHECK(sidestep_serve(NULL, &options, &serving) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_serve(context, &options, NULL) == SIDESTEP_INVALID_ARGUMENT);
    options.allow = "nonsense";
    CHECK(sidestep_serve(context, &options, &serving) == SIDESTEP_INVALID_ARGUMENT && serving == NULL);
    options.struct_size = 8;
    CHECK(sidestep_serve(context, &options, &serving) == SIDESTEP_INVALID_ARGUMENT && serving == NULL);
    CHECK(strstr(sidestep_last_error()->message, "struct_size") != NULL);
    CHECK(sidestep_notify(NULL, "n", "x", 1) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_notify(context, NULL, "x", 1) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_notify(context, "n", NULL, 1) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_next_notification(NULL, 0, NULL, &text, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_serving_address(NULL, 0) == NULL);
    CHECK(sidestep_serving_key_file(NULL) == NULL);
    sidestep_serving_free(NULL);
}

static void test_a_put_and_its_notification(sidestep_context* context, const char* folder) {
    char allow[600], path[600], place[620], key[600];
    snprintf(path, sizeof(path), "%s/put", folder);
    snprintf(allow, sizeof(allow), "host=1MiB,file:%s=rw", folder);
    snprintf(place, sizeof(place), "n/file:%s", path);
    snprintf(key, sizeof(key), "%s/key", folder);
    setenv("SIDESTEP_KEY_FILE", key, 1);
    sidestep_serve_options options = SIDESTEP_SERVE_OPTIONS;
    options.listen = "127.0.0.1:0";
    options.allow = allow;
    options.rate = UINT64_C(1) << 30;
    options.notifications = 1;
    sidestep_serving* serving = NULL;
    CHECK(sidestep_serve(context, &options, &serving) == SIDESTEP_OK);
    if (serving == NULL) return;
    CHECK(strcmp(sidestep_serving_key_file(serving), key) == 0);
    CHECK(sidestep_serving_address(serving, 1) == NULL);

    sidestep_context* client = NULL;
    CHECK(sidestep_open("dgx-h100", &client) == SIDESTEP_OK);
    CHECK(sidestep_connect(client, "n", sidestep_serving_address(serving, 0)) == SIDESTEP_OK);
    char bytes[] = "some bytes";
    const sidestep_buffer from = {"host", bytes, 0, sizeof(bytes)};
    const sidestep_buffer to = {place, NULL, 0, SIDESTEP_WHOLE};
    CHECK(sidestep_copy(client, &from, &to, NULL, NULL) == SIDESTEP_OK);
    CHECK(sidestep_notify(client, "n", "a\0b", 3) == SIDESTEP_OK);
    CHECK(sidestep_notify(client, "n", "", 0) == SIDESTEP_OUT_OF_MEMORY);

    char *who = NULL, *text = NULL;
    size_t count = 0;
    CHECK(sidestep_next_notification(serving, 0, &who, &text, &count) == SIDESTEP_OK);
    CHECK(count == 3 && memcmp(text, "a\0b", 4) == 0);
    CHECK(who != NULL && strncmp(who, "127.0.0.1:", 10) == 0);
    sidestep_free(who);
    sidestep_free(text);
    FILE* file = fopen(path, "rb");
    char read[sizeof(bytes)] = "";
    CHECK(file != NULL && fread(read, 1, sizeof(read), file) == sizeof(read) && strcmp(read, bytes) == 0);
    if (file != NULL) fclose(file);
    CHECK(sidestep_next_notification(serving, 1, NULL, &text, NULL) == SIDESTEP_TIMED_OUT);
    sidestep_serving_free(serving);
    CHECK(sidestep_notify(client, "n", "x", 1) != SIDESTEP_OK);
    sidestep_close(client);
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    sidestep_context* context = NULL;
    CHECK(sidestep_open("dgx-h100", &context) == SIDESTEP_OK);
    if (context == NULL) return 1;
    test_what_is_refused(context);
    test_a_put_and_its_notification(context, argv[1]);
    sidestep_close(context);
    if (failures == 0) puts("all checks hold");
    return failures == 0 ? 0 : 1;
}
