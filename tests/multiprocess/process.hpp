// A second process that does what a test tells it, and the folder both meet in.
#pragma once

#include <sys/types.h>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <cstdlib>

#include <sidestep/context.hpp>

namespace sidestep::multiprocess {

// The machine that every process of these tests emulates, unless this variable of the environment names
// another one.
constexpr const char* machine_name = "dgx-h100";
constexpr const char* machine_variable = "SIDESTEP_DRILL_MACHINE";

// A folder of this test's own, removed with what is in it.
class TestFolder {
public:
    TestFolder();
    ~TestFolder();
    TestFolder(const TestFolder&) = delete;
    TestFolder& operator=(const TestFolder&) = delete;
    const std::string& path() const { return path_; }
    std::string socket(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

// A Context of this process that meets others in the folder. Fails the test where there is none.
Context open_context(const TestFolder& folder);

// What a peer does: makes a `Server` of its Context, and answers the lines it is told by obey(). The exit
// code.
template <typename Server>
int serve(const std::string& folder) {
    ContextOptions options;
    const char* const other = std::getenv(machine_variable);
    options.machine = other != nullptr ? other : machine_name;
    options.peer_folder = folder;
    auto context = Context::open(options);
    if (!context) return 1;
    Server server(std::move(*context));
    for (std::string line; std::getline(std::cin, line);) std::cout << server.obey(line) << std::endl;
    return 0;
}

// This program once more, as a peer: peer_main.cpp lists the commands. Ended, by force if need be, with the
// object.
class Peer {
public:
    // `launcher`: words before those of the program, such as Container::enter() says; `where`: what the folder is called
    // there, where that is something else.
    explicit Peer(const TestFolder& folder, const std::vector<std::string>& launcher = {},
                  const std::string& where = {});
    ~Peer();
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;

    // Sends a command and answers what comes back: "ok", or an error's code and text. "" where it died or is
    // silent for 110 s: half a minute is what six ranks under a sanitizer need on a busy machine.
    std::string tell(const std::string& command);
    // Stops it (SIGSTOP), and waits until it stands still.
    void stop() const;
    void go_on() const;
    // Ends it with SIGKILL and waits until it is gone.
    void kill();
    // As this process numbers it.
    pid_t process() const { return process_; }

private:
    pid_t started_ = -1;  // the launcher, or the same
    pid_t process_ = -1;
    int to_ = -1;
    int from_ = -1;
};

void fill(const Buffer& memory, unsigned seed);
// "" where the memory holds what fill() writes from `first` on, else the first difference.
std::string differs(const Buffer& memory, unsigned seed, Bytes first = 0);

// Open descriptors of a process; 0: of this one.
std::size_t open_descriptors(pid_t process = 0);
// Whether this process has no more than so many, within a minute: connections are closed by a thread.
bool soon_has_descriptors(std::size_t most);

// What main() does as a peer.
int serve(const std::string& folder);

}  // namespace sidestep::multiprocess
