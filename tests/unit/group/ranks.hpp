// Groups within one process on an emulated machine, and memory to run them on.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include <sidestep/group.hpp>

namespace sidestep::groups {

// What a rank sends: sums are exact in any order. The same for i and i + period.
constexpr std::size_t period = 101;
inline int small_number(int rank, std::size_t i) {
    return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % period) - 50;
}

// Memory of numbers with that period, filled and compared in a few passes: a sanitizer takes longer for a loop over all of it.
template <typename Number>
void fill(const Allocation& memory, std::size_t count, const Number& number) {
    int* const all = static_cast<int*>(memory.address());
    for (std::size_t i = 0; i < std::min(count, period); ++i) all[i] = number(i);
    for (std::size_t done = period; done < count; done *= 2)
        std::memcpy(all + done, all, std::min(done, count - done) * sizeof(int));
}
template <typename Number>
bool holds(const Allocation& memory, std::size_t count, const Number& number) {
    const int* const all = static_cast<const int*>(memory.address());
    for (std::size_t i = 0; i < std::min(count, period); ++i)
        if (all[i] != number(i)) return false;
    return count <= period || std::memcmp(all, all + period, (count - period) * sizeof(int)) == 0;
}

// A folder that other test programs do not use, removed with the object.
struct Folder {
    Folder() {
        std::string name = "/tmp/sidestep-group-XXXXXX";
        if (::mkdtemp(name.data()) != nullptr) path = name;
    }
    ~Folder() {
        std::error_code ignored;
        if (!path.empty()) std::filesystem::remove_all(path, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    std::size_t entries() const {
        std::size_t count = 0;
        for (const auto& entry : std::filesystem::directory_iterator(path))
            if (!entry.path().filename().string().starts_with('.')) ++count;
        return count;
    }
    std::string path;
};

inline std::vector<Place> gpus(int count) {
    std::vector<Place> places;
    for (int i = 0; i < count; ++i) places.push_back(Place::gpu(i % 8));
    return places;
}

// Runs `part` for every rank on a thread of its own.
inline void on_all(std::vector<Group>& groups, const std::function<void(Group&)>& part) {
    std::vector<std::thread> threads;
    for (Group& group : groups) threads.emplace_back([&group, &part] { part(group); });
    for (std::thread& thread : threads) thread.join();
}

// As gtest wants it: says what went wrong.
template <typename T>
testing::AssertionResult ok(const Result<T>& result) {
    if (result.ok()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << result.error().to_string();
}

// Until the others have let go: on a busy machine that takes longer than one call waits.
inline Result<void> detach(Group& group, const Buffer& buffer) {
    for (;;) {
        const auto detached = group.detach(buffer);
        if (detached.ok() || detached.error().code != ErrorCode::timed_out) return detached;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

class GroupTest : public testing::Test {
protected:
    GroupTest() {
        ContextOptions options;
        options.machine = "dgx-h100";
        options.peer_folder = folder.path;
        context.emplace(std::move(Context::open(options)).value());
    }

    std::vector<Group> make(int ranks, GroupOptions options = {}) {
        if (options.timeout == GroupOptions{}.timeout) options.timeout = std::chrono::milliseconds(30'000);
        auto made = Group::local(*context, gpus(ranks), options);
        EXPECT_TRUE(ok(made));
        return made ? std::move(*made) : std::vector<Group>();
    }

    template <typename T>
    Allocation allocate(const Group& group, std::size_t count) {
        auto memory = context->allocate(group.place(), std::max<std::size_t>(count, 1) * sizeof(T));
        EXPECT_TRUE(ok(memory));
        return std::move(*memory);
    }

    Folder folder;
    std::optional<Context> context;
};

template <typename T>
T* at(const Allocation& memory) {
    return static_cast<T*>(memory.address());
}

// An all_to_all_v in which two ranks exchange blocks of one size, size(a, b) values, and all blocks of a rank
// lie one behind the other, in its send as in its recv.
class Exchange {
public:
    using Size = std::function<std::uint64_t(int, int)>;
    Exchange(int ranks, const Size& size) {
        for (int rank = 0; rank < ranks; ++rank) {
            auto& own = offsets_.emplace_back(1, 0);
            auto& counts = counts_.emplace_back();
            for (int other = 0; other < ranks; ++other) {
                counts.push_back(size(rank, other));
                own.push_back(own.back() + counts.back());
            }
        }
    }
    BlockLists of(int rank) const {
        const std::uint64_t* const counts = counts_.at(index(rank)).data();
        const std::uint64_t* const offsets = offsets_.at(index(rank)).data();
        return {counts, offsets, counts, offsets, false};
    }
    // Whose value, and the how manieth of its send, place i of the rank's recv gets; nothing beyond the last
    // block.
    std::optional<std::pair<int, std::size_t>> source(int rank, std::size_t i) const {
        const auto& own = offsets_.at(index(rank));
        if (i >= own.back()) return std::nullopt;
        int from = 0;
        while (own[index(from) + 1] <= i) ++from;
        return std::pair(from, offsets_.at(index(from))[index(rank)] + i - own[index(from)]);
    }

private:
    static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
    std::vector<std::vector<std::uint64_t>> counts_, offsets_;
};

}  // namespace sidestep::groups
