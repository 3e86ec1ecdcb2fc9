// Links over an RDMA card: what is particular to them. SIDESTEP_TEST_VERBS names the card; made for soft-RoCE in a
// virtual machine (tests/vm/jobs/verbs), whose network device SIDESTEP_TEST_NETDEV names.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include "backends/verbs/verbs_engine.hpp"
#include "tests/contents.hpp"
#include "tests/network/link_rig.hpp"
#include "tests/network/target.hpp"
#include "tests/network/verbs_rig.hpp"

namespace sidestep::wire {
namespace {

using namespace std::chrono_literals;
using backends::verbs::Engine;
using test::Clock;
using test::Frame;
using test::Landing;
using test::Target;

using test::one_mib;

// Every byte, both ways at once, by memory that is prepared, that is not, and in between.
TEST_F(Verbs, BytesGoBothWaysUnhurt) {
    constexpr Bytes size = 6 * one_mib;
    const std::array<std::string, 2> bytes = {sidestep::test::text_of(size, 1),
                                              sidestep::test::text_of(size, 2)};
    for (const bool prepared_out : {false, true})
        for (const bool prepared_in : {false, true}) {
            join(size, 2);
            std::vector<std::shared_ptr<const void>> kept;
            for (std::size_t i = 0; i < 2; ++i) {
                if (prepared_out)
                    kept.push_back(engine->prepare(const_cast<char*>(bytes[i].data()), size).value());
                if (prepared_in) kept.push_back(engine->prepare(targets[i]->data(), size).value());
            }
            const auto before = counts();
            std::atomic<std::uint64_t> sent{0};
            for (const Bytes part : {one_mib, Bytes{300'001}}) {
                sent = 0;
                const std::uint64_t parts = (size + part - 1) / part;
                const Bytes came = targets[0]->came;
                std::thread other([&] { push(1, bytes[1], part, sent); });
                push(0, bytes[0], part, sent);
                other.join();
                ASSERT_TRUE(test::comes([&] {
                    return targets[0]->came == came + size && targets[1]->came == came + size &&
                           sent == 2 * parts;
                })) << targets[0]->why.to_string()
                    << targets[1]->why.to_string();
                EXPECT_TRUE(targets[0]->text() == bytes[1]) << part;
                EXPECT_TRUE(targets[1]->text() == bytes[0]) << part;
                std::memset(targets[0]->data(), 0, size);
                std::memset(targets[1]->data(), 0, size);
            }
            const auto after = counts();
            const std::uint64_t frames = 2 * (6 + 21);
            EXPECT_EQ(after[0] - before[0], prepared_out ? frames : 0) << "sent without a copy";
            EXPECT_EQ(after[1] - before[1], prepared_out ? 0 : frames);
            EXPECT_EQ(after[2] - before[2], prepared_in ? frames : 0) << "landed without a copy";
            EXPECT_EQ(after[3] - before[3], prepared_in ? 0 : frames);
            EXPECT_TRUE(targets[0]->whole() && targets[1]->whole());
            end();
        }
}

// Memory that is prepared in parts, or whose preparation went before the bytes came.
TEST_F(Verbs, OnlyWhatIsPreparedIsUsed) {
    join(2 * one_mib);
    const std::string bytes = sidestep::test::text_of(2 * one_mib, 3);
    auto small = engine->prepare(targets[1]->data(), 4096).value();
    auto whole = engine->prepare(targets[1]->data(), 2 * one_mib).value();
    auto behind = engine->prepare(targets[1]->data() + one_mib, one_mib).value();
    std::atomic<std::uint64_t> sent{0};
    const auto run = [&](Bytes part) {
        const std::uint64_t direct = engine->counts().direct_in;
        const Bytes came = targets[1]->came;
        push(0, bytes, part, sent);
        EXPECT_TRUE(test::comes([&] { return targets[1]->came == came + 2 * one_mib; }));
        EXPECT_TRUE(targets[1]->text() == bytes);
        std::memset(targets[1]->data(), 0, 2 * one_mib);
        return engine->counts().direct_in - direct;
    };
    EXPECT_EQ(run(one_mib), 2u);
    whole.reset();
    EXPECT_EQ(run(one_mib), 1u) << "the second half is prepared by itself";
    behind.reset();
    EXPECT_EQ(run(one_mib), 0u);
    end();
}

// What waits for a place is asked for again when it is told to be, frames of every size.
TEST_F(Verbs, WhoSaidLaterIsAskedAgain) {
    test::expect_asked_again(*engine);
}

// Large bytes stay the sender's until the card has read them.
TEST_F(Verbs, SentIsToldWhenTheBytesAreGone) {
    test::expect_told_when_gone(*engine);
}

// Once the owner knows of the end, the other machine's card has no way into its memory, whatever it has under way.
TEST_F(Verbs, NothingIsWrittenAfterTheEnd) {
    for (int round = 0; round < 3; ++round) {
        join(16 * one_mib);
        const auto kept = engine->prepare(targets[1]->data(), 16 * one_mib).value();
        const std::string bytes = sidestep::test::text_of(16 * one_mib, 1);
        std::atomic<std::uint64_t> sent{0};
        for (int i = 0; i < 4; ++i) push(0, bytes, one_mib, sent);
        ASSERT_TRUE(test::comes([&] { return targets[1]->frames > 3; }));
        links[1]->end(test::some_error());
        std::memset(targets[1]->data(), 'm', 16 * one_mib);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        EXPECT_TRUE(targets[1]->text() == std::string(16 * one_mib, 'm'));
        EXPECT_TRUE(targets[1]->whole());
        end();
    }
}

TEST_F(Verbs, WhatCannotBePreparedIsAnError) {
    const auto nothing = engine->prepare(nullptr, 0);
    ASSERT_TRUE(nothing.ok());
    const auto wild = engine->prepare(reinterpret_cast<void*>(std::uintptr_t{0x1000}), 4096);
    ASSERT_FALSE(wild.ok());
    EXPECT_EQ(wild.error().code, ErrorCode::invalid_argument) << wild.error().to_string();
    std::string memory(one_mib, 'x');
    const auto bounded = Engine::create({.cards = {test::verbs_card()}, .most_pinned = one_mib - 1}).value();
    const auto too_large = bounded->prepare(memory.data(), one_mib);
    ASSERT_FALSE(too_large.ok());
    EXPECT_EQ(too_large.error().code, ErrorCode::out_of_memory) << too_large.error().to_string();
    for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(bounded->prepare(memory.data(), one_mib - 1).ok()) << "given back before";
    const auto first = bounded->prepare(memory.data(), one_mib / 2);
    EXPECT_FALSE(bounded->prepare(memory.data(), one_mib / 2).ok());
    fmt::print("{}\n{}\n", wild.error().to_string(), too_large.error().to_string());
}

// As a user that may lock no memory. In a process of its own: the rights do not come back.
TEST_F(Verbs, LimitOfLockedMemoryIsNamed) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give up rights";
    engine.reset();
    const pid_t child = ::fork();
    if (child == 0) {
        const auto own = Engine::create({.cards = {test::verbs_card()}});
        const rlimit none{0, 0};
        std::string memory(one_mib, 'x');
        if (!own || ::setrlimit(RLIMIT_MEMLOCK, &none) != 0 || ::setresuid(65534, 65534, 65534) != 0)
            ::_exit(2);
        const auto refused = (*own)->prepare(memory.data(), one_mib);
        if (refused) ::_exit(3);
        fmt::print("{}\n", refused.error().to_string());
        std::fflush(stdout);
        const bool named = refused.error().code == ErrorCode::out_of_memory &&
                           refused.error().hint.find("ulimit -l") != std::string::npos;
        const auto owner = std::make_shared<Target>(1);
        const auto link = (*own)->link(owner);
        test::Ends ends = test::connected();
        const auto added = link->add(test::number_of(std::move(ends.one)));
        ::_exit(named && !added && added.error().code == ErrorCode::out_of_memory ? 0 : 4);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Verbs, WhatIsMissingIsSaid) {
    const auto library = Engine::create({.library = "libibverbs.so.nowhere"});
    ASSERT_FALSE(library.ok());
    const auto card = Engine::create({.cards = {"mlx5_99"}});
    ASSERT_FALSE(card.ok());
    EXPECT_EQ(card.error().code, ErrorCode::not_found);
    EXPECT_NE(card.error().hint.find(test::verbs_card()), std::string::npos);
    const auto port = Engine::create({.cards = {test::verbs_card()}, .port = 7});
    ASSERT_FALSE(port.ok());
    for (const auto* one : {&library, &card, &port}) {
        EXPECT_FALSE(one->error().hint.empty());
        fmt::print("{}\n", one->error().to_string());
    }
}

// Another process, with a link to `ends.one` of its own; `send` has 1 MiB to send, and does not come back.
template <typename Send>
pid_t sends_in_a_process(test::Ends& ends, const Send& send) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    const auto own = Engine::create({.cards = {test::verbs_card()}});
    const auto owner = std::make_shared<Target>(1);
    const auto link = own ? (*own)->link(owner) : nullptr;
    { const auto closed = std::move(ends.one); }
    if (!link || !link->add(test::number_of(std::move(ends.other)))) ::_exit(2);
    send(*link, std::string(one_mib, 'w'));
    ::_exit(3);
}

// The other process dies while its card writes here: the end is told once, and nothing is written afterwards.
TEST_F(Verbs, ProcessThatDiesEndsTheLink) {
    engine.reset();
    test::Ends ends = test::connected();
    const pid_t child = sends_in_a_process(ends, [](backend::Link& link, const std::string& bytes) {
        for (;;) {
            std::atomic<int> under_way{0};
            for (int i = 0; i < 16; ++i, ++under_way)
                link.send({Frame::Kind::push, 1, 1, static_cast<Bytes>(i) * one_mib, one_mib}, bytes.data(),
                          [&] { --under_way; });
            while (under_way > 0) std::this_thread::yield();
        }
    });
    engine = Engine::create({.cards = {test::verbs_card()}}).value();
    const auto target = std::make_shared<Target>(16 * one_mib);
    const auto link = engine->link(target);
    const auto kept = engine->prepare(target->data(), 16 * one_mib).value();
    ASSERT_TRUE(link->add(test::number_of(std::move(ends.one))).ok());
    { const auto closed = std::move(ends.other); }
    EXPECT_TRUE(test::comes([&] { return target->frames > 20 || target->ends > 0; }));
    const auto killed = Clock::now();
    ::kill(child, SIGKILL);
    EXPECT_TRUE(test::comes([&] { return target->ends > 0; }));
    const std::chrono::duration<double> took = Clock::now() - killed;
    std::memset(target->data(), 'm', 16 * one_mib);
    fmt::print("the end was told {:.3f} s after the other process was killed: {}\n", took.count(),
               target->why.to_string());
    EXPECT_LT(took.count(), 10);
    EXPECT_GT(target->frames, 20u);
    EXPECT_EQ(target->why.code, ErrorCode::io_error);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_TRUE(target->text() == std::string(16 * one_mib, 'm')) << "written to after the end";
    EXPECT_TRUE(target->whole());
    link->end(test::some_error());
    EXPECT_EQ(target->ends, 1);
    ::waitpid(child, nullptr, 0);
}

// One that is stopped when it is given the only buffer: whoever waits for that gets it.
TEST_F(Verbs, WhoSendsNothingToItsBufferLosesItsLink) {
    engine.reset();
    test::Ends ends = test::connected();
    const pid_t child = sends_in_a_process(ends, [](backend::Link& link, const std::string& bytes) {
        link.send({Frame::Kind::push, 1, 1, 0, one_mib}, bytes.data(), {});
        for (;;) ::pause();
    });
    engine = Engine::create({.cards = {test::verbs_card()}, .bounces = 1, .silence = 500ms}).value();
    std::atomic<bool> room{false};
    const auto owner = std::make_shared<test::FakeOwner>();
    owner->lands = [&](const Frame&) -> std::optional<Result<Landing>> {
        if (room) return std::nullopt;
        return Result<Landing>(Landing{Landing::Kind::later});
    };
    const auto link = engine->link(owner);
    ASSERT_TRUE(link->add(test::number_of(std::move(ends.one))).ok());
    { const auto closed = std::move(ends.other); }
    EXPECT_TRUE(test::comes([&] { return owner->asked > 0; }));
    ::kill(child, SIGSTOP);
    EXPECT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
    room = true;
    link->resume(backend::Link::Resume::all);
    join(one_mib);
    const std::string bytes = sidestep::test::text_of(one_mib, 1);
    std::atomic<std::uint64_t> sent{0};
    push(0, bytes, one_mib, sent);
    EXPECT_TRUE(test::comes([&] { return targets[1]->came == one_mib; }));
    EXPECT_TRUE(test::comes([&] { return owner->ends == 1; }));
    EXPECT_EQ(owner->why().code, ErrorCode::timed_out) << owner->why().to_string();
    EXPECT_EQ(owner->count(), 0u);
    end();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
}

bool set_device(const char* state) {
    const char* device = std::getenv("SIDESTEP_TEST_NETDEV");
    return device != nullptr && std::system(fmt::format("ip link set {} {}", device, state).c_str()) == 0;
}

// A link that carries something, and one that does not at that time.
TEST_F(Verbs, PortThatGoesDownEndsLinks) {
    if (std::getenv("SIDESTEP_TEST_NETDEV") == nullptr)
        GTEST_SKIP() << "SIDESTEP_TEST_NETDEV names no device";
    for (const bool busy : {true, false}) {
        join(16 * one_mib);
        const std::string bytes = sidestep::test::text_of(16 * one_mib, 1);
        std::atomic<std::uint64_t> sent{0};
        push(0, bytes, one_mib, sent);
        ASSERT_TRUE(test::comes([&] { return busy ? sent > 4 : sent == 16; }));
        ASSERT_TRUE(set_device("down"));
        const auto down = Clock::now();
        const auto none = Engine::create({.cards = {test::verbs_card()}});
        EXPECT_FALSE(none.ok());
        if (!none) fmt::print("{}\n", none.error().to_string());
        for (int i = 0; busy && i < 1000 && targets[0]->ends == 0; ++i) push(0, bytes, one_mib, sent);
        EXPECT_TRUE(test::comes([&] { return targets[0]->ends > 0 && targets[1]->ends > 0; }));
        const std::chrono::duration<double> took = Clock::now() - down;
        fmt::print("both ends were told {:.3f} s after the port went down ({}): {}\n", took.count(),
                   busy ? "busy" : "idle", targets[0]->why.to_string());
        EXPECT_LT(took.count(), 30);
        end();
        ASSERT_TRUE(set_device("up"));
        ASSERT_TRUE(test::comes([&] { return Engine::create({.cards = {test::verbs_card()}}).ok(); }));
    }
}

}  // namespace
}  // namespace sidestep::wire
