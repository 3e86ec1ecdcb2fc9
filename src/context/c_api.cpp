// sidestep.h over the C++ API. Nothing here decides anything; it translates, and lets no exception out.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>

#include <sidestep/sidestep.h>
#include <sidestep/context.hpp>
#include <sidestep/version.hpp>

#include "base/try.hpp"
#include "context/c_api.hpp"
#include "context/option_ranges.hpp"

using sidestep::Buffer;
using sidestep::Context;
using sidestep::CopyOptions;
using sidestep::Error;
using sidestep::ErrorCode;
using sidestep::Place;
using sidestep::Receipt;
using sidestep::Result;
using sidestep::Transfer;
using namespace sidestep::context::capi;

static_assert(int(SIDESTEP_INVALID_ARGUMENT) == int(ErrorCode::invalid_argument));
static_assert(int(SIDESTEP_NOT_FOUND) == int(ErrorCode::not_found));
static_assert(int(SIDESTEP_PERMISSION_DENIED) == int(ErrorCode::permission_denied));
static_assert(int(SIDESTEP_UNSUPPORTED) == int(ErrorCode::unsupported));
static_assert(int(SIDESTEP_PATH_UNAVAILABLE) == int(ErrorCode::path_unavailable));
static_assert(int(SIDESTEP_OUT_OF_MEMORY) == int(ErrorCode::out_of_memory));
static_assert(int(SIDESTEP_NO_SPACE) == int(ErrorCode::no_space));
static_assert(int(SIDESTEP_END_OF_FILE) == int(ErrorCode::end_of_file));
static_assert(int(SIDESTEP_IO_ERROR) == int(ErrorCode::io_error));
static_assert(int(SIDESTEP_MISMATCH) == int(ErrorCode::mismatch));
static_assert(int(SIDESTEP_CANCELLED) == int(ErrorCode::cancelled));
static_assert(int(SIDESTEP_TIMED_OUT) == int(ErrorCode::timed_out));
static_assert(int(SIDESTEP_DEVICE_ERROR) == int(ErrorCode::device_error));
static_assert(int(SIDESTEP_INTERNAL) == int(ErrorCode::internal));
static_assert(SIDESTEP_WHOLE == Buffer::whole);

struct sidestep_allocation {
    sidestep::Allocation memory;
    std::string place;
};

struct sidestep_pinned {
    sidestep::Pinned held;
};

struct sidestep_receipt {
    Receipt receipt;
};

struct sidestep_transfer {
    explicit sidestep_transfer(Transfer started) : transfer(std::move(started)) {}
    Transfer transfer;
    std::optional<Result<Receipt>> ended;
};

namespace {

// The calling thread's last failure: sidestep_last_error promises one a thread.
struct LastError {
    Error error;
    sidestep_error view{SIDESTEP_OK, "", "", ""};
};

LastError& last_error() {
    thread_local LastError last;
    return last;
}

Result<Place> read_place(const char* text, const char* name) {
    if (text == nullptr) return null_argument(name);
    return Place::parse(text);
}

}  // namespace

namespace sidestep::context::capi {

sidestep_status keep(Error error) noexcept {
    LastError& last = last_error();
    last.error = std::move(error);
    last.view = {static_cast<sidestep_status>(last.error.code), last.error.message.c_str(),
                 last.error.where.c_str(), last.error.hint.c_str()};
    return last.view.code;
}

sidestep_status keep_constant(ErrorCode code, const char* message) noexcept {
    LastError& last = last_error();
    last.view = {static_cast<sidestep_status>(code), message, "", ""};
    return last.view.code;
}

Error null_argument(const char* name) {
    return Error{ErrorCode::invalid_argument, std::string(name) + " is NULL", "sidestep.h", {}};
}

Result<Buffer> read_buffer(const sidestep_buffer* buffer, const char* name) {
    if (buffer == nullptr) return null_argument(name);
    SIDESTEP_TRY(auto place, read_place(buffer->place, "place"));
    if (place.is_shared()) {
        if (buffer->address == nullptr)
            return Buffer::shared(place.path(), buffer->offset, buffer->size).on(place.node());
        return Error{ErrorCode::invalid_argument,
                     "published memory has an offset, its address is NULL",
                     place.to_string(),
                     {}};
    }
    if (!place.is_file()) {
        if (buffer->offset != 0)
            return Error{
                ErrorCode::invalid_argument, "memory has an address, its offset is 0", place.to_string(), {}};
        return Buffer::memory(place, buffer->address, buffer->size);
    }
    if (buffer->address != nullptr)
        return Error{
            ErrorCode::invalid_argument, "a file has an offset, its address is NULL", place.to_string(), {}};
    return Buffer::file(place.path(), buffer->offset, buffer->size).on(place.node());
}

Result<void> hand_out(const std::string& text, char** out) {
    auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
    if (copy == nullptr) throw std::bad_alloc();
    std::memcpy(copy, text.c_str(), text.size() + 1);
    *out = copy;
    return {};
}

}  // namespace sidestep::context::capi

namespace {

// Checked before they go into members of other types; the calls check the rest with the options.
Result<void> check_members(const sidestep_options& options) {
    const std::pair<const char*, std::uint64_t> members[] = {
        {"require", options.require},
        {"prefer", options.prefer},
        {"lanes", options.lanes},
        {"deadline", options.deadline_ms != SIDESTEP_NO_LIMIT ? options.deadline_ms : 0},
        {"stall_limit", options.stall_limit_ms != SIDESTEP_NO_LIMIT ? options.stall_limit_ms : 0}};
    for (const auto& [name, value] : members) SIDESTEP_CHECK(sidestep::context::check(name, value));
    return {};
}

Result<CopyOptions> read_options(const sidestep_options* given) {
    constexpr std::size_t first_version = offsetof(sidestep_options, chunk) + sizeof(sidestep_options::chunk);
    SIDESTEP_TRY(auto read,
                 read_struct(given, sidestep_options SIDESTEP_OPTIONS, first_version, "sidestep_options"));
    SIDESTEP_CHECK(check_members(read));
    CopyOptions options;
    options.require = static_cast<sidestep::Require>(read.require);
    options.prefer = static_cast<sidestep::Prefer>(read.prefer);
    options.lanes = static_cast<int>(read.lanes);
    options.verify = read.verify != 0;
    options.sync_file = read.sync_file != 0;
    options.page_cache = read.direct_io != 0 ? sidestep::PageCache::bypass : sidestep::PageCache::automatic;
    if (read.deadline_ms != SIDESTEP_NO_LIMIT) options.deadline = std::chrono::milliseconds(read.deadline_ms);
    if (read.stall_limit_ms == SIDESTEP_NO_LIMIT)
        options.stall_limit = std::chrono::milliseconds(0);
    else if (read.stall_limit_ms != 0)
        options.stall_limit = std::chrono::milliseconds(read.stall_limit_ms);
    if (read.max_staging != 0) options.max_staging = read.max_staging;
    options.chunk = read.chunk;
    return options;
}

Error bad_format(sidestep_format format) {
    return Error{ErrorCode::invalid_argument, "format is " + std::to_string(static_cast<int>(format)),
                 "sidestep.h", "use SIDESTEP_TEXT or SIDESTEP_JSON"};
}

Result<Transfer> begin(sidestep_context* context, const sidestep_buffer* from, const sidestep_buffer* to,
                       const sidestep_options* options) {
    if (context == nullptr) return null_argument("context");
    SIDESTEP_TRY(auto source, read_buffer(from, "from"));
    SIDESTEP_TRY(auto target, read_buffer(to, "to"));
    SIDESTEP_TRY(auto read, read_options(options));
    return context->context.copy(source, target, read);
}

Result<Transfer> begin_batch(sidestep_context* context, const sidestep_batch_item* items, size_t count,
                             const sidestep_options* options) {
    if (context == nullptr) return null_argument("context");
    if (items == nullptr && count > 0) return null_argument("items");
    SIDESTEP_TRY(auto read, read_options(options));
    std::vector<sidestep::BatchItem> batch;
    batch.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        auto source = read_buffer(&items[i].from, "from");
        auto target = read_buffer(&items[i].to, "to");
        if (!source || !target) {
            Error error = source ? target.error() : source.error();
            error.message = "copy " + std::to_string(i) + " of the batch: " + error.message;
            return error;
        }
        batch.push_back({std::move(*source), std::move(*target)});
    }
    return context->context.copy_batch(batch, read);
}

Result<void> finish(const Result<Receipt>& result, sidestep_receipt** receipt) {
    if (!result) return result.error();
    if (receipt != nullptr) *receipt = new sidestep_receipt{*result};
    return {};
}

}  // namespace

extern "C" {

const sidestep_error* sidestep_last_error(void) {
    return &last_error().view;
}

const char* sidestep_status_text(sidestep_status status) {
    return status == SIDESTEP_OK ? "done" : sidestep::to_string(static_cast<ErrorCode>(status));
}

const char* sidestep_version(void) {
    return sidestep::version();
}

void sidestep_free(char* text) {
    std::free(text);
}

sidestep_status sidestep_open(const char* machine, sidestep_context** context) {
    return guarded([&]() -> Result<void> {
        if (context == nullptr) return null_argument("context");
        sidestep::ContextOptions options;
        if (machine != nullptr) options.machine = machine;
        SIDESTEP_TRY(auto opened, Context::open(std::move(options)));
        *context = new sidestep_context{std::move(opened)};
        return {};
    });
}

void sidestep_close(sidestep_context* context) {
    delete context;
}

sidestep_status sidestep_allocate(sidestep_context* context, const char* place, uint64_t size,
                                  sidestep_allocation** allocation) {
    return guarded([&]() -> Result<void> {
        if (context == nullptr) return null_argument("context");
        if (allocation == nullptr) return null_argument("allocation");
        SIDESTEP_TRY(auto where, read_place(place, "place"));
        SIDESTEP_TRY(auto memory, context->context.allocate(where, size));
        std::string name = memory.place().to_string();
        *allocation = new sidestep_allocation{std::move(memory), std::move(name)};
        return {};
    });
}

sidestep_buffer sidestep_allocation_buffer(const sidestep_allocation* allocation) {
    if (allocation == nullptr) return {nullptr, nullptr, 0, 0};
    return {allocation->place.c_str(), allocation->memory.address(), 0, allocation->memory.size()};
}

void sidestep_release(sidestep_allocation* allocation) {
    delete allocation;
}

sidestep_status sidestep_pin(sidestep_context* context, void* address, uint64_t size,
                             sidestep_pinned** pinned) {
    return guarded([&]() -> Result<void> {
        if (context == nullptr) return null_argument("context");
        if (pinned == nullptr) return null_argument("pinned");
        SIDESTEP_TRY(auto held, context->context.pin(sidestep::Buffer::host(address, size)));
        *pinned = new sidestep_pinned{std::move(held)};
        return {};
    });
}

void sidestep_unpin(sidestep_pinned* pinned) {
    delete pinned;
}

sidestep_status sidestep_route(sidestep_context* context, const char* from, const char* to, uint64_t size,
                               const sidestep_options* options, sidestep_format format, char** text) {
    return guarded([&]() -> Result<void> {
        if (context == nullptr) return null_argument("context");
        if (text == nullptr) return null_argument("text");
        if (format != SIDESTEP_TEXT && format != SIDESTEP_JSON) return bad_format(format);
        SIDESTEP_TRY(auto source, read_place(from, "from"));
        SIDESTEP_TRY(auto target, read_place(to, "to"));
        SIDESTEP_TRY(auto read, read_options(options));
        SIDESTEP_TRY(auto route, context->context.route(source, target, size, read));
        return hand_out(format == SIDESTEP_JSON ? route.to_json() : route.to_string(), text);
    });
}

sidestep_status sidestep_copy(sidestep_context* context, const sidestep_buffer* from,
                              const sidestep_buffer* to, const sidestep_options* options,
                              sidestep_receipt** receipt) {
    return guarded([&]() -> Result<void> {
        SIDESTEP_TRY(auto transfer, begin(context, from, to, options));
        return finish(transfer.wait(), receipt);
    });
}

sidestep_status sidestep_copy_start(sidestep_context* context, const sidestep_buffer* from,
                                    const sidestep_buffer* to, const sidestep_options* options,
                                    sidestep_transfer** transfer) {
    return guarded([&]() -> Result<void> {
        if (transfer == nullptr) return null_argument("transfer");
        SIDESTEP_TRY(auto started, begin(context, from, to, options));
        *transfer = new sidestep_transfer(std::move(started));
        return {};
    });
}

sidestep_status sidestep_copy_poll(sidestep_transfer* transfer, int* ended) {
    return guarded([&]() -> Result<void> {
        if (transfer == nullptr) return null_argument("transfer");
        if (ended == nullptr) return null_argument("ended");
        if (!transfer->ended) transfer->ended = transfer->transfer.poll();
        *ended = transfer->ended ? 1 : 0;
        return transfer->ended ? finish(*transfer->ended, nullptr) : Result<void>();
    });
}

sidestep_status sidestep_copy_wait(sidestep_transfer* transfer, sidestep_receipt** receipt) {
    return guarded([&]() -> Result<void> {
        if (transfer == nullptr) return null_argument("transfer");
        if (!transfer->ended) transfer->ended = transfer->transfer.wait();
        return finish(*transfer->ended, receipt);
    });
}

void sidestep_copy_cancel(sidestep_transfer* transfer) {
    if (transfer == nullptr) return;
    (void)guarded([&]() -> Result<void> {
        transfer->transfer.cancel();
        return {};
    });
}

void sidestep_copy_progress(const sidestep_transfer* transfer, uint64_t* done, uint64_t* total) {
    if (done != nullptr) *done = transfer != nullptr ? transfer->transfer.bytes_done() : 0;
    if (total != nullptr) *total = transfer != nullptr ? transfer->transfer.bytes_total() : 0;
}

sidestep_status sidestep_copy_keep(sidestep_transfer* transfer, void* owner, void (*release)(void*)) {
    return guarded([&]() -> Result<void> {
        if (transfer == nullptr) return null_argument("transfer");
        if (release == nullptr) return null_argument("release");
        transfer->transfer.keep({owner, release});
        return {};
    });
}

sidestep_status sidestep_copy_event_fd(sidestep_transfer* transfer, int* descriptor) {
    return guarded([&]() -> Result<void> {
        if (transfer == nullptr) return null_argument("transfer");
        if (descriptor == nullptr) return null_argument("descriptor");
        SIDESTEP_TRY(auto made, transfer->transfer.event_fd());
        *descriptor = made;
        return {};
    });
}

sidestep_status sidestep_copy_batch(sidestep_context* context, const sidestep_batch_item* items, size_t count,
                                    const sidestep_options* options, sidestep_receipt** receipt) {
    return guarded([&]() -> Result<void> {
        SIDESTEP_TRY(auto transfer, begin_batch(context, items, count, options));
        return finish(transfer.wait(), receipt);
    });
}

sidestep_status sidestep_copy_batch_start(sidestep_context* context, const sidestep_batch_item* items,
                                          size_t count, const sidestep_options* options,
                                          sidestep_transfer** transfer) {
    return guarded([&]() -> Result<void> {
        if (transfer == nullptr) return null_argument("transfer");
        SIDESTEP_TRY(auto started, begin_batch(context, items, count, options));
        *transfer = new sidestep_transfer(std::move(started));
        return {};
    });
}

void sidestep_copy_free(sidestep_transfer* transfer) {
    delete transfer;
}

uint64_t sidestep_receipt_bytes(const sidestep_receipt* receipt) {
    return receipt != nullptr ? receipt->receipt.bytes : 0;
}

double sidestep_receipt_seconds(const sidestep_receipt* receipt) {
    return receipt != nullptr ? receipt->receipt.seconds : 0;
}

int sidestep_receipt_verified(const sidestep_receipt* receipt) {
    return receipt != nullptr && receipt->receipt.verified ? 1 : 0;
}

sidestep_status sidestep_explain(const sidestep_receipt* receipt, sidestep_format format, char** text) {
    return guarded([&]() -> Result<void> {
        if (receipt == nullptr) return null_argument("receipt");
        if (text == nullptr) return null_argument("text");
        if (format != SIDESTEP_TEXT && format != SIDESTEP_JSON) return bad_format(format);
        return hand_out(format == SIDESTEP_JSON ? receipt->receipt.to_json() : receipt->receipt.explain(),
                        text);
    });
}

void sidestep_receipt_free(sidestep_receipt* receipt) {
    delete receipt;
}

}  // extern "C"
