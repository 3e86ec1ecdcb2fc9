// Connections of a plugin's devices with themselves, over which memory is tried before anybody counts on it.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <sidestep/result.hpp>

#include "backends/ncclnet/bulk.hpp"

namespace sidestep::backends::ncclnet {

// A plugin registers memory with a connection, and says only then whether it takes it. Connections are made at the first
// question, and again after one has failed. Any thread but the pump's.
class Loopbacks {
public:
    Loopbacks(Plugin plugin, const Patience& patience, std::shared_ptr<Pump> pump)
        : plugin_(std::move(plugin)), patience_(patience), pump_(std::move(pump)) {}
    Loopbacks(const Loopbacks&) = delete;
    Loopbacks& operator=(const Loopbacks&) = delete;

    // Every device takes it, to send from and to receive into; else what the first said that does not. timed_out where the
    // plugin does not come as far as that.
    Result<void> take(const std::shared_ptr<const Range>& range);
    // By one of the devices, which has taken a range before, from one piece into the other; when the bytes are there. Where it
    // fails, the plugin may go on with them for a while: `keeps` holds both pieces meanwhile.
    Result<void> carry(std::size_t device, Bulk::Piece from, Bulk::Piece into,
                       std::shared_ptr<const void> keeps);

    // Closes them, on the pump; once, and last.
    void close();

private:
    class Loop;
    // A device's connection with itself.
    struct Own {
        std::shared_ptr<Bulk> bulk{};
        std::shared_ptr<Loop> loop{};
    };
    void drop(Own& own, std::shared_ptr<const void> keeps = nullptr);
    Result<void> take(Own& own, int device, const std::shared_ptr<const Range>& range);
    Error silent(const char* what) const;

    const Plugin plugin_;
    const Patience patience_;
    const std::shared_ptr<Pump> pump_;
    std::mutex mutex_;       // guards what follows; one question at a time
    std::vector<Own> owns_;  // by device; empty ones: none
};

}  // namespace sidestep::backends::ncclnet
