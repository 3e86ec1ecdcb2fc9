// How far bytes have come through memory in parts.
#pragma once

#include <algorithm>
#include <span>

#include "backend/network.hpp"

namespace sidestep::backends::tcp {

// One thread. The parts belong to the caller, who names the same ones each time.
class Walk {
public:
    using Parts = std::span<const backend::Memory>;

    // So many bytes have come, or gone; 0 at first, which leads past parts without bytes.
    void step_on(Parts parts, Bytes bytes) {
        within_ += bytes;
        while (part_ < parts.size() && within_ >= parts[part_].size) within_ -= parts[part_++].size;
    }
    // Where the next bytes go, as many as lie together. There are some.
    backend::Memory next(Parts parts) const {
        const backend::Memory& part = parts[part_];
        return {static_cast<unsigned char*>(part.address) + within_, part.size - within_};
    }
    // Adds what comes next to a list that has `count` of `room` entries: so many bytes at most. Answers how many they are.
    template <typename Room>
    Bytes list(Parts parts, Bytes most, Room& room, std::size_t& count) const {
        Bytes all = 0;
        Bytes within = within_;
        for (std::size_t i = part_; i < parts.size() && count < room.size() && all < most; ++i) {
            const Bytes size = std::min(parts[i].size - within, most - all);
            if (size > 0) room[count++] = {static_cast<unsigned char*>(parts[i].address) + within, size};
            all += size;
            within = 0;
        }
        return all;
    }

private:
    std::size_t part_ = 0;
    Bytes within_ = 0;
};

}  // namespace sidestep::backends::tcp
