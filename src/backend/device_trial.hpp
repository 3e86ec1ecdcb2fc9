// Whether a network card reads and writes memory of a GPU where it says that it does. Registering it succeeds on machines where
// bytes then go elsewhere: a switch that turns them around, a driver of another version.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "backend/device_memory.hpp"

namespace sidestep::backend {

constexpr Bytes device_trial_bytes = Bytes{256} << 10;

// How a card is tried out with a GPU's memory.
struct DeviceTrial {
    std::string_view card;
    void* host = nullptr;                     // device_trial_bytes that the card reads and writes
    std::function<void(void*)> make_unknown;  // fills them with bytes that nobody knew before
    std::function<Result<void>()> carry_in;   // the card brings them to the GPU's memory; when they are there
    std::function<Result<void>()> carry_back;  // and what lies there back to them
};

// The GPU's own engine tells what has come to `scratch`, device_trial_bytes of its memory, and puts others there. mismatch
// where other bytes came; else as carrying them fails. Blocks.
Result<void> try_device(const DeviceTrial& trial, DmaBufs& gpus, const Buffer& scratch);

// What came of trials, by how a GPU's memory is reached. Whether bytes arrive unhurt is asked once; what kept them from being
// sent may be over. Any thread.
class DeviceTrials {
public:
    using Clock = std::chrono::steady_clock;
    // A trial that nothing answers takes seconds, and memory is registered piece by piece.
    static constexpr std::chrono::seconds silence_holds_for{10};

    // `who`: to whom memory that fails is not trusted, for the log.
    Result<void> once(int way, const Place& gpu, std::string_view who,
                      const std::function<Result<void>()>& attempt, Clock::time_point now = Clock::now());

private:
    struct Outcome {
        Result<void> result;
        Clock::time_point holds_until;
    };
    std::mutex mutex_;  // held during a trial; guards what follows
    std::map<std::pair<int, Place>, Outcome> done_;
};

}  // namespace sidestep::backend
