/* The C interface, compiled as C: what it promises, and that it says no without falling over. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <fcntl.h>
#include <poll.h>
#include <sidestep/sidestep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/capi/check.h"

enum { size = 3 * 1024 * 1024 + 5 };

static char source_path[512];
static char target_path[512];
static char source_place[520];
static char target_place[520];

static unsigned char* make_bytes(void) {
    unsigned char* bytes = malloc(size);
    uint32_t state = 1;
    for (int i = 0; i < size; ++i) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(state >> 24);
    }
    return bytes;
}

static void write_file(const char* path, const void* bytes, size_t count) {
    FILE* file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(bytes, 1, count, file) == count);
    if (file != NULL) fclose(file);
}

/* Whether the file holds exactly these bytes. */
static int file_is(const char* path, const unsigned char* bytes, size_t count) {
    unsigned char* read = malloc(count + 1);
    FILE* file = fopen(path, "rb");
    const size_t got = file != NULL ? fread(read, 1, count + 1, file) : 0;
    const int same = got == count && memcmp(read, bytes, count) == 0;
    if (file != NULL) fclose(file);
    free(read);
    return same;
}

static int file_is_there(const char* path) {
    FILE* file = fopen(path, "rb");
    if (file != NULL) fclose(file);
    return file != NULL;
}

static sidestep_buffer whole_file(const char* place) {
    sidestep_buffer buffer = {place, NULL, 0, SIDESTEP_WHOLE};
    return buffer;
}

/* file -> GPU -> other GPU -> file, verified at each step, and compared at the end. */
static void test_round_trip(sidestep_context* context) {
    unsigned char* bytes = make_bytes();
    write_file(source_path, bytes, size);
    sidestep_allocation* first = NULL;
    sidestep_allocation* second = NULL;
    CHECK(sidestep_allocate(context, "gpu:0", size, &first) == SIDESTEP_OK);
    CHECK(sidestep_allocate(context, "gpu:5", size, &second) == SIDESTEP_OK);
    const sidestep_buffer source = whole_file(source_place);
    const sidestep_buffer target = whole_file(target_place);
    const sidestep_buffer gpu0 = sidestep_allocation_buffer(first);
    const sidestep_buffer gpu5 = sidestep_allocation_buffer(second);
    CHECK(strcmp(gpu0.place, "gpu:0") == 0 && gpu0.size == size && gpu0.address != NULL);

    sidestep_options options = SIDESTEP_OPTIONS;
    options.verify = 1;
    sidestep_receipt* receipt = NULL;
    CHECK(sidestep_copy(context, &source, &gpu0, &options, &receipt) == SIDESTEP_OK);
    CHECK(sidestep_receipt_bytes(receipt) == size);
    CHECK(sidestep_receipt_seconds(receipt) > 0);
    CHECK(sidestep_receipt_verified(receipt) == 1);
    char* text = NULL;
    CHECK(sidestep_explain(receipt, SIDESTEP_TEXT, &text) == SIDESTEP_OK && strstr(text, "gpu:0") != NULL);
    sidestep_free(text);
    CHECK(sidestep_explain(receipt, SIDESTEP_JSON, &text) == SIDESTEP_OK && text[0] == '{');
    sidestep_free(text);
    sidestep_receipt_free(receipt);

    CHECK(sidestep_copy(context, &gpu0, &gpu5, NULL, NULL) == SIDESTEP_OK);
    CHECK(sidestep_copy(context, &gpu5, &target, NULL, &receipt) == SIDESTEP_OK);
    CHECK(sidestep_receipt_verified(receipt) == 0);
    sidestep_receipt_free(receipt);
    CHECK(file_is(target_path, bytes, size));
    sidestep_release(first);
    sidestep_release(second);
    remove(source_path);
    remove(target_path);
    free(bytes);
}

static void let_go(void* owner) {
    *(int*)owner = 0;
}

static void test_start_poll_wait(sidestep_context* context) {
    unsigned char* from = make_bytes();
    unsigned char* to = calloc(1, size);
    const sidestep_buffer source = {"host", from, 0, size};
    const sidestep_buffer target = {"host", to, 0, size};
    sidestep_transfer* transfer = NULL;
    CHECK(sidestep_copy_start(context, &source, &target, NULL, &transfer) == SIDESTEP_OK);
    int ended = 0;
    while (!ended && sidestep_copy_poll(transfer, &ended) == SIDESTEP_OK) continue;
    CHECK(ended == 1);
    sidestep_receipt* receipt = NULL;
    CHECK(sidestep_copy_wait(transfer, &receipt) == SIDESTEP_OK);
    CHECK(sidestep_receipt_bytes(receipt) == size);
    sidestep_receipt_free(receipt);
    CHECK(sidestep_copy_wait(transfer, NULL) == SIDESTEP_OK); /* the answer stays */
    uint64_t done = 0;
    uint64_t total = 0;
    sidestep_copy_progress(transfer, &done, &total);
    CHECK(done == size && total == size);
    CHECK(memcmp(from, to, size) == 0);
    sidestep_copy_cancel(transfer); /* too late, and harmless */
    CHECK(sidestep_copy_wait(transfer, NULL) == SIDESTEP_OK);
    int kept = 1;
    CHECK(sidestep_copy_keep(transfer, &kept, let_go) == SIDESTEP_OK);
    CHECK(sidestep_copy_keep(transfer, &kept, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy_keep(NULL, &kept, let_go) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(kept == 1);
    sidestep_copy_free(transfer);
    CHECK(kept == 0);
    free(from);
    free(to);
}

/* A program's event loop is told by a descriptor. */
static void test_event_fd(sidestep_context* context) {
    unsigned char* from = make_bytes();
    unsigned char* to = calloc(1, size);
    const sidestep_buffer source = {"host", from, 0, size};
    const sidestep_buffer target = {"host", to, 0, size};
    sidestep_transfer* transfer = NULL;
    CHECK(sidestep_copy_start(context, &source, &target, NULL, &transfer) == SIDESTEP_OK);
    int descriptor = -1;
    CHECK(sidestep_copy_event_fd(transfer, &descriptor) == SIDESTEP_OK && descriptor >= 0);
    struct pollfd entry = {descriptor, POLLIN, 0};
    CHECK(poll(&entry, 1, 60000) == 1 && (entry.revents & POLLIN) != 0);
    int ended = 0;
    CHECK(sidestep_copy_poll(transfer, &ended) == SIDESTEP_OK && ended == 1);
    CHECK(memcmp(from, to, size) == 0);
    sidestep_copy_free(transfer);
    CHECK(poll(&entry, 1, 0) == 1 && (entry.revents & POLLNVAL) != 0); /* closed with it */
    free(from);
    free(to);
}

static void test_batch(sidestep_context* context) {
    enum { count = 1000, part = 3000 };
    unsigned char* from = make_bytes();
    unsigned char* to = calloc(1, size);
    static sidestep_batch_item items[count];
    for (int i = 0; i < count; ++i) {
        const sidestep_buffer source = {"host", from + i * part, 0, part};
        const sidestep_buffer target = {"host", to + (count - 1 - i) * part, 0, part};
        items[i].from = source;
        items[i].to = target;
    }
    sidestep_receipt* receipt = NULL;
    CHECK(sidestep_copy_batch(context, items, count, NULL, &receipt) == SIDESTEP_OK);
    CHECK(sidestep_receipt_bytes(receipt) == (uint64_t)count * part);
    sidestep_receipt_free(receipt);
    int equal = 1;
    for (int i = 0; i < count; ++i)
        equal = equal && memcmp(from + i * part, to + (count - 1 - i) * part, part) == 0;
    CHECK(equal);
    sidestep_transfer* transfer = NULL;
    CHECK(sidestep_copy_batch_start(context, items, count, NULL, &transfer) == SIDESTEP_OK);
    CHECK(sidestep_copy_wait(transfer, NULL) == SIDESTEP_OK);
    sidestep_copy_free(transfer);
    CHECK(sidestep_copy_batch(context, NULL, 0, NULL, NULL) == SIDESTEP_OK);
    CHECK(sidestep_copy_batch(context, NULL, 1, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    items[7].to.size = part - 1;
    CHECK(sidestep_copy_batch(context, items, count, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(strstr(sidestep_last_error()->message, "copy 7 of the batch") != NULL);
    items[7].to.place = NULL;
    CHECK(sidestep_copy_batch(context, items, count, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(strstr(sidestep_last_error()->message, "copy 7 of the batch") != NULL);
    free(from);
    free(to);
}

/* A failure while it runs comes from wait and poll, every time, and names the file. */
static void test_failing_copy(sidestep_context* context) {
    unsigned char to[16];
    const sidestep_buffer source = {"file:/nowhere/at/all", NULL, 0, sizeof(to)};
    const sidestep_buffer target = {"host", to, 0, sizeof(to)};
    sidestep_transfer* transfer = NULL;
    CHECK(sidestep_copy_start(context, &source, &target, NULL, &transfer) == SIDESTEP_OK);
    CHECK(sidestep_copy_wait(transfer, NULL) == SIDESTEP_NOT_FOUND);
    int ended = 0;
    CHECK(sidestep_copy_poll(transfer, &ended) == SIDESTEP_NOT_FOUND && ended == 1);
    CHECK(strstr(sidestep_last_error()->message, "/nowhere/at/all") != NULL ||
          strstr(sidestep_last_error()->where, "/nowhere/at/all") != NULL);
    sidestep_copy_free(transfer);
}

static void test_cancel_and_free(sidestep_context* context) {
    /* Long, and of data: holes are left out. Nobody waits for its end. */
    enum { block_size = 1 << 20, blocks = 1024 };
    FILE* file = fopen(source_path, "wb");
    char* block = malloc(block_size);
    CHECK(file != NULL && block != NULL);
    memset(block, 1, block_size);
    for (int i = 0; i < blocks; ++i) CHECK(fwrite(block, block_size, 1, file) == 1);
    free(block);
    fclose(file);
    const sidestep_buffer source = whole_file(source_place);
    const sidestep_buffer target = whole_file(target_place);
    sidestep_transfer* transfer = NULL;
    CHECK(sidestep_copy_start(context, &source, &target, NULL, &transfer) == SIDESTEP_OK);
    sidestep_copy_cancel(transfer);
    CHECK(sidestep_copy_wait(transfer, NULL) == SIDESTEP_CANCELLED);
    sidestep_copy_free(transfer);
    CHECK(!file_is_there(target_path));
    CHECK(sidestep_copy_start(context, &source, &target, NULL, &transfer) == SIDESTEP_OK);
    sidestep_copy_free(transfer); /* cancels */
    CHECK(!file_is_there(target_path));
    remove(source_path);
}

static void test_route(sidestep_context* context) {
    char* text = NULL;
    CHECK(sidestep_route(context, "gpu:0", "gpu:5", 1 << 20, NULL, SIDESTEP_TEXT, &text) == SIDESTEP_OK);
    CHECK(strstr(text, "NVLink") != NULL);
    sidestep_free(text);
    CHECK(sidestep_route(context, "gpu:0", "gpu:5", 1 << 20, NULL, SIDESTEP_JSON, &text) == SIDESTEP_OK);
    CHECK(strstr(text, "\"lanes\"") != NULL);
    sidestep_free(text);
    sidestep_options options = SIDESTEP_OPTIONS;
    options.require = SIDESTEP_REQUIRE_DIRECT;
    CHECK(sidestep_route(context, "file:/a", "file:/b", 4096, &options, SIDESTEP_TEXT, &text) ==
          SIDESTEP_PATH_UNAVAILABLE);
    CHECK(sidestep_last_error()->message[0] != '\0');
    CHECK(sidestep_route(context, "gpu:0", "gpu:88", 1, NULL, SIDESTEP_TEXT, &text) == SIDESTEP_NOT_FOUND);
    CHECK(sidestep_route(context, "gpu:0", "gpu:1", 1, NULL, (sidestep_format)2, &text) ==
          SIDESTEP_INVALID_ARGUMENT);
}

/* Published and reached by name in one process; tests/multiprocess has several. */
static void test_published_memory(const char* folder) {
    setenv("SIDESTEP_PEER_FOLDER", folder, 1);
    sidestep_context* peers = NULL;
    CHECK(sidestep_open("dgx-h100", &peers) == SIDESTEP_OK);
    unsetenv("SIDESTEP_PEER_FOLDER");
    if (peers == NULL) return;
    sidestep_allocation* memory = NULL;
    sidestep_allocation* target = NULL;
    CHECK(sidestep_allocate(peers, "gpu:0", 8192, &memory) == SIDESTEP_OK);
    CHECK(sidestep_allocate(peers, "gpu:1", 4096, &target) == SIDESTEP_OK);
    const sidestep_buffer buffer = sidestep_allocation_buffer(memory);
    const sidestep_buffer to = sidestep_allocation_buffer(target);
    for (int i = 0; i < 8192; ++i) ((unsigned char*)buffer.address)[i] = (unsigned char)(i % 251);
    sidestep_publication* publication = NULL;
    CHECK(sidestep_publish(peers, "capi", &buffer, 0, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_publish(peers, NULL, &buffer, 0, &publication) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_publish(peers, "a/b", &buffer, 0, &publication) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_publish(peers, "capi", &buffer, UINT64_MAX - 1, &publication) == SIDESTEP_INVALID_ARGUMENT);
    const int folder_held = open(folder, O_RDONLY | O_DIRECTORY);
    CHECK(flock(folder_held, LOCK_EX) == 0);
    CHECK(sidestep_publish(peers, "late", &buffer, 20, &publication) == SIDESTEP_TIMED_OUT);
    CHECK(strstr(sidestep_last_error()->message, "deadline of 20 ms") != NULL);
    close(folder_held);
    CHECK(publication == NULL);
    CHECK(sidestep_publish(peers, "capi", &buffer, SIDESTEP_NO_LIMIT, &publication) == SIDESTEP_OK);
    const sidestep_buffer part = {"shared:capi", NULL, 100, 4096};
    CHECK(sidestep_copy(peers, &part, &to, NULL, NULL) == SIDESTEP_OK);
    CHECK(memcmp(to.address, (const char*)buffer.address + 100, 4096) == 0);
    const sidestep_buffer with_address = {"shared:capi", to.address, 0, 4096};
    CHECK(sidestep_copy(peers, &with_address, &to, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    sidestep_publication_free(publication);
    sidestep_publication_free(NULL);
    CHECK(sidestep_copy(peers, &part, &to, NULL, NULL) == SIDESTEP_NOT_FOUND);
    sidestep_release(memory);
    sidestep_release(target);
    sidestep_close(peers);
}

static void test_null_arguments(sidestep_context* context) {
    const sidestep_buffer host = {"host", NULL, 0, 0};
    sidestep_allocation* allocation = NULL;
    CHECK(sidestep_open(NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_allocate(NULL, "host", 1, &allocation) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_allocate(context, NULL, 1, &allocation) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(strcmp(sidestep_last_error()->message, "place is NULL") == 0);
    CHECK(sidestep_allocate(context, "host", 1, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy(NULL, &host, &host, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy(context, NULL, &host, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy(context, &host, NULL, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy_wait(NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy_poll(NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy_event_fd(NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy_batch(NULL, NULL, 0, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy_batch_start(context, NULL, 0, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_explain(NULL, SIDESTEP_TEXT, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_allocation_buffer(NULL).address == NULL);
    sidestep_pinned* pinned = NULL;
    char memory[64];
    CHECK(sidestep_pin(NULL, memory, sizeof memory, &pinned) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_pin(context, NULL, 5, &pinned) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_pin(context, memory, sizeof memory, NULL) == SIDESTEP_INVALID_ARGUMENT && pinned == NULL);
    CHECK(sidestep_pin(context, memory, sizeof memory, &pinned) == SIDESTEP_OK && pinned != NULL);
    sidestep_unpin(pinned);
    sidestep_unpin(NULL);
    sidestep_close(NULL);
    sidestep_release(NULL);
    sidestep_copy_cancel(NULL);
    sidestep_copy_free(NULL);
    sidestep_receipt_free(NULL);
    sidestep_free(NULL);
}

static void test_bad_buffers(sidestep_context* context) {
    unsigned char bytes[8] = {0};
    const sidestep_buffer host = {"host", bytes, 0, 8};
    const sidestep_buffer bare = {"bytes.bin", NULL, 0, 8};
    const sidestep_buffer offset = {"host", bytes, 1, 7};
    const sidestep_buffer address = {"file:x", bytes, 0, 8};
    const sidestep_buffer remote = {"node7.invalid/host", bytes, 0, 8};
    CHECK(sidestep_copy(context, &bare, &host, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(strstr(sidestep_last_error()->hint, "file:bytes.bin") != NULL);
    CHECK(sidestep_copy(context, &offset, &host, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy(context, &address, &host, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT);
    CHECK(sidestep_copy(context, &remote, &host, NULL, NULL) == SIDESTEP_NOT_FOUND);
    CHECK(sidestep_copy(context, &host, &host, NULL, NULL) == SIDESTEP_INVALID_ARGUMENT); /* onto itself */
}

/* A caller built with a later header: fine as long as it asks for nothing this version lacks. */
static void test_struct_size(sidestep_context* context) {
    struct {
        sidestep_options known;
        uint64_t later;
    } grown = {SIDESTEP_OPTIONS, 0};
    grown.known.struct_size = sizeof(grown);
    unsigned char from[8] = "1234567";
    unsigned char to[8] = {0};
    const sidestep_buffer source = {"host", from, 0, 8};
    const sidestep_buffer target = {"host", to, 0, 8};
    CHECK(sidestep_copy(context, &source, &target, &grown.known, NULL) == SIDESTEP_OK);
    CHECK(memcmp(from, to, 8) == 0);
    grown.later = 1;
    CHECK(sidestep_copy(context, &source, &target, &grown.known, NULL) == SIDESTEP_UNSUPPORTED);
    sidestep_options empty = {0};
    CHECK(sidestep_copy(context, &source, &target, &empty, NULL) == SIDESTEP_INVALID_ARGUMENT);
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    snprintf(source_path, sizeof(source_path), "%s/capi_source", argv[1]);
    snprintf(target_path, sizeof(target_path), "%s/capi_target", argv[1]);
    snprintf(source_place, sizeof(source_place), "file:%s", source_path);
    snprintf(target_place, sizeof(target_place), "file:%s", target_path);
    remove(target_path);

    CHECK(sidestep_last_error()->code == SIDESTEP_OK && sidestep_last_error()->message[0] == '\0');
    CHECK(sidestep_version()[0] != '\0');
    CHECK(strcmp(sidestep_status_text(SIDESTEP_NOT_FOUND), "not_found") == 0);
    sidestep_context* context = NULL;
    CHECK(sidestep_open("no-such-machine", &context) == SIDESTEP_NOT_FOUND && context == NULL);
    CHECK(strstr(sidestep_last_error()->message, "no-such-machine") != NULL);
    CHECK(sidestep_open("dgx-h100", &context) == SIDESTEP_OK);
    if (context == NULL) return 1;
    test_round_trip(context);
    test_start_poll_wait(context);
    test_event_fd(context);
    test_batch(context);
    test_failing_copy(context);
    test_cancel_and_free(context);
    test_route(context);
    test_null_arguments(context);
    test_bad_buffers(context);
    test_struct_size(context);
    test_published_memory(argv[1]);
    sidestep_close(context);
    if (failures == 0) puts("all checks hold");
    return failures == 0 ? 0 : 1;
}
