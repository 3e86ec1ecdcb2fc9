// A file system that does not answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace sidestep::test {

// As long as it lives, pread() of one file does not come back before release(),
// and moves its bytes only then; of a folder stat() by that path does not. In
// programs that are linked with hung_reads.cpp. One at a time.
class HungReads {
public:
    explicit HungReads(const std::string& path);
    ~HungReads();  // releases, and waits for those that hang
    HungReads(const HungReads&) = delete;
    HungReads& operator=(const HungReads&) = delete;

    // Reads that hang now.
    int hanging() const;
    // They go on; answers what came of each, as pread() does, or -errno.
    std::vector<long> release();

    struct State;

private:
    std::shared_ptr<State> state_;
};

}  // namespace sidestep::test
