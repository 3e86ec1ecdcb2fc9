// Two links by a network plugin of NCCL, which is a stand-in over loopback (fake_nccl_net.cpp).
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include "backends/ncclnet/ncclnet_engine.hpp"
#include "tests/contents.hpp"
#include "tests/network/link_rig.hpp"
#include "tests/network/target.hpp"

namespace sidestep::wire::test {

// The stand-in, of which each test may ask for a fault. It is loaded by a name of its own for each start that shall be the
// first one.
class StandIn {
public:
    explicit StandIn(std::string path = SIDESTEP_FAKE_NCCL_NET) : path_(std::move(path)) {
        void* const library = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return;
        fault_ = reinterpret_cast<void (*)(const char*)>(::dlsym(library, "fake_nccl_net_fault"));
        open_ = reinterpret_cast<int (*)()>(::dlsym(library, "fake_nccl_net_open"));
        flushes_ = reinterpret_cast<int (*)()>(::dlsym(library, "fake_nccl_net_flushes"));
        sends_ = reinterpret_cast<int (*)(int)>(::dlsym(library, "fake_nccl_net_sends"));
        hanging_ = reinterpret_cast<int (*)()>(::dlsym(library, "fake_nccl_net_hanging"));
    }
    ~StandIn() { fault(""); }

    const std::string& path() const { return path_; }
    // The same library under a name that nobody has used yet.
    std::string new_name() const {
        static std::atomic<std::size_t> count{0};
        std::string dots;
        for (std::size_t i = ++count; i > 0; --i) dots += "/.";
        return std::string(path_).insert(path_.rfind('/'), dots);
    }
    void fault(const char* name) const {
        if (fault_ != nullptr) fault_(name);
    }
    // Bytes that came into memory of a GPU, and were made to be seen there.
    int flushes() const { return flushes_ != nullptr ? flushes_() : -1; }
    // Messages that one of the quick devices has sent: 0 or 1.
    int sends(int device) const { return sends_ != nullptr ? sends_(device + 1) : -1; }
    int hanging() const { return hanging_ != nullptr ? hanging_() : 0; }
    int open() const { return open_ != nullptr ? open_() : -1; }

private:
    const std::string path_;
    void (*fault_)(const char*) = nullptr;
    int (*open_)() = nullptr;
    int (*flushes_)() = nullptr;
    int (*hanging_)() = nullptr;
    int (*sends_)(int) = nullptr;
};

class NcclNet : public TwoEnds<backends::ncclnet::Engine> {
public:
    static constexpr Bytes mib = Bytes{1} << 20;

protected:
    void start(backends::ncclnet::Options options = {}) {
        if (options.plugin.empty()) options.plugin = plugin.path();
        engine = backends::ncclnet::Engine::create(options).value();
    }
    // Sends each way once, so that both ends are joined.
    void send_once() {
        const std::string bytes = sidestep::test::text_of(mib, 7);
        std::atomic<std::uint64_t> sent{0};
        const std::array<Bytes, 2> before = {targets[0]->came, targets[1]->came};
        push(0, bytes, mib, sent);
        push(1, bytes, mib, sent);
        ASSERT_TRUE(comes([&] {
            return sent == 2 && targets[0]->came == before[0] + mib && targets[1]->came == before[1] + mib;
        }));
    }
    // Whatever has happened, the plugin has nothing left.
    void TearDown() override {
        plugin.fault("");
        for (auto& link : links)
            if (link) link->end(some_error());
        engine.reset();
        EXPECT_TRUE(comes([&] { return plugin.open() == 0; })) << plugin.open() << " things are open";
    }

    StandIn plugin;
};

}  // namespace sidestep::wire::test
