// The pieces in flight between files and memory.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "backends/file/file_registration.hpp"
#include "backends/file/slices.hpp"
#include "driver/file_io_engine.hpp"

namespace sidestep::backends::file {

// Feeds an engine slice by slice, carries on where a read or write fell short, and gathers what became
// of each piece. Any thread may call; poll() is what moves things on. Nothing is in flight any more when
// it is destroyed.
class FileJobs {
public:
    explicit FileJobs(std::unique_ptr<driver::FileIoEngine> engine) : engine_(std::move(engine)) {}

    // `file` outlives the job. The ticket is done where all bytes moved at once.
    Result<backend::Ticket> start(FileRegistration& file, bool write, const std::vector<Slice>& slices);
    // After an error nothing of the piece is with the engine any more.
    Result<backend::Progress> poll(backend::Ticket ticket);

private:
    struct Job;
    struct Request : Slice {
        Job* job = nullptr;
        int idle_tries = 0;  // in a row that moved nothing
    };
    struct Job {
        FileRegistration* file = nullptr;
        bool write = false;
        std::vector<Request> requests;  // never resized: the engine holds their addresses as tags
        std::size_t unfinished = 0;     // requests whose bytes have not all moved
        std::size_t with_engine = 0;
        std::optional<Error> error;  // the first one

        bool ended() const { return error ? with_engine == 0 : unfinished == 0; }
    };

    // All with the mutex held.
    void pump();
    void submit_ready();
    void finish(Request& request, std::int64_t result);
    void refused(Request& request, int number);
    void fail(Job& job, Error error);

    std::mutex mutex_;  // guards what follows
    std::unordered_map<std::uint64_t, std::unique_ptr<Job>> jobs_;
    std::deque<Request*> ready_;  // to be submitted, first come first served
    std::vector<driver::FileCompletion> ended_;
    unsigned with_engine_ = 0;
    std::uint64_t next_ticket_ = 1;
    std::unique_ptr<driver::FileIoEngine> engine_;  // last: destroyed first, while the jobs are there
};

}  // namespace sidestep::backends::file
