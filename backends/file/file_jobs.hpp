// The pieces in flight between files and memory.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/file/depth_controller.hpp"
#include "backends/file/file_registration.hpp"
#include "backends/file/slices.hpp"
#include "driver/file_io_engine.hpp"

namespace sidestep::backends::file {

class FileJobs;

// Host memory that files are read into and written from. Needs nothing to be read or written by the kernel. Memory that is used over and over, such as a staging
// ring, is pinned once with the engine instead of for each request: FileJobs decides that, and its mutex
// guards what follows.
class MemoryRegistration final : public backend::Registration {
public:
    using Registration::Registration;
    ~MemoryRegistration() override;

private:
    friend class FileJobs;

    Bytes moved_ = 0;                 // to or from it, so far
    unsigned offered_to_ = 0;         // the engine of that number
    int kept_ = -1;                   // that engine's number for it; below 0: it is not kept
    std::shared_ptr<FileJobs> jobs_;  // where it is kept
};

// Feeds an engine slice by slice, carries on where a read or write fell short, and ends each piece's flight. Any thread may
// call; look() is what moves things on, and threads of the engines make it too.
class FileJobs : public std::enable_shared_from_this<FileJobs> {
public:
    // How many requests are outstanding at once: reads and writes around the page cache wait for a device,
    // the others for a thread that copies.
    struct Depths {
        DepthController::Bounds around;
        DepthController::Bounds written;
        DepthController::Bounds copies;
    };
    using Engine = Result<std::unique_ptr<driver::FileIoEngine>>;
    // `copier` reads what the page cache holds and writes through maps, where it is given. `remake` makes the engine that
    // takes a broken one's place, as soon as nothing is in flight in that one; null: there is none.
    FileJobs(std::unique_ptr<driver::FileIoEngine> engine, const Depths& depths,
             std::unique_ptr<driver::FileIoEngine> copier = nullptr, std::function<Engine()> remake = {});
    ~FileJobs() { end(); }

    // Both registrations outlive the job. As backend::Backend::start().
    Result<backend::Progress> start(FileRegistration& file, MemoryRegistration& memory, bool write,
                                    const std::vector<Slice>& slices, backend::Flight& flight);
    // As backend::Backend::look().
    bool look() { return (to_look_for_.load(std::memory_order_relaxed) > 0 || overdue()) && tell(); }

    // driver::FileIoEngine::end() of both engines: where it answers false, this object is kept.
    bool end();

    // Memory that goes away, of which nothing is in flight.
    void forget(MemoryRegistration& memory);

private:
    using Clock = std::chrono::steady_clock;
    struct Job;
    struct Request : Slice {
        Job* job = nullptr;
        int idle_tries = 0;   // in a row that moved nothing
        bool copied = false;  // by the copier
        bool with_engine = false;
        Clock::time_point begun;
    };
    struct Job final : backend::Withdrawable {
        explicit Job(FileJobs& all) : jobs(all) {}
        bool withdraw() override { return jobs.withdraw(*this); }

        FileJobs& jobs;
        backend::Flight* flight = nullptr;  // null: start() has yet to hand it out, or it has ended
        std::list<std::shared_ptr<Job>>::iterator place;  // in jobs_
        FileRegistration* file = nullptr;
        MemoryRegistration* memory = nullptr;
        bool write = false;
        std::vector<Request> requests;  // never resized: the engine holds their addresses as tags
        std::size_t unfinished = 0;     // requests whose bytes have not all moved
        std::size_t with_engine = 0;
        std::optional<Error> error;  // the first one
        bool withdrawn = false;

        bool ended() const { return error ? with_engine == 0 : unfinished == 0; }
    };

    using Over = std::pair<backend::Flight*, Result<void>>;

    // Requests that wait for the same thing.
    struct Way {
        std::deque<Request*> ready;  // to be submitted, first come first served
        unsigned outstanding = 0;
        unsigned hanging = 0;                  // of those
        std::optional<DepthController> depth;  // nothing: what the engine takes
    };

    bool withdraw(Job& job);
    bool overdue() const;  // it is time to find what hangs
    bool tell();           // what has ended, by threads of engines too
    // All with the mutex held.
    void pump();
    void submit_ready();
    void submit(Request& request, Clock::time_point now);
    void replace_broken();
    // The engine's number for the memory; below 0: it is not kept.
    int kept(const MemoryRegistration& memory) const;
    bool may_submit(const Way& way) const;
    Request* take(Way& way);
    void find_hung(Clock::time_point now);
    Way& way_of(const Request& request);
    bool may_be_copied(const Request& request) const;
    void keep(MemoryRegistration& memory, const std::vector<Request>& requests);
    void ended(Request& request, std::int64_t result, Clock::time_point now);
    void finish(Request& request, std::int64_t result);
    void advance(Request& request, Bytes moved);
    void refused(Request& request, int number);
    void fail(Job& job, Error error);

    std::mutex mutex_;  // guards what follows
    std::list<std::shared_ptr<Job>> jobs_;
    std::vector<Over> over_;  // that look() has yet to tell
    // Reads around the page cache; copies that take a thread a while; those that end as soon as they are
    // submitted; writes around the page cache.
    std::array<Way, 4> ways_;
    std::size_t turn_ = 0;  // the way whose requests are submitted first
    std::vector<driver::FileCompletion> ended_;
    unsigned with_engine_ = 0;
    unsigned hanging_ = 0;                     // of those
    unsigned untold_ = 0;                      // of those, that only reap() tells of
    std::atomic<std::size_t> to_look_for_{0};  // untold_, and what over_ has: read without the mutex
    static constexpr Clock::rep never = std::numeric_limits<Clock::rep>::max();
    std::atomic<Clock::rep> find_hung_at_{never};  // read without the mutex
    const std::function<Engine()> remake_;
    std::optional<Error> refusal_;  // why there is no other engine in the place of one that is broken
    unsigned engine_number_ = 1;
    bool missed_ring_ = false;  // threads have taken the place of one
    // Last: destroyed first, while the jobs are there.
    std::unique_ptr<driver::FileIoEngine> copier_;  // may be null
    bool copier_works_ = copier_ != nullptr;
    std::unique_ptr<driver::FileIoEngine> engine_;
};

}  // namespace sidestep::backends::file
