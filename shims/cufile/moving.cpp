#include "shims/cufile/moving.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>

#include <fmt/format.h>

#include "shims/cufile/buffers.hpp"
#include "shims/cufile/cached.hpp"
#include "shims/cufile/driver.hpp"
#include "shims/cufile/settings.hpp"
#include "shims/cufile/slots.hpp"

namespace sidestep::cufile {
namespace {

// Up to here the calling thread reads and writes the file itself, whatever the page cache holds, as the engine would with so
// little.
constexpr Bytes small_read = Bytes{64} << 10;
constexpr Bytes small_write = Bytes{256} << 10;
static_assert(small_write <= slot_bytes);

// Up to here it also reads by itself what the page cache holds: the engine has one thread copy so much. More is copied by several
// threads of the engine, however many the program brings: 16 MiB by each of 8 came to an H200 at 48 GB/s so, and at 38 by the
// calling threads.
constexpr Bytes read_alone = Bytes{2} << 20;

constexpr Bytes block = 4096;

// Bytes that moved, and which way. The receipt has more, but costs more.
struct Way {
    Moved moved;
    StorageBytes storage;
};

Way failed(Refusal refused) {
    return {{0, std::move(refused)}, {}};
}

// pread or pwrite until all is done, or the file ends.
Way move_here(const File& file, void* memory, Bytes size, Bytes offset, bool write) {
    Way way;
    while (way.moved.bytes < size) {
        auto* const at = static_cast<char*>(memory) + way.moved.bytes;
        const auto where = static_cast<off_t>(offset + way.moved.bytes);
        const ssize_t done = write ? ::pwrite(file.own(), at, size - way.moved.bytes, where)
                                   : ::pread(file.own(), at, size - way.moved.bytes, where);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) {
            way.moved.refused = system_refusal(
                errno, fmt::format("{} bytes at {} cannot be {}", size, offset, write ? "written" : "read"));
            break;
        }
        if (done == 0) break;
        way.moved.bytes += static_cast<Bytes>(done);
    }
    way.storage.page_cache = way.moved.bytes;
    return way;
}

Refusal copy(const Buffer& from, const Buffer& to, const std::shared_ptr<const Slots>& slots) {
    Transfer copying = Driver::get().context()->copy(from, to);
    return wait(copying, slots);
}

Way move_small(const Prepared& prepared, const Buffer& memory, Bytes offset) {
    const bool write = writes(prepared.kind);
    if (!memory.place().is_gpu())
        return move_here(*prepared.file, memory.address(), memory.size(), offset, write);
    const auto slots = slots_of_this_thread(*Driver::get().context());
    if (!slots) return failed(refusal_of(slots.error()));
    void* const slot = (*slots)->front();
    if (write) {
        if (auto refused = copy(memory, Buffer::host(slot, memory.size()), *slots))
            return failed(std::move(refused));
        return move_here(*prepared.file, slot, memory.size(), offset, true);
    }
    Way way = move_here(*prepared.file, slot, memory.size(), offset, false);
    if (way.moved.refused || way.moved.bytes == 0) return way;
    way.moved.refused = copy(Buffer::host(slot, way.moved.bytes), memory.slice(0, way.moved.bytes), *slots);
    if (way.moved.refused) way.moved.bytes = 0;
    return way;
}

bool goes_around_cache() {
    return settings().flag(CUFILE_PARAM_FORCE_ODIRECT_MODE);
}

CopyOptions options() {
    CopyOptions wanted;
    if (settings().flag(CUFILE_PARAM_FORCE_COMPAT_MODE)) wanted.require = Require::host;
    if (goes_around_cache()) wanted.page_cache = PageCache::bypass;
    if (settings().flag(CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE)) wanted.page_cache = PageCache::use;
    return wanted;
}

Way copied(const Result<Receipt>& done) {
    if (!done) return failed(refusal_of(done.error()));
    return {{done->bytes, {}}, done->storage};
}

// By the engine, up to the end of the file, where that comes first: also of one that is cut while it is read.
Way read_by_engine(const File& file, const Buffer& memory, Bytes offset) {
    for (Bytes last = std::numeric_limits<Bytes>::max();;) {
        Bytes size = 0;
        if (auto refused = file.size(size)) return failed(std::move(refused));
        if (offset >= size) return {};
        const Bytes bytes = std::min(memory.size(), size - offset);
        const Context& context = *Driver::get().context();
        const auto done =
            context.copy(Buffer::file(file.path(), offset, bytes), memory.slice(0, bytes), options()).wait();
        const bool cut = !done && done.error().code == ErrorCode::end_of_file && size < last;
        if (!cut) return copied(done);
        last = size;
    }
}

Way read_large(const Prepared& prepared) {
    Way way;
    const Bytes size = prepared.memory.size();
    if (!goes_around_cache() && size <= read_alone) {
        CachedRead cached = read_cached(*prepared.file, prepared.memory, prepared.offset);
        if (cached.refused) return failed(std::move(cached.refused));
        way.moved.bytes = way.storage.page_cache = cached.bytes;
        if (cached.ended || cached.bytes == size) return way;
    }
    const Bytes done = way.moved.bytes;
    Way rest =
        read_by_engine(*prepared.file, prepared.memory.slice(done, size - done), prepared.offset + done);
    rest.storage += way.storage;
    if (!rest.moved.refused) rest.moved.bytes += done;
    return rest;
}

// What lies beyond the end of the file is no place that the engine writes to. The last bytes first: so the file grows to what
// it will be, and is never cut, whoever else writes to it.
Way write_large(const Prepared& prepared) {
    const File& file = *prepared.file;
    Buffer memory = prepared.memory;
    Way tail;
    Bytes size = 0;
    if (auto refused = file.size(size)) return failed(std::move(refused));
    if (prepared.offset > size) {
        const Bytes kept = memory.size() - std::min(memory.size(), block);
        tail = move_small(prepared, memory.slice(kept, memory.size() - kept), prepared.offset + kept);
        if (tail.moved.refused || kept == 0) return tail;
        memory = memory.slice(0, kept);
    }
    Way way = copied(Driver::get()
                         .context()
                         ->copy(memory, Buffer::file(file.path(), prepared.offset, memory.size()), options())
                         .wait());
    if (!way.moved.refused) way.moved.bytes += tail.moved.bytes;
    way.storage += tail.storage;
    return way;
}

Refusal check(const Request& request) {
    constexpr auto most = static_cast<std::size_t>(std::numeric_limits<off_t>::max());
    if (request.handle == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the handle is null");
    if (request.base == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the address is null");
    if (request.file_offset < 0 || request.base_offset < 0)
        return refusal(CU_FILE_INVALID_VALUE,
                       fmt::format("an offset is negative ({} in the file, {} in memory)",
                                   request.file_offset, request.base_offset));
    if (request.size > most || static_cast<std::size_t>(request.file_offset) > most - request.size)
        return refusal(CU_FILE_INVALID_VALUE,
                       fmt::format("no file has {} bytes at {}", request.size, request.file_offset));
    return {};
}

bool is_aligned(const Prepared& prepared) {
    const auto address = reinterpret_cast<std::uintptr_t>(prepared.memory.address());
    return (prepared.offset | prepared.memory.size() | address) % block == 0;
}

}  // namespace

Refusal prepare(const Request& request, Prepared& prepared) {
    if (in_a_child()) return refused_in_a_child();
    if (auto wrong = check(request)) return wrong;
    Driver& driver = Driver::get();
    if (auto refused = driver.ensure_open()) return refused;
    prepared.file = Files::get().find(request.handle);
    if (!prepared.file)
        return refusal(CU_FILE_HANDLE_NOT_REGISTERED,
                       fmt::format("{} is no handle, or was given back", request.handle));
    const bool write = writes(request.kind);
    if (!(write ? prepared.file->can_write() : prepared.file->can_read()))
        return refusal(CU_FILE_INVALID_FILE_OPEN_FLAG,
                       fmt::format("the descriptor was not opened for {}", write ? "writing" : "reading"));
    prepared.offset = static_cast<Bytes>(request.file_offset);
    prepared.kind = request.kind;
    return Buffers::get().find(*driver.context(), request.base, static_cast<Bytes>(request.base_offset),
                               request.size, prepared.memory);
}

Moved move(const Prepared& prepared) {
    const auto begun = std::chrono::steady_clock::now();
    const Bytes size = prepared.memory.size();
    Way way;
    if (size != 0) {
        const bool write = writes(prepared.kind);
        if (size <= (write ? small_write : small_read) && !goes_around_cache())
            way = move_small(prepared, prepared.memory, prepared.offset);
        else
            way = write ? write_large(prepared) : read_large(prepared);
    }
    Call call;
    call.kind = prepared.kind;
    call.ok = !way.moved.refused;
    call.gpu = prepared.memory.place().is_gpu() ? prepared.memory.place().index() : -1;
    call.bytes = way.moved.bytes;
    call.unaligned = !is_aligned(prepared);
    call.storage = way.storage;
    call.nanoseconds = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begun)
            .count());
    note(call);
    return std::move(way.moved);
}

Moved run(const Request& request) noexcept {
    Moved moved;
    try {
        Prepared prepared;
        moved.refused = prepare(request, prepared);
        if (!moved.refused) return move(prepared);
    } catch (const std::bad_alloc&) {
        moved.refused.code = CU_FILE_NOMEM_ERROR;
    } catch (...) {
        moved.refused.code = CU_FILE_INTERNAL_ERROR;
    }
    Call call;
    call.kind = request.kind;
    call.ok = false;
    note(call);
    return moved;
}

ssize_t result_of(const Moved& moved) {
    if (!moved.refused) return static_cast<ssize_t>(moved.bytes);
    return -static_cast<ssize_t>(moved.refused.system != 0 ? moved.refused.system : moved.refused.code);
}

ssize_t answer_of(const char* call, const Moved& moved, int errno_before) noexcept {
    errno = errno_before;
    if (!moved.refused) return static_cast<ssize_t>(moved.bytes);
    note(call, moved.refused);
    errno = errno_before;
    if (moved.refused.system == 0) return -static_cast<ssize_t>(moved.refused.code);
    errno = moved.refused.system;
    return -1;
}

}  // namespace sidestep::cufile
