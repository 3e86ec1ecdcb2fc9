// What is alike in GPUs of tests whose memory is the host's.
#pragma once

#include <cstring>

#include "backend/device_memory.hpp"

namespace sidestep::wire::test {

// Its own engine is memcpy(), and it sees at once what was written.
struct HostPages : backend::DmaBufs {
    Result<void> see_writes(const Place&) override { return {}; }
    Result<void> copy_in(const Buffer& to, const void* from) override {
        std::memcpy(to.address(), from, to.size());
        return {};
    }
    Result<void> copy_out(const Buffer& from, void* to) override {
        std::memcpy(to, from.address(), from.size());
        return {};
    }
};

}  // namespace sidestep::wire::test
