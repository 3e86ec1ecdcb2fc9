// Where members of groups go when their rank has left.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "collective/member.hpp"

namespace sidestep::collective {

// Members that have left and whose memory others may still use. Any thread.
class DepartedMembers {
public:
    DepartedMembers() = default;
    // Waits some seconds for those that are still here.
    ~DepartedMembers();
    DepartedMembers(const DepartedMembers&) = delete;
    DepartedMembers& operator=(const DepartedMembers&) = delete;

    // There is one more member; take() reports its end.
    void joined();
    // Leaves, and keeps the member as long as that takes. With the last one of this process it waits, some
    // seconds at most, until all have gone: programs take the GPU's context apart once they have left every
    // group. For other processes in a group that has failed it waits less than a second.
    void take(std::unique_ptr<Member> member);

private:
    std::vector<std::unique_ptr<Member>> take_finished();

    const ending::Maker maker_;
    std::mutex mutex_;  // guards what follows
    std::vector<std::unique_ptr<Member>> leaving_;
    std::size_t living_ = 0;
};

}  // namespace sidestep::collective
