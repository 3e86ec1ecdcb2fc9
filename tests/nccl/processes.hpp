// Ranks in processes of their own: this program once more.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sidestep::nccl_test {

// What a rank of its own does: see processes.cpp for the arguments.
int run_rank(const std::vector<std::string>& arguments);

// A rank that runs. Ended, by force if need be, with the object.
class RankProcess {
public:
    RankProcess(int rank, int ranks, const std::string& id, const std::string& task);
    ~RankProcess();
    RankProcess(const RankProcess&) = delete;
    RankProcess& operator=(const RankProcess&) = delete;

    // A line that it printed; "" where it ended or was silent for half a minute.
    std::string line();
    void kill();
    // What it ended with, after at most half a minute; -1 for a signal or a time-out.
    int ended();
    pid_t process() const { return process_; }

private:
    pid_t process_ = -1;
    int output_ = -1;
};

}  // namespace sidestep::nccl_test
