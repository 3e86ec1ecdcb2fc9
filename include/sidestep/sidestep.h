/* Sidestep for C, and for every language that can call C. Plain C99; every function may be called from
 * several threads at once, except that one transfer belongs to one thread at a time.
 *
 *     sidestep_context* context;
 *     if (sidestep_open(NULL, &context) != SIDESTEP_OK)
 *         fprintf(stderr, "%s\n", sidestep_last_error()->message);
 *
 * Functions that can fail return a sidestep_status. What they hand out through their last parameter is
 * only written on success, and belongs to the caller. Text is UTF-8 where paths are, ends with a zero
 * byte, and is freed with sidestep_free. No handle may be used after the call that frees it; every such
 * call takes NULL and does nothing. */
#ifndef SIDESTEP_H
#define SIDESTEP_H

#include <stddef.h>
#include <stdint.h>

#include <sidestep/api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ---- */

/* The numbers never change; docs/error_codes.md explains each. */
typedef enum sidestep_status {
    SIDESTEP_OK = 0,
    SIDESTEP_INVALID_ARGUMENT = 1,
    SIDESTEP_NOT_FOUND = 2,
    SIDESTEP_PERMISSION_DENIED = 3,
    SIDESTEP_UNSUPPORTED = 4,
    SIDESTEP_PATH_UNAVAILABLE = 5,
    SIDESTEP_OUT_OF_MEMORY = 6,
    SIDESTEP_NO_SPACE = 7,
    SIDESTEP_END_OF_FILE = 8,
    SIDESTEP_IO_ERROR = 9,
    SIDESTEP_MISMATCH = 10,
    SIDESTEP_CANCELLED = 11,
    SIDESTEP_TIMED_OUT = 12,
    SIDESTEP_DEVICE_ERROR = 13,
    SIDESTEP_INTERNAL = 14
} sidestep_status;

/* No member is NULL; `where` and `hint` may be empty. */
typedef struct sidestep_error {
    sidestep_status code;
    const char* message; /* what was wrong, naming the thing */
    const char* where;   /* the place or call it came from */
    const char* hint;    /* what to do about it */
} sidestep_error;

/* The last failure of the calling thread; code SIDESTEP_OK if there was none. Never NULL. Valid until the
 * thread's next call of this library; a success leaves it as it is. */
SIDESTEP_API const sidestep_error* sidestep_last_error(void);

/* "not_found", ...; a constant. */
SIDESTEP_API const char* sidestep_status_text(sidestep_status status);

/* "0.1.0", of the library that is linked in; a constant. */
SIDESTEP_API const char* sidestep_version(void);

/* Frees text that this library handed out. */
SIDESTEP_API void sidestep_free(char* text);

/* ---- Context ---- */

typedef struct sidestep_context sidestep_context;

/* Opens a machine: "live", the name of a built-in one, or a topology file or recorded folder (its name holds
 * a '/' or ends in ".json" or ".xml"). NULL or "": what SIDESTEP_MACHINE names, else "live". */
SIDESTEP_API sidestep_status sidestep_open(const char* machine, sidestep_context** context);

/* Transfers and allocations of the context may outlive it. */
SIDESTEP_API void sidestep_close(sidestep_context* context);

/* Connects to another machine that serves, which is called `node` in places from now on and listens at `address`
 * ("HOST:PORT"). Not needed for machines that SIDESTEP_NODES or the resolver know. SIDESTEP_NOT_FOUND where nobody listens
 * there, SIDESTEP_PERMISSION_DENIED where its key is another, SIDESTEP_TIMED_OUT after 10 s. */
SIDESTEP_API sidestep_status sidestep_connect(sidestep_context* context, const char* node,
                                              const char* address);

typedef struct sidestep_serve_options {
    size_t struct_size;
    const char* listen; /* "HOST:PORT", several with commas between; NULL: "127.0.0.1:47900" */
    const char* allow;  /* "gpu:*,host=8GiB,file:/data,file:/out=rw,shared:kv"; NULL: nothing */
    const char*
        key_file;     /* made where it is not there; NULL: SIDESTEP_KEY_FILE, else ~/.config/sidestep/key */
    const char* name; /* what clients are told that the machine is called; NULL: its host name */
    const char* metrics; /* "HOST:PORT" of a page for Prometheus; NULL: none */
    uint64_t rate;       /* bytes a second that all clients together move here, and from here; 0: no bound */
    uint64_t notifications; /* that wait for sidestep_next_notification at most; 0: none are taken */
} sidestep_serve_options;

#define SIDESTEP_SERVE_OPTIONS \
    { sizeof(sidestep_serve_options), 0, 0, 0, 0, 0, 0, 0 }

typedef struct sidestep_serving sidestep_serving;

/* Lets other machines reach what the options name (docs/network.md), until the serving is freed. May outlive the context. */
SIDESTEP_API sidestep_status sidestep_serve(sidestep_context* context, const sidestep_serve_options* options,
                                            sidestep_serving** serving);
/* Hangs up on everybody. NULL is fine. */
SIDESTEP_API void sidestep_serving_free(sidestep_serving* serving);
/* "HOST:PORT", valid as long as the serving; NULL behind the last. */
SIDESTEP_API const char* sidestep_serving_address(const sidestep_serving* serving, size_t index);
SIDESTEP_API const char* sidestep_serving_key_file(const sidestep_serving* serving);

/* Tells whoever serves at the node `size` bytes, 4096 at most, once, and waits until the node has them. A copy that has ended
 * has its bytes where they belong: a notification after it says so. SIDESTEP_UNSUPPORTED where the node takes none,
 * SIDESTEP_OUT_OF_MEMORY where as many wait there as it keeps. */
SIDESTEP_API sidestep_status sidestep_notify(sidestep_context* context, const char* node, const void* text,
                                             size_t size);
/* The oldest notification that nobody has taken, after up to `wait_ms`, else SIDESTEP_TIMED_OUT. `text` has a zero behind its
 * `size` bytes; `from`, "10.0.0.8:51234", and `size` may be NULL. sidestep_free() frees both. */
SIDESTEP_API sidestep_status sidestep_next_notification(sidestep_serving* serving, uint64_t wait_ms,
                                                        char** from, char** text, size_t* size);

/* ---- Bytes at a place ---- */

/* As the size of a file: all of it as a source, what comes as a target. Its offset is then 0. */
#define SIDESTEP_WHOLE UINT64_MAX

/* `place` is "host", "host:1", "gpu:0", "file:PATH" or "shared:NAME", or one of these on another machine, as in
 * "node7/gpu:0" (docs/network.md). Memory has an address, a file and published
 * memory (see sidestep_publish) an offset; all of them have a size, or SIDESTEP_WHOLE. A whole file
 * is written under another name and renamed when every byte has arrived; a part of a file is written in
 * place. The caller keeps memory and text alive until the call, or the transfer it starts, has ended. */
typedef struct sidestep_buffer {
    const char* place;
    void* address;
    uint64_t offset;
    uint64_t size;
} sidestep_buffer;

typedef struct sidestep_allocation sidestep_allocation;

/* Memory at a host or gpu place, of the kind that is fastest there, contents undefined. */
SIDESTEP_API sidestep_status sidestep_allocate(sidestep_context* context, const char* place, uint64_t size,
                                               sidestep_allocation** allocation);

/* The memory; `place` is valid as long as the allocation. NULL gives a buffer of zeros. */
SIDESTEP_API sidestep_buffer sidestep_allocation_buffer(const sidestep_allocation* allocation);

/* Frees the memory. Every transfer that uses it must have ended. */
SIDESTEP_API void sidestep_release(sidestep_allocation* allocation);

typedef struct sidestep_pinned sidestep_pinned;

/* Page-locks ordinary host memory, so that GPUs copy from and to it without staging, until sidestep_unpin();
 * the memory is freed after that. SIDESTEP_UNSUPPORTED where no GPU is usable. */
SIDESTEP_API sidestep_status sidestep_pin(sidestep_context* context, void* address, uint64_t size,
                                          sidestep_pinned** pinned);
/* NULL is fine. */
SIDESTEP_API void sidestep_unpin(sidestep_pinned* pinned);

/* ---- Memory of other processes ---- */

typedef struct sidestep_publication sidestep_publication;

/* Lets other processes of this user on this machine reach GPU or host memory as the place "shared:NAME" until the
 * publication is freed; docs/sharing.md says which memory. SIDESTEP_INVALID_ARGUMENT where a process that is alive
 * has the name, SIDESTEP_TIMED_OUT where another one takes a name for 5 s, or the folder's file system has not answered
 * after `deadline_ms`, up to a year; 0 and SIDESTEP_NO_LIMIT: none. */
SIDESTEP_API sidestep_status sidestep_publish(sidestep_context* context, const char* name,
                                              const sidestep_buffer* buffer, uint64_t deadline_ms,
                                              sidestep_publication** publication);

/* Withdraws the name. Copies of other processes in flight may still use the memory: agree on the end first. */
SIDESTEP_API void sidestep_publication_free(sidestep_publication* publication);

/* ---- Options ---- */

typedef enum sidestep_require {
    SIDESTEP_REQUIRE_ANY = 0,    /* the best path there is */
    SIDESTEP_REQUIRE_DIRECT = 1, /* one hop, or SIDESTEP_PATH_UNAVAILABLE */
    SIDESTEP_REQUIRE_HOST = 2    /* through host memory even where a direct path exists */
} sidestep_require;

typedef enum sidestep_prefer {
    SIDESTEP_PREFER_AUTOMATIC = 0,
    SIDESTEP_PREFER_COPY_ENGINE = 1,
    SIDESTEP_PREFER_KERNEL = 2
} sidestep_prefer;

/* As a time limit: wait for ever. */
#define SIDESTEP_NO_LIMIT UINT64_MAX

/* What a copy may be asked. Zero means the default everywhere, so start with
 *     sidestep_options options = SIDESTEP_OPTIONS;
 * SIDESTEP_INVALID_ARGUMENT names an option that is out of its range, its value and the range.
 * Later versions add members at the end; struct_size tells the library which ones the caller knows. */
typedef struct sidestep_options {
    size_t struct_size;
    uint32_t require;        /* sidestep_require */
    uint32_t prefer;         /* sidestep_prefer */
    uint32_t verify;         /* 1: read both ends after the copy and compare them */
    uint32_t sync_file;      /* 1: flush a written file to its device before it gets its name */
    uint32_t direct_io;      /* 1: read and write files around the page cache, whatever it holds */
    uint32_t lanes;          /* at most this many paths at once, up to 1024; 0: as many as make it quicker */
    uint64_t deadline_ms;    /* of the whole copy, up to a year; 0 and SIDESTEP_NO_LIMIT: none */
    uint64_t stall_limit_ms; /* longest time without a byte, up to a year; 0: 60 000 */
    uint64_t max_staging;    /* bytes of staging memory at once; 0: 256 MiB */
    uint64_t chunk;          /* bytes at a time through a staged path, up to 1 TiB; 0: the library chooses */
} sidestep_options;

#define SIDESTEP_OPTIONS \
    { sizeof(sidestep_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* ---- Routes ---- */

typedef enum sidestep_format { SIDESTEP_TEXT = 0, SIDESTEP_JSON = 1 } sidestep_format;

/* The path that a copy of `size` bytes between two places would take and the ones refused, as the lines
 * of `sidestep route` or the object of docs/json.md. `options` may be NULL. Moves nothing. */
SIDESTEP_API sidestep_status sidestep_route(sidestep_context* context, const char* from, const char* to,
                                            uint64_t size, const sidestep_options* options,
                                            sidestep_format format, char** text);

/* ---- Copies ---- */

typedef struct sidestep_receipt sidestep_receipt;
typedef struct sidestep_transfer sidestep_transfer;

/* Copies from->size bytes and waits. `options` may be NULL; `receipt` may be NULL where nobody reads it. */
SIDESTEP_API sidestep_status sidestep_copy(sidestep_context* context, const sidestep_buffer* from,
                                           const sidestep_buffer* to, const sidestep_options* options,
                                           sidestep_receipt** receipt);

/* Starts the same copy. Fails only where the arguments make no sense; every later failure is told by
 * sidestep_copy_poll and sidestep_copy_wait. */
SIDESTEP_API sidestep_status sidestep_copy_start(sidestep_context* context, const sidestep_buffer* from,
                                                 const sidestep_buffer* to, const sidestep_options* options,
                                                 sidestep_transfer** transfer);

/* Whether the copy has ended: *ended becomes 0 or 1. The status is that of the copy, SIDESTEP_OK while it
 * runs. Never blocks. */
SIDESTEP_API sidestep_status sidestep_copy_poll(sidestep_transfer* transfer, int* ended);

/* Waits until the copy has ended; the deadline and stall limit of its options bound the wait. `receipt` may
 * be NULL. May be called again, with the same answer. */
SIDESTEP_API sidestep_status sidestep_copy_wait(sidestep_transfer* transfer, sidestep_receipt** receipt);

/* Asks the copy to stop; it then ends with SIDESTEP_CANCELLED unless it had ended. From any thread. */
SIDESTEP_API void sidestep_copy_cancel(sidestep_transfer* transfer);

/* Bytes arrived so far, and in all (0 until known). Either pointer may be NULL. */
SIDESTEP_API void sidestep_copy_progress(const sidestep_transfer* transfer, uint64_t* done, uint64_t* total);

/* Calls release(owner) once the transfer has been freed and no device may touch the buffers any more. Where a device hangs, the
 * copy is reported, and freed, before that. May be called several times, each for an owner of its own. The call may
 * come from any thread, before sidestep_copy_free returns or later. */
SIDESTEP_API sidestep_status sidestep_copy_keep(sidestep_transfer* transfer, void* owner,
                                                void (*release)(void* owner));

/* A descriptor that becomes readable when the copy has ended, for epoll and its like; sidestep_copy_poll then
 * has the result. Do not read from it or close it: it is closed by sidestep_copy_free. From then on the
 * library's own thread drives the copy. */
SIDESTEP_API sidestep_status sidestep_copy_event_fd(sidestep_transfer* transfer, int* descriptor);

/* One copy of a batch. */
typedef struct sidestep_batch_item {
    sidestep_buffer from;
    sidestep_buffer to;
} sidestep_batch_item;

/* Many copies as one: thousands of small ones cost little more than one large one. They may run in any order
 * and at once. The first failure stops the rest; its message names the position. The items are read during
 * the call only, the memory must stay until the end. */
SIDESTEP_API sidestep_status sidestep_copy_batch(sidestep_context* context, const sidestep_batch_item* items,
                                                 size_t count, const sidestep_options* options,
                                                 sidestep_receipt** receipt);

/* Starts the same; see sidestep_copy_start. */
SIDESTEP_API sidestep_status sidestep_copy_batch_start(sidestep_context* context,
                                                       const sidestep_batch_item* items, size_t count,
                                                       const sidestep_options* options,
                                                       sidestep_transfer** transfer);

/* Cancels the copy if it is running, waits for the pieces in flight and forgets it. */
SIDESTEP_API void sidestep_copy_free(sidestep_transfer* transfer);

/* What a finished copy did. */
SIDESTEP_API uint64_t sidestep_receipt_bytes(const sidestep_receipt* receipt);
SIDESTEP_API double sidestep_receipt_seconds(const sidestep_receipt* receipt);
SIDESTEP_API int sidestep_receipt_verified(const sidestep_receipt* receipt);
/* The path taken, hop by hop, and the better ones refused, with reasons; or the object of docs/json.md. */
SIDESTEP_API sidestep_status sidestep_explain(const sidestep_receipt* receipt, sidestep_format format,
                                              char** text);
SIDESTEP_API void sidestep_receipt_free(sidestep_receipt* receipt);

#ifdef __cplusplus
}
#endif

#endif
