// Other programs, run without a shell and never for longer than they may.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include <sidestep/result.hpp>

#include <sys/types.h>

namespace sidestep::bench {

struct Ended {
    int code = 0;        // exit code, or 128 and the signal that ended it
    std::string output;  // standard output, as much of it as wait() was to keep
    std::string errors;  // standard error, likewise
};

// The program's path by the environment's PATH, or empty.
std::string find_program(const std::string& name);

// A process in a group of its own, so that its children end with it. The destructor kills what still runs.
class Child {
public:
    // `arguments` without the program's name.
    static Result<Child> start(const std::string& program, const std::vector<std::string>& arguments);
    Child(Child&& other) noexcept;
    Child& operator=(Child&&) = delete;
    ~Child();

    // Reads its output until it has ended, and keeps `max` bytes of each kind; what exceeds them is dropped.
    // `line`, where there is one, takes each whole line of standard output as it comes, on the calling thread; it is not kept.
    // With the process killed, ErrorCode::timed_out after `limit`, and ErrorCode::cancelled once `stop` is
    // requested.
    Result<Ended> wait(std::chrono::milliseconds limit, std::size_t max = std::size_t{4} << 20,
                       const std::stop_token& stop = {},
                       const std::function<void(const std::string&)>& line = {});

private:
    Child() = default;
    void kill_and_reap();

    pid_t process_ = -1;
    int output_ = -1;
    int errors_ = -1;
    std::string program_;
};

// Starts and waits.
Result<Ended> run_program(const std::string& program, const std::vector<std::string>& arguments,
                          std::chrono::milliseconds limit);

// The last line of what a program said that is not empty, for a message.
std::string last_line(const std::string& said);

}  // namespace sidestep::bench
