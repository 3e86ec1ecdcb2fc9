// What a node counts of its clients, for whoever watches it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include <sidestep/place.hpp>
#include "wire/messages.hpp"
#include "wire/traffic.hpp"

namespace sidestep::wire {

// Why somebody was turned away.
enum class Refusal : std::size_t {
    key,          // another key
    silent,       // did not say in time who it is
    full,         // too many are here
    data_socket,  // of no client, or without the key of its session
    probe,        // too many probes
    other,        // hung up, or spoke something else
};
constexpr std::size_t refusals = 6;

// Any thread; nothing here waits.
class Counters {
public:
    static constexpr std::size_t words = static_cast<std::size_t>(last_word) + 1;
    static constexpr std::size_t outcomes = static_cast<std::size_t>(ErrorCode::internal) + 1;  // 0: good
    static constexpr std::size_t kinds = 5;
    static constexpr std::array<PlaceKind, kinds> kind_list{PlaceKind::host, PlaceKind::gpu, PlaceKind::file,
                                                            PlaceKind::shared, PlaceKind::p2pmem};
    // Upper bounds of the time that a question took, in seconds; a last one without a bound comes behind.
    static constexpr std::array<double, 13> bounds{1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2,
                                                   3e-2, 0.1,  0.3,  1,    3,    10};

    void answered(Word word, const Result<std::string>& answer, std::chrono::nanoseconds took);
    void refused(Refusal why) { refused_[static_cast<std::size_t>(why)].fetch_add(1); }
    Traffic& traffic(PlaceKind kind);

    std::uint64_t answers(std::size_t word, std::size_t outcome) const { return answered_[word][outcome]; }
    std::uint64_t refusals_of(Refusal why) const { return refused_[static_cast<std::size_t>(why)]; }
    const Traffic& traffic_of(std::size_t kind) const { return traffic_[kind]; }
    // Of the bound at that place alone.
    std::uint64_t times(std::size_t bound) const { return times_[bound]; }
    double seconds() const { return static_cast<double>(nanoseconds_.load()) / 1e9; }

private:
    std::array<std::array<std::atomic<std::uint64_t>, outcomes>, words> answered_{};
    std::array<std::atomic<std::uint64_t>, refusals> refused_{};
    std::array<Traffic, kinds> traffic_{};
    std::array<std::atomic<std::uint64_t>, bounds.size() + 1> times_{};
    std::atomic<std::uint64_t> nanoseconds_{0};
};

}  // namespace sidestep::wire
