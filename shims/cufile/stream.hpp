// Reads and writes in the order of a CUDA stream. What they are of is read when the stream comes to them.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include <sidestep/allocation.hpp>
#include "shims/cufile/moving.hpp"
#include "shims/cufile/stream_driver.hpp"

namespace sidestep::cufile {

// As callers give it. All stays where it is until the stream has passed the operation.
struct StreamRequest {
    CUfileHandle_t handle = nullptr;
    void* base = nullptr;
    const std::size_t* size = nullptr;
    const off_t* file_offset = nullptr;
    const off_t* base_offset = nullptr;
    ssize_t* result = nullptr;
    CallKind kind = CallKind::stream_read;
};

// A word that a stream waits on. Every operation on the stream has a number, one more than that before, and its end is the word
// reaching it. Numbers go on when another stream gets the word, so one that is late to look still finds its number reached.
struct StreamWord {
    std::uint32_t* word = nullptr;
    // The order of the numbers is that on the stream. Whoever holds it may wait in CUDA, so ends do not need it.
    std::mutex enqueuing;
    std::uint32_t last = 0;  // of the numbers given; guarded by it
    // Guarded by the mutex of the words.
    unsigned long long of_gpu = 0;  // 8 bytes of the stream's GPU
    StreamKey stream;
    std::size_t in_flight = 0;
};

// Streams, and the words of those that have operations in flight. Safe to use from several threads.
class Streams {
public:
    static Streams& get();

    // What cuFileStreamRegister is told. It changes nothing: parameters are read late on every stream.
    Refusal add(CUstream stream, unsigned flags);
    Refusal remove(CUstream stream);
    void clear();

    // The stream's word, with one operation more in flight. Waits, for a minute at most, where the stream has as many as it
    // may have: more would fill its queue, and CUDA's calls would wait then.
    Refusal lease(const StreamKey& stream, StreamWord*& leased);
    // The operation has ended.
    void give_back(StreamWord& word) noexcept;

private:
    static constexpr std::size_t most_words = 256;
    static constexpr std::size_t most_in_flight = 128;  // of a stream
    static constexpr std::size_t bytes_a_word = 64;     // a cache line each

    Refusal make_words();
    Refusal find_bytes(const StreamKey& stream, unsigned long long& address);
    StreamWord* find(const StreamKey& stream);

    std::mutex mutex_;  // guards what follows
    std::condition_variable ended_one_;
    std::set<CUstream> registered_;
    std::optional<Allocation> memory_;
    std::map<CUctx_st*, unsigned long long> of_gpus_;  // never freed: a free waits for streams that wait
    std::array<StreamWord, most_words> words_;
};

// Puts it on the stream, and returns; on the null stream it is done when the call returns.
Refusal enqueue(const StreamRequest& request, CUstream stream);

}  // namespace sidestep::cufile
