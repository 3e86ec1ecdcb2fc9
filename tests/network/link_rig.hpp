// Two links that are joined by sockets, or one and a bare socket, with owners that write down what they are told.
#pragma once

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "backend/network.hpp"
#include "backends/ncclnet/ncclnet_engine.hpp"
#include "backends/tcp/tcp_engine.hpp"
#include "config.hpp"
#include "driver/tls_socket.hpp"
#include "tests/network/loopback.hpp"

#if SIDESTEP_HAVE_VERBS
#include "backends/verbs/verbs_engine.hpp"
#endif

namespace sidestep::wire::test {

using backend::Frame;
using backend::Landing;

// The RDMA card that the tests run over instead of bare TCP; null: none, as below.
inline const char* verbs_card() {
    return std::getenv("SIDESTEP_TEST_VERBS");
}

// The same for a network plugin of NCCL: a library's path.
inline const char* network_plugin() {
    return std::getenv("SIDESTEP_TEST_NCCL_NET");
}

// Ends the program where there is no such card or plugin: nobody shall take the tests of TCP for those of another engine.
inline std::unique_ptr<backend::NetworkEngine> make_engine(std::size_t loops) {
    if (network_plugin() != nullptr)
        return backends::ncclnet::Engine::create({.plugin = network_plugin()}).value();
    if (verbs_card() == nullptr) return std::make_unique<backends::tcp::Engine>(loops);
#if SIDESTEP_HAVE_VERBS
    return backends::verbs::Engine::create({.cards = {verbs_card()}}).value();
#else
    abort_on_error({ErrorCode::unsupported, "this build has no verbs engine", "SIDESTEP_TEST_VERBS", {}});
#endif
}

// Of one end: what goes over sockets is encrypted where SIDESTEP_TEST_ENCRYPTION is set.
inline backend::SocketKeys test_keys() {
    if (std::getenv("SIDESTEP_TEST_ENCRYPTION") == nullptr) return {};
    return {std::string(driver::tls_secret_bytes, 'o'), std::string(driver::tls_secret_bytes, 'i')};
}

// For tests in which a bare socket says what it likes.
#define SIDESTEP_NEEDS_BARE_SOCKETS()                                       \
    if (test::verbs_card() != nullptr || test::network_plugin() != nullptr) \
    GTEST_SKIP() << "frames do not travel over the sockets of this "        \
                    "engine"

struct Came {
    Frame frame;
    std::string payload;
};

// Takes everything, unless it is told what else to do.
class FakeOwner final : public backend::LinkOwner {
public:
    // Set before there is a socket. Nothing: as if it were not set.
    std::function<std::optional<Result<Landing>>(const Frame&)> lands;
    std::function<Result<void>(const Frame&)> arrives;

    Result<Landing> landing(const Frame& frame) override {
        ++asked;
        if (!frame.has_payload()) ADD_FAILURE() << "asked for a frame without bytes";
        if (ends > 0) ADD_FAILURE() << "asked after the end";
        if (auto answer = lands ? lands(frame) : std::nullopt) return *answer;
        auto text = std::make_shared<std::string>(frame.size, '?');
        return Landing{Landing::Kind::here, text->data(), text};
    }

    Result<void> arrived(const Frame& frame, Landing landing) override {
        if (ends > 0) ADD_FAILURE() << "a frame after the end";
        Came came{frame, {}};
        if (landing.kind == Landing::Kind::here)
            came.payload = *std::static_pointer_cast<std::string>(landing.keeps);
        {
            std::lock_guard lock(mutex_);
            came_.push_back(std::move(came));
        }
        return arrives ? arrives(frame) : Result<void>();
    }

    void ended(Error error) override {
        {
            std::lock_guard lock(mutex_);
            why_ = std::move(error);
        }
        ++ends;
    }

    std::size_t count() const {
        std::lock_guard lock(mutex_);
        return came_.size();
    }
    std::vector<Came> came() const {
        std::lock_guard lock(mutex_);
        return came_;
    }
    Error why() const {
        std::lock_guard lock(mutex_);
        return why_;
    }

    std::atomic<int> asked{0};
    std::atomic<int> ends{0};

private:
    mutable std::mutex mutex_;
    std::vector<Came> came_;
    Error why_;
};

// An owner with its link.
struct Side {
    explicit Side(backend::NetworkEngine& engine)
        : owner(std::make_shared<FakeOwner>()), link(engine.link(owner)) {}

    // The other end of a new socket of this link.
    driver::TcpSocket bare() const {
        Ends ends = connected();
        EXPECT_TRUE(link->add(number_of(std::move(ends.one))).ok());
        return std::move(ends.other);
    }
    bool has_ended() const {
        return comes([this] { return owner->ends > 0; });
    }

    std::shared_ptr<FakeOwner> owner;
    std::shared_ptr<backend::Link> link;
};

struct Joined {
    explicit Joined(std::size_t loops = 2) : engine(make_engine(loops)) {}
    void join(std::size_t sockets) const {
        for (std::size_t i = 0; i < sockets; ++i) {
            Ends ends = connected();
            const backend::SocketKeys keys = test_keys();
            ASSERT_TRUE(one.link->add(number_of(std::move(ends.one)), keys).ok());
            ASSERT_TRUE(other.link->add(number_of(std::move(ends.other)), {keys.in, keys.out}).ok());
        }
    }

    const std::unique_ptr<backend::NetworkEngine> engine;
    Side one{*engine};
    Side other{*engine};
};

inline Error some_error(ErrorCode code = ErrorCode::mismatch) {
    return Error{code, "enough of it", "test", {}};
}

// A frame with its bytes, as a bare socket sends it.
inline std::string said(const Frame& frame, const std::string& payload = {}) {
    const auto head = backend::to_bytes(frame);
    return std::string(head.begin(), head.end()) + payload;
}

inline bool say(const driver::TcpSocket& socket, const std::string& bytes) {
    return socket.send_all(bytes.data(), bytes.size(), patience()).ok();
}

// Reads until the other end says no more, or has gone.
inline bool hangs_up(const driver::TcpSocket& socket) {
    return comes([&] {
        char bytes[4096];
        const auto got = socket.receive(bytes, sizeof(bytes));
        return !got || (*got && **got == 0);
    });
}

}  // namespace sidestep::wire::test
