// The pieces in flight between files and device memory.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backends/p2pmem/direct_file.hpp"
#include "driver/file_io_engine.hpp"

namespace sidestep::backends::p2pmem {

// Device memory at one end of a piece.
struct DeviceRange {
    char* address = nullptr;
    std::string name;  // of the place, for messages
};

// Whole blocks go between drive and device memory by one plain O_DIRECT request after the other; what lies
// beside them goes through a small buffer of host memory. Any thread may call; poll() is what moves things
// on.
class DirectJobs {
public:
    explicit DirectJobs(std::unique_ptr<driver::FileIoEngine> engine) : engine_(std::move(engine)) {}

    // `file` outlives the job. Tickets are even.
    Result<backend::Ticket> start(DirectFile& file, bool write, const DeviceRange& memory, Bytes offset,
                                  Bytes size);
    // After an error nothing of the piece is with the engine any more. ErrorCode::path_unavailable where the
    // kernel keeps the drive away from the memory.
    Result<backend::Progress> poll(backend::Ticket ticket);

    // driver::FileIoEngine::end(): where it answers false, this object is kept, small buffers and all.
    bool end();

private:
    struct Job;
    struct Request {
        Job* job = nullptr;
        char* address = nullptr;
        Bytes offset = 0;  // in the file
        Bytes size = 0;    // still to be moved
        bool direct = false;
        int idle_tries = 0;        // in a row that moved nothing
        std::vector<char> bounce;  // of a request that is not direct
    };
    struct Job {
        DirectFile* file = nullptr;
        bool write = false;
        std::string memory;
        std::vector<Request> requests;  // never resized: the engine holds their addresses as tags
        std::size_t unfinished = 0;
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
    std::deque<Request*> ready_;
    std::vector<driver::FileCompletion> ended_;
    unsigned with_engine_ = 0;
    std::uint64_t next_ticket_ = 2;
    std::unique_ptr<driver::FileIoEngine> engine_;  // last: destroyed first, while the jobs are there
};

}  // namespace sidestep::backends::p2pmem
