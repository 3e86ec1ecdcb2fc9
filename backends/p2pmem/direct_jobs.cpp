#include "backends/p2pmem/direct_jobs.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "backends/p2pmem/refusals.hpp"
#include "backends/p2pmem/store_fence.hpp"
#include "base/rounding.hpp"
#include "driver/files.hpp"
#include "driver/system_error.hpp"

namespace sidestep::backends::p2pmem {
namespace {

// Of one request. Larger ones only keep the end of a copy waiting for its last piece.
constexpr Bytes max_at_once = 64_MiB;
// Host memory of a request that is not direct, copied by whoever polls.
constexpr Bytes bounce_size = 64_KiB;
constexpr std::size_t max_ready = 1 << 16;
// A request that is interrupted so often in a row without moving a byte will not get anywhere.
constexpr int max_idle_tries = 1000;

}  // namespace

Result<backend::Ticket> DirectJobs::start(DirectFile& file, bool write, const DeviceRange& memory,
                                          Bytes offset, Bytes size) {
    auto job = std::make_unique<Job>();
    job->file = &file;
    job->write = write;
    job->memory = memory.name;
    const Bytes block = file.block();
    const Bytes begin = base::round_up(offset, block);
    const Bytes end = (offset + size) / block * block;
    const auto first = reinterpret_cast<std::uintptr_t>(memory.address) + (begin - offset);
    const bool direct = begin < end && first % file.address_unit() == 0;
    if (!direct && file.strict() && size >= block)
        return Error{
            ErrorCode::path_unavailable,
            fmt::format("the drive cannot move {} bytes at offset {} of {} to or from the address {}", size,
                        offset, file.path(), static_cast<void*>(memory.address)),
            "p2pmem backend",
            fmt::format("begin at a multiple of {} in file and memory", format_bytes(block))};
    const auto add = [&](Bytes from, Bytes to, bool straight) {
        if (from >= to) return;
        Request request;
        request.job = job.get();
        request.address = memory.address + (from - offset);
        request.offset = from;
        request.size = to - from;
        request.direct = straight;
        job->requests.push_back(std::move(request));
    };
    add(offset, direct ? begin : offset + size, false);
    if (direct) add(begin, end, true);
    if (direct) add(end, offset + size, false);
    job->unfinished = job->requests.size();

    const std::lock_guard lock(mutex_);
    if (ready_.size() + job->requests.size() > max_ready)
        return Error{ErrorCode::out_of_memory,
                     fmt::format("{} reads and writes are waiting already", ready_.size()), file.path(),
                     "wait for some copies before starting more"};
    for (Request& request : job->requests) ready_.push_back(&request);
    const backend::Ticket ticket{next_ticket_};
    next_ticket_ += 2;
    jobs_.emplace(ticket.id, std::move(job));
    pump();
    return ticket;
}

Result<backend::Progress> DirectJobs::poll(backend::Ticket ticket) {
    const std::lock_guard lock(mutex_);
    pump();
    const auto found = jobs_.find(ticket.id);
    if (found == jobs_.end())
        return Error{ErrorCode::internal, "a ticket that is spent was polled", "p2pmem backend", {}};
    if (!found->second->ended()) return backend::Progress::pending;
    const auto job = std::move(found->second);
    jobs_.erase(found);
    if (job->error) return *job->error;
    return backend::Progress::done;
}

bool DirectJobs::end() {
    const std::lock_guard lock(mutex_);
    return engine_->end();
}

void DirectJobs::pump() {
    submit_ready();
    ended_.clear();
    engine_->reap(ended_);
    if (ended_.empty()) return;
    for (const driver::FileCompletion& completion : ended_)
        finish(*reinterpret_cast<Request*>(completion.tag), completion.result);
    submit_ready();
}

void DirectJobs::submit_ready() {
    if (ready_.empty()) return;
    while (!ready_.empty() && with_engine_ < engine_->depth()) {
        Request& request = *ready_.front();
        ready_.pop_front();
        driver::FileRequest order;
        order.write = request.job->write;
        order.fd = request.job->file->fd(request.direct).get();
        order.address = request.address;
        order.size = std::min(request.size, max_at_once);
        order.offset = request.offset;
        order.tag = reinterpret_cast<std::uint64_t>(&request);
        if (!request.direct) {
            order.size = std::min(request.size, bounce_size);
            request.bounce.resize(order.size);
            order.address = request.bounce.data();
            if (order.write) std::memcpy(request.bounce.data(), request.address, order.size);
        }
        engine_->submit(order);
        ++with_engine_;
        ++request.job->with_engine;
    }
    engine_->flush();
}

void DirectJobs::finish(Request& request, std::int64_t result) {
    Job& job = *request.job;
    --with_engine_;
    --job.with_engine;
    if (job.error) return;  // the piece has failed already; this request was waited for only
    if (result < 0) return refused(request, static_cast<int>(-result));
    if (result == 0 && job.write) return refused(request, EIO);
    if (result == 0)
        return fail(job, driver::ended_early(job.file->fd(false), job.file->path(), request.offset,
                                             request.size, job.file->buffer().place().to_string()));
    const auto moved = std::min(static_cast<Bytes>(result), request.size);
    if (!request.direct && !job.write) {
        std::memcpy(request.address, request.bounce.data(), moved);
        store_fence();
    }
    job.file->count(request.direct, moved);
    request.address += moved;
    request.offset += moved;
    request.size -= moved;
    request.idle_tries = 0;
    if (request.size == 0) {
        --job.unfinished;
        return;
    }
    // What is left of a short transfer may no longer begin at a block.
    if (request.direct && moved % job.file->block() != 0) request.direct = false;
    ready_.push_front(&request);
}

void DirectJobs::refused(Request& request, int number) {
    Job& job = *request.job;
    // ECANCELED: the thread that submitted has ended, and its requests with it.
    const bool passing = number == EINTR || number == EAGAIN || number == ECANCELED;
    if (passing && ++request.idle_tries <= max_idle_tries) {
        ready_.push_front(&request);
        return;
    }
    const std::string place = job.file->buffer().place().to_string();
    if (request.direct && is_refusal(number)) {
        backend::Support why =
            refusal(number, fmt::format("the drive below {}", job.file->path()), job.memory);
        return fail(job, {ErrorCode::path_unavailable, std::move(why.reason), place, std::move(why.remedy)});
    }
    fail(job, driver::system_error(
                  number,
                  fmt::format("cannot {} {} bytes of {} at offset {}", job.write ? "write" : "read",
                              request.size, job.file->path(), request.offset),
                  place));
}

void DirectJobs::fail(Job& job, Error error) {
    job.error = std::move(error);
    std::erase_if(ready_, [&job](const Request* request) { return request->job == &job; });
}

}  // namespace sidestep::backends::p2pmem
