#include "backends/file/file_jobs.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "driver/system_error.hpp"

namespace sidestep::backends::file {
namespace {

enum { around = 0, copies = 1, small = 2, written = 3 };

// Enough for 2 TiB of slices.
constexpr std::size_t max_ready = std::size_t{1} << 20;

// A request that is interrupted so often in a row without moving a byte will not get anywhere.
constexpr int max_idle_tries = 1000;

// Smaller ones are copied from the page cache quicker than a kernel thread is woken. With O_DIRECT too:
// some file systems (tmpfs) copy all the same, and on the others pages are pinned beside one another.
constexpr Bytes background_from = 64_KiB + 1;

// Memory is kept with the engine once as much has moved as it is large, so not for a single pass; and not
// where it is so little that there is nothing to gain. It halves the processor time of requests with O_DIRECT
// (docs/lab-book.md, "What constants stand on").
constexpr Bytes min_kept = 1_MiB;

// A file that has answered nothing for so long hangs, until it does. One that is only slow loses nothing by that.
constexpr auto hangs_after = std::chrono::seconds(1);

// So many that hang are made up for: each may keep a thread, or two.
constexpr unsigned max_hanging = 128;

Error end_of_file(const FileRegistration& file, const Slice& at) {
    return driver::ended_early(file.fd(false), file.path(), at.offset + at.before, at.asked(),
                               file.buffer().place().to_string());
}

std::uint64_t tag_of(const Slice& request) {
    return reinterpret_cast<std::uint64_t>(&request);
}

// What was to go around it is not there.
void go_through_cache(Slice& slice) {
    slice.go_through_cache();
    slice.missing = slice.size;
}

Error failed(const FileRegistration& file, const Slice& at, bool write, int number) {
    return driver::system_error(
        number,
        fmt::format("cannot {} {} bytes of {} at offset {}", write ? "write" : "read", at.asked(),
                    file.path(), at.offset + at.before),
        file.buffer().place().to_string(),
        number == ESTALE ? "the file was removed or replaced on its server: open it anew" : "");
}

}  // namespace

MemoryRegistration::~MemoryRegistration() {
    if (jobs_) jobs_->forget(*this);
}

FileJobs::FileJobs(std::unique_ptr<driver::FileIoEngine> engine, const Depths& depths,
                   std::unique_ptr<driver::FileIoEngine> copier, std::function<Engine()> remake)
    : remake_(std::move(remake)), copier_(std::move(copier)), engine_(std::move(engine)) {
    ways_[around].depth.emplace(depths.around);
    ways_[copies].depth.emplace(depths.copies);
    ways_[written].depth.emplace(depths.written);
    for (driver::FileIoEngine* each : {engine_.get(), copier_.get()})
        if (each != nullptr) each->set_callback([this] { tell(); });
}

Result<backend::Progress> FileJobs::start(FileRegistration& file, MemoryRegistration& memory, bool write,
                                          const std::vector<Slice>& slices, backend::Flight& flight) {
    auto job = std::make_shared<Job>(*this);
    job->file = &file;
    job->memory = &memory;
    job->write = write;
    job->unfinished = slices.size();
    job->requests.resize(slices.size());
    const std::lock_guard lock(mutex_);
    std::size_t waiting = 0;
    for (const Way& way : ways_) waiting += way.ready.size();
    if (waiting + slices.size() > max_ready) {
        return Error{ErrorCode::out_of_memory,
                     fmt::format("{} reads and writes are waiting already", waiting), file.path(),
                     "wait for some copies before starting more, or copy less at once"};
    }
    for (std::size_t i = 0; i < slices.size(); ++i) {
        Request& request = job->requests[i];
        static_cast<Slice&>(request) = slices[i];
        request.job = job.get();
        way_of(request).ready.push_back(&request);
    }
    keep(memory, job->requests);
    pump();
    to_look_for_.store(untold_ + over_.size(), std::memory_order_relaxed);
    if (job->ended()) {
        if (job->error) return *job->error;
        return backend::Progress::done;
    }
    job->flight = &flight;
    flight.queued(job);
    job->place = jobs_.insert(jobs_.end(), nullptr);
    *job->place = std::move(job);
    return backend::Progress::pending;
}

// Writes to one file take turns in the kernel, so that threads of our own would only wait for each other:
// unless they copy into a map of the file.
bool FileJobs::may_be_copied(const Request& request) const {
    if (request.direct || request.size < background_from) return false;
    return !request.job->write || request.job->file->mapped(request.offset, request.size) != nullptr;
}

FileJobs::Way& FileJobs::way_of(const Request& request) {
    if (request.direct) return ways_[request.job->write ? written : around];
    return ways_[request.size >= background_from ? copies : small];
}

// Threads that copy have no use for it.
void FileJobs::keep(MemoryRegistration& memory, const std::vector<Request>& requests) {
    if (memory.offered_to_ == engine_number_) return;
    const Bytes size = memory.buffer().size();
    if (memory.moved_ >= size && size >= min_kept) {
        memory.offered_to_ = engine_number_;
        memory.kept_ = engine_->keep_memory(memory.buffer().address(), size);
        if (memory.kept_ >= 0) memory.jobs_ = shared_from_this();
    }
    for (const Request& request : requests)
        if (!copier_ || !may_be_copied(request)) memory.moved_ += request.asked();
}

// Threads of an engine that ends may be at look(), which takes the mutex.
bool FileJobs::end() {
    const bool copied = !copier_ || copier_->end();
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!engine_->calls_back()) lock.lock();
    return engine_->end() && copied;
}

void FileJobs::forget(MemoryRegistration& memory) {
    const std::lock_guard lock(mutex_);
    engine_->drop_memory(kept(memory));
}

int FileJobs::kept(const MemoryRegistration& memory) const {
    return memory.offered_to_ == engine_number_ ? memory.kept_ : -1;
}

bool FileJobs::withdraw(Job& job) {
    const std::lock_guard lock(mutex_);
    if (job.flight == nullptr || std::exchange(job.withdrawn, true)) return false;
    backend::Flight* const flight = std::exchange(job.flight, nullptr);
    if (!job.error) fail(job, Error{ErrorCode::cancelled, "it was withdrawn", job.file->path()});
    for (Request& request : job.requests)
        if (request.with_engine) (request.copied ? copier_ : engine_)->withdraw(tag_of(request));
    if (job.with_engine > 0) pump();
    to_look_for_.store(untold_ + over_.size(), std::memory_order_relaxed);
    if (job.ended()) {
        jobs_.erase(job.place);
        return true;
    }
    job.flight = flight;
    return false;
}

bool FileJobs::tell() {
    std::vector<Over> over;
    bool left = false;
    {
        const std::lock_guard lock(mutex_);
        pump();
        over.swap(over_);
        left = untold_ > 0;
        to_look_for_.store(untold_, std::memory_order_relaxed);
    }
    for (auto& [flight, result] : over) flight->end(std::move(result));
    return left;
}

bool FileJobs::overdue() const {
    const Clock::rep at = find_hung_at_.load(std::memory_order_relaxed);
    return at != never && Clock::now().time_since_epoch().count() >= at;
}

// What hangs does not count, so that other files go on as if it were not there. The file itself gets no further requests.
void FileJobs::find_hung(Clock::time_point now) {
    hanging_ = 0;
    for (Way& way : ways_) way.hanging = 0;
    for (const auto& job : jobs_) job->file->hangs_ = false;
    unsigned copied = 0;
    for (const auto& job : jobs_)
        for (Request& request : job->requests) {
            if (!request.with_engine || hanging_ == max_hanging) continue;
            if (now - std::max(request.begun, job->file->last_ended_) < hangs_after) continue;
            job->file->hangs_ = true;
            ++hanging_;
            ++way_of(request).hanging;
            copied += request.copied;
        }
    engine_->make_up_for(hanging_ - copied);
    if (copier_) copier_->make_up_for(copied);
}

void FileJobs::pump() {
    if (overdue()) {
        const auto now = Clock::now();
        find_hung(now);
        const bool more = with_engine_ > 0;
        find_hung_at_.store(more ? (now + hangs_after).time_since_epoch().count() : never);
    }
    submit_ready();
    ended_.clear();
    engine_->reap(ended_);
    if (copier_) copier_->reap(ended_);
    if (ended_.empty()) return;
    const auto now = Clock::now();
    for (const driver::FileCompletion& completion : ended_) {
        ended(*reinterpret_cast<Request*>(completion.tag), completion.result, now);
    }
    submit_ready();
}

bool FileJobs::may_submit(const Way& way) const {
    if (way.ready.empty() || with_engine_ - hanging_ >= engine_->depth()) return false;
    return !way.depth || way.outstanding - way.hanging < way.depth->depth();
}

// Null: there is none but of files that hang.
FileJobs::Request* FileJobs::take(Way& way) {
    auto at = way.ready.begin();
    if (hanging_ > 0)
        at = std::ranges::find_if(way.ready, [](Request* each) { return !each->job->file->hangs_; });
    if (at == way.ready.end()) return nullptr;
    Request* const request = *at;
    way.ready.erase(at);
    return request;
}

void FileJobs::submit_ready() {
    bool any = false;
    Clock::time_point now;
    // In turns, so that none keeps the engine to itself.
    for (std::size_t i = 0; i < ways_.size(); ++i) {
        Way& way = ways_[(turn_ + i) % ways_.size()];
        while (may_submit(way)) {
            Request* const request = take(way);
            if (request == nullptr) break;
            if (!any) now = Clock::now();
            any = true;
            if (way.outstanding++ == 0 && way.depth) way.depth->woken(now);
            submit(*request, now);
        }
    }
    if (!any) return;
    if (find_hung_at_.load(std::memory_order_relaxed) == never)
        find_hung_at_.store((now + hangs_after).time_since_epoch().count());
    turn_ = (turn_ + 1) % ways_.size();
    engine_->flush();
    if (copier_) copier_->flush();
}

// What a broken engine has begun may still write to memory, so it stays until all of that has ended. Only engines that do not
// call back break, so untold_ counts its requests.
void FileJobs::replace_broken() {
    if (!remake_ || engine_->broken() == 0 || untold_ > 0) return;
    Engine made = remake_();
    if (!made) {
        refusal_ = made.error();
        return;
    }
    refusal_.reset();
    missed_ring_ = (*made)->name() != engine_->name();
    engine_ = std::move(*made);
    ++engine_number_;
    engine_->set_callback([this] { tell(); });
}

void FileJobs::submit(Request& request, Clock::time_point now) {
    Job& job = *request.job;
    const bool wished = copier_ && may_be_copied(request);
    request.copied = wished && copier_works_;
    if (wished && !request.copied) job.file->miss_threads();
    if (!request.copied) replace_broken();
    if (!request.copied && missed_ring_) job.file->miss_ring();
    driver::FileRequest order;
    order.write = job.write;
    order.kept_memory = kept(*job.memory);
    // Pinning is what takes long in a request around the cache.
    const bool quick = request.direct && order.kept_memory >= 0;
    order.in_background = request.size >= background_from && !quick;
    order.fd = job.file->fd(request.direct).get();
    order.address = request.address;
    order.size = request.size;
    order.offset = request.offset;
    order.tag = tag_of(request);
    if (request.copied && job.write) order.mapped = job.file->mapped(request.offset, request.size);
    driver::FileIoEngine& engine = request.copied ? *copier_ : *engine_;
    engine.submit(order);
    if (!engine.calls_back()) ++untold_;
    ++with_engine_;
    ++job.with_engine;
    request.with_engine = true;
    request.begun = now;
}

void FileJobs::ended(Request& request, std::int64_t result, Clock::time_point now) {
    Way& way = way_of(request);
    if (way.depth) {
        const bool wanted = !way.ready.empty() || way.outstanding >= way.depth->depth();
        way.depth->ended(now, result > 0 ? static_cast<Bytes>(result) : 0, wanted);
    }
    --way.outstanding;
    --with_engine_;
    if (!(request.copied ? copier_ : engine_)->calls_back()) --untold_;
    Job& job = *request.job;
    --job.with_engine;
    request.with_engine = false;
    job.file->last_ended_ = now;
    if (job.file->hangs_) find_hung(now);
    finish(request, result);
    if (!job.ended() || job.flight == nullptr) return;  // start() tells of one that it has yet to hand out
    over_.emplace_back(std::exchange(job.flight, nullptr),
                       job.error ? Result<void>(std::move(*job.error)) : Result<void>());
    jobs_.erase(job.place);
}

void FileJobs::finish(Request& request, std::int64_t result) {
    Job& job = *request.job;
    if (job.error) return;  // the piece has failed already; this request was waited for only
    if (result < 0) return refused(request, static_cast<int>(-result));
    if (result == 0) {
        return fail(job, job.write ? failed(*job.file, request, true, EIO) : end_of_file(*job.file, request));
    }
    advance(request, std::min(static_cast<Bytes>(result), request.size));
}

void FileJobs::advance(Request& request, Bytes moved) {
    Job& job = *request.job;
    // The file may end within what comes along after the bytes asked for.
    const Bytes needed = request.size - request.after;
    const Bytes useful = std::min(moved, needed);
    const Bytes asked = useful - std::min(useful, request.before);
    const Bytes missed = std::min(request.missing, asked);
    request.missing -= missed;
    if (job.write == job.file->writable()) job.file->count(request.direct, asked, missed);
    if (job.write && request.copied) job.file->count_mapped(asked);
    if (moved >= needed) {
        --job.unfinished;
        return;
    }
    request.address += moved;
    request.offset += moved;
    request.size -= moved;
    request.before -= std::min(moved, request.before);
    request.idle_tries = 0;
    // What is left may no longer begin at a block.
    if (request.direct && moved % direct_block != 0) go_through_cache(request);
    way_of(request).ready.push_front(&request);
}

void FileJobs::refused(Request& request, int number) {
    Job& job = *request.job;
    if (!request.copied && number == engine_->broken()) {
        Error error = failed(*job.file, request, job.write, number);
        error.message = fmt::format("{} takes no request any more: {}", engine_->name(), error.message);
        return fail(job, refusal_.value_or(std::move(error)));
    }
    // ECANCELED: the thread that submitted has ended, and its requests with it.
    const bool passing = number == EINTR || number == EAGAIN || number == ECANCELED;
    // EINVAL: the device wants another alignment than the usual one. EFAULT: it cannot reach that memory
    // itself.
    const bool refuses = number == EINVAL || number == EOPNOTSUPP || number == EFAULT;
    if (passing && ++request.idle_tries <= max_idle_tries) {
        // once more
    } else if (number == ENOMEM && request.copied) {
        copier_works_ = false;  // the process may have no further thread
    } else if (number == EFAULT && request.copied && job.write) {
        job.file->stop_mapping();  // whether there really is no room tells the system call
    } else if (refuses && request.direct && !job.file->insists()) {
        job.file->stop_going_around();
        go_through_cache(request);
    } else {
        return fail(job, failed(*job.file, request, job.write, number));
    }
    way_of(request).ready.push_front(&request);
}

void FileJobs::fail(Job& job, Error error) {
    job.error = std::move(error);
    for (Way& way : ways_)
        std::erase_if(way.ready, [&job](const Request* request) { return request->job == &job; });
}

}  // namespace sidestep::backends::file
