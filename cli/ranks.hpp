// Processes of one job on this host: started together, read together, ended together.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::cli {

// How a job ended: the exit code of the first process that failed (128 and the signal where one ended it), 0
// where none did, and which process that was, in words.
struct JobEnd {
    int code = 0;
    std::string
        said;  // "rank 2 (process 4711) ended with exit code 3; the others were ended"; empty: all well
};

// Copies of one program that differ in their environments, each in a process group of its own. They get
// SIGTERM when this process dies, whatever way. One thread.
class Ranks {
public:
    // `environments`: for each rank the whole of it, "NAME=value". With `prefixed` what they print is read
    // here and printed by run(), each line behind its rank; else they print where this process does. Rank 0
    // gets this process's standard input unless that is a terminal; the others get an empty one.
    // ErrorCode::not_found where there is no such program; nothing runs then.
    static Result<Ranks> start(const std::vector<std::string>& program,
                               const std::vector<std::vector<std::string>>& environments, bool prefixed);
    Ranks(Ranks&&) noexcept;
    Ranks& operator=(Ranks&&) = delete;
    // Kills what still runs.
    ~Ranks();

    // Until all have ended: prints, and passes SIGINT, SIGTERM and SIGHUP on. When one fails the others get
    // SIGTERM, and after `grace` SIGKILL.
    JobEnd run(std::chrono::milliseconds grace);

private:
    struct State;
    explicit Ranks(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

// Becomes the program, found as a shell finds it. Returns only where that fails: ErrorCode::not_found or
// permission_denied.
Error become(const std::vector<std::string>& program, const std::vector<std::string>& environment);

// A TCP port of this host that was free a moment ago; 0 where none can be had.
int free_port();

}  // namespace sidestep::cli
