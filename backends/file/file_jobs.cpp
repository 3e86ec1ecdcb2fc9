#include "backends/file/file_jobs.hpp"

#include <cerrno>

#include <fmt/format.h>

#include "driver/system_error.hpp"

namespace sidestep::backends::file {
namespace {

// Enough for 2 TiB of slices.
constexpr std::size_t most_ready = std::size_t{1} << 20;

// A request that is interrupted so often in a row without moving a byte will not get anywhere.
constexpr int most_idle_tries = 1000;

// Smaller ones are copied from the page cache quicker than a kernel thread is woken. With O_DIRECT too:
// some file systems (tmpfs) copy all the same, and on the others pages are pinned beside one another.
constexpr Bytes background_from = 64_KiB + 1;

Error end_of_file(const FileRegistration& file, const Slice& at) {
    std::string why = "the device is smaller than it says";
    if (const auto size = driver::size_now(file.fd(false))) {
        why = fmt::format("it {} {} bytes", *size <= at.offset ? "has shrunk to" : "claims to have", *size);
    }
    return {ErrorCode::end_of_file,
            fmt::format("{} ended at byte {}, {} bytes early: {}", file.path(), at.offset, at.size, why),
            file.buffer().place().to_string(), "do not change a file while it is copied"};
}

Error failed(const FileRegistration& file, const Slice& at, bool write, int number) {
    return driver::system_error(number,
                                fmt::format("cannot {} {} bytes of {} at offset {}", write ? "write" : "read",
                                            at.size, file.path(), at.offset),
                                file.buffer().place().to_string());
}

}  // namespace

Result<backend::Ticket> FileJobs::start(FileRegistration& file, bool write,
                                        const std::vector<Slice>& slices) {
    auto job = std::make_unique<Job>();
    job->file = &file;
    job->write = write;
    job->unfinished = slices.size();
    job->requests.resize(slices.size());
    const std::lock_guard lock(mutex_);
    if (ready_.size() + slices.size() > most_ready) {
        return Error{ErrorCode::out_of_memory,
                     fmt::format("{} reads and writes are waiting already", ready_.size()), file.path(),
                     "wait for some copies before starting more, or copy less at once"};
    }
    for (std::size_t i = 0; i < slices.size(); ++i) {
        Request& request = job->requests[i];
        static_cast<Slice&>(request) = slices[i];
        request.job = job.get();
        ready_.push_back(&request);
    }
    pump();
    if (job->ended() && !job->error) return backend::Ticket{};
    const backend::Ticket ticket{next_ticket_++};
    jobs_.emplace(ticket.id, std::move(job));
    return ticket;
}

Result<backend::Progress> FileJobs::poll(backend::Ticket ticket) {
    if (ticket.done()) return backend::Progress::done;
    const std::lock_guard lock(mutex_);
    pump();
    const auto found = jobs_.find(ticket.id);
    if (found == jobs_.end()) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("ticket {} is not in flight", ticket.id),
                     "file backend",
                     {}};
    }
    if (!found->second->ended()) return backend::Progress::pending;
    const auto job = std::move(found->second);
    jobs_.erase(found);
    if (job->error) return *job->error;
    return backend::Progress::done;
}

void FileJobs::pump() {
    submit_ready();
    ended_.clear();
    engine_->reap(ended_);
    if (ended_.empty()) return;
    for (const driver::FileCompletion& completion : ended_) {
        finish(*reinterpret_cast<Request*>(completion.tag), completion.result);
    }
    submit_ready();
}

void FileJobs::submit_ready() {
    if (ready_.empty()) return;
    while (!ready_.empty() && with_engine_ < engine_->depth()) {
        Request& request = *ready_.front();
        ready_.pop_front();
        driver::FileRequest order;
        order.write = request.job->write;
        order.in_background = request.size >= background_from;
        order.fd = request.job->file->fd(request.direct).get();
        order.address = request.address;
        order.size = request.size;
        order.offset = request.offset;
        order.tag = reinterpret_cast<std::uint64_t>(&request);
        engine_->submit(order);
        ++with_engine_;
        ++request.job->with_engine;
    }
    engine_->flush();
}

void FileJobs::finish(Request& request, std::int64_t result) {
    Job& job = *request.job;
    --with_engine_;
    --job.with_engine;
    if (job.error) return;  // the piece has failed already; this request was waited for only
    if (result < 0) return refused(request, static_cast<int>(-result));
    if (result == 0) {
        return fail(job, job.write ? failed(*job.file, request, true, EIO) : end_of_file(*job.file, request));
    }
    const auto moved = std::min(static_cast<Bytes>(result), request.size);
    request.address += moved;
    request.offset += moved;
    request.size -= moved;
    request.idle_tries = 0;
    if (request.size == 0) {
        --job.unfinished;
        return;
    }
    if (request.direct && moved % direct_block != 0) {
        // What is left no longer begins at a block.
        request.direct = false;
        job.file->count_through_cache(request.size);
    }
    ready_.push_front(&request);
}

void FileJobs::refused(Request& request, int number) {
    Job& job = *request.job;
    // ECANCELED: the thread that submitted has ended, and its requests with it.
    const bool passing = number == EINTR || number == EAGAIN || number == ECANCELED;
    if (passing && ++request.idle_tries <= most_idle_tries) {
        ready_.push_front(&request);
        return;
    }
    if (number == EINVAL && request.direct && !job.file->strict()) {
        // The device wants another alignment than the usual one.
        request.direct = false;
        job.file->count_through_cache(request.size);
        ready_.push_front(&request);
        return;
    }
    fail(job, failed(*job.file, request, job.write, number));
}

void FileJobs::fail(Job& job, Error error) {
    job.error = std::move(error);
    std::erase_if(ready_, [&job](const Request* request) { return request->job == &job; });
}

}  // namespace sidestep::backends::file
