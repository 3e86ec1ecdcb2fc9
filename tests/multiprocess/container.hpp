// Namespaces of processes, as containers are made of: unshare(1) and nsenter(1) of util-linux.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sidestep::multiprocess {

// A process that only waits, the first one of new namespaces: once it is killed, so are all in its namespace of process
// numbers. Killed with the object; it ends with the program as well.
class Container {
public:
    // `options`: of unshare(1); `script`: what its first process runs before it waits.
    explicit Container(const std::vector<std::string>& options, const std::string& script = "");
    ~Container();
    Container(const Container&) = delete;
    Container& operator=(const Container&) = delete;

    // Empty where it was made; else what unshare says.
    const std::string& why_not() const { return why_not_; }
    // Words to put before those of a program that is to run in there.
    std::vector<std::string> enter() const;
    void kill();

private:
    const std::vector<std::string> options_;
    int alive_ = -1;  // the first process ends with it
    pid_t unshare_ = -1;
    pid_t first_ = -1;
    std::string why_not_;
};

// The number of a process as itself sees it; 0 where there is none.
int number_inside(pid_t process);
// Of a process that has one child at the most: that one, awaited for some seconds; -1: there is none.
pid_t child_of(pid_t process);

}  // namespace sidestep::multiprocess
