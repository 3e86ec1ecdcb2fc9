// Links by a network plugin of NCCL that fails, hangs or lies, or whose other end does.
#include <array>
#include <atomic>
#include <chrono>
#include <vector>

#include <gtest/gtest.h>
#include "backends/ncclnet/message.hpp"
#include "tests/network/ncclnet_rig.hpp"

namespace sidestep::wire {
namespace {

using namespace std::chrono_literals;
using backends::ncclnet::Options;
using test::Frame;
using test::NcclNet;
using test::Target;
using PluginEngine = backends::ncclnet::Engine;

// Whatever call fails: both links end, with an error that names plugin and call.
TEST_F(NcclNet, EveryCallThatFailsEndsTheLink) {
    start();
    for (const char* call : {"isend", "irecv", "test", "regMr", "connect", "accept"}) {
        const bool while_joining = std::string(call) == "connect" || std::string(call) == "accept";
        if (while_joining) plugin.fault(call);
        join(mib);
        if (!while_joining && std::string(call) != "regMr") send_once();
        plugin.fault(call);
        const std::string bytes = sidestep::test::text_of(mib, 1);
        std::atomic<std::uint64_t> sent{0};
        push(0, bytes, mib, sent);
        ASSERT_TRUE(test::comes([&] { return targets[0]->ends == 1 && targets[1]->ends == 1; })) << call;
        EXPECT_EQ(sent, 0u) << call;
        // One of the two meets it first; the other may only see that one go.
        const auto named = [&](const Error& why) {
            return why.message.find("Stand-in") != std::string::npos &&
                   why.message.find(std::string("in ") + call) != std::string::npos;
        };
        EXPECT_TRUE(named(targets[0]->why) || named(targets[1]->why))
            << call << ": " << targets[0]->why.to_string() << "; " << targets[1]->why.to_string();
        for (const auto& target : targets) EXPECT_EQ(target->why.code, ErrorCode::io_error) << call;
        plugin.fault("");
        end();
    }
    plugin.fault("listen");
    const auto link = engine->link(std::make_shared<Target>(mib));
    test::Ends ends = test::connected();
    const auto added = link->add(test::number_of(std::move(ends.one)));
    ASSERT_FALSE(added.ok());
    EXPECT_NE(added.error().message.find("in listen"), std::string::npos) << added.error().to_string();
    EXPECT_TRUE(test::hangs_up(ends.other));
}

// A plugin that says that it brought fewer bytes.
TEST_F(NcclNet, WrongSizesEndTheLink) {
    start();
    join(mib);
    send_once();
    plugin.fault("short");
    const std::string bytes = sidestep::test::text_of(mib, 1);
    std::atomic<std::uint64_t> sent{0};
    push(0, bytes, mib, sent);
    ASSERT_TRUE(test::comes([&] { return targets[0]->ends == 1 && targets[1]->ends == 1; }));
    EXPECT_EQ(sent, 0u);
    end();
}

// What never ends is given up, whether it is the connection or a request.
TEST_F(NcclNet, SilenceEndsTheLink) {
    start({.patience = {.join = 300ms, .silence = 300ms}});
    for (const char* fault : {"connect-never", "test-never"}) {
        const bool joins = std::string(fault) == "test-never";
        if (!joins) plugin.fault(fault);
        join(mib);
        if (joins) send_once();
        plugin.fault(fault);
        const std::string bytes = sidestep::test::text_of(mib, 1);
        std::atomic<std::uint64_t> sent{0};
        push(0, bytes, mib, sent);
        ASSERT_TRUE(test::comes([&] { return targets[0]->ends == 1 && targets[1]->ends == 1; })) << fault;
        EXPECT_TRUE(targets[0]->why.code == ErrorCode::timed_out ||
                    targets[1]->why.code == ErrorCode::timed_out)
            << targets[0]->why.to_string() << "; " << targets[1]->why.to_string();
        plugin.fault("");
        end();
    }
}

// An end that says nothing, as a program that is no Sidestep.
TEST_F(NcclNet, WhoSaysNothingIsGivenUp) {
    start({.patience = {.join = 100ms}});
    const auto target = std::make_shared<Target>(mib);
    const auto link = engine->link(target);
    test::Ends ends = test::connected();
    ASSERT_TRUE(link->add(test::number_of(std::move(ends.one))).ok());
    ASSERT_TRUE(test::comes([&] { return target->ends == 1; }));
    EXPECT_EQ(target->why.code, ErrorCode::timed_out) << target->why.to_string();
}

// A plugin that does not come back from a call holds up nobody but itself; memory that it may write to stays.
TEST_F(NcclNet, PluginThatHangsIsLeftAlone) {
    for (const char* fault : {"test-hangs", "close-hangs", "close"}) {
        start({.patience = {.silence = 200ms, .close = 200ms}});
        join(mib);
        auto ready = engine->prepare(targets[1]->data(), mib).value();
        send_once();
        plugin.fault(fault);
        const std::string bytes = sidestep::test::text_of(mib, 1);
        std::atomic<std::uint64_t> sent{0};
        push(0, bytes, mib, sent);
        const bool at_once = std::string(fault) == "test-hangs";
        if (at_once) {
            ASSERT_TRUE(test::comes([&] { return plugin.hanging() == 1; }));
            ASSERT_TRUE(test::comes([&] { return targets[0]->ends == 1 && targets[1]->ends == 1; }));
            for (const auto& target : targets)
                EXPECT_EQ(target->why.code, ErrorCode::timed_out) << target->why.to_string();
        }
        links[0]->end(test::some_error());
        links[1]->end(test::some_error());
        EXPECT_EQ(targets[0]->ends + targets[1]->ends, 2) << fault;
        engine.reset();
        plugin.fault("");
        ready.reset();
        // It goes on afterwards, and ends what was asked of it meanwhile.
        EXPECT_TRUE(test::comes([&] { return plugin.open() == 0; })) << fault << ": " << plugin.open();
    }
}

// What stands in for the other machine, over a bare socket.
class BareEnd {
public:
    explicit BareEnd(PluginEngine& engine)
        : owner(std::make_shared<Target>(NcclNet::mib)), link(engine.link(owner)) {
        test::Ends ends = test::connected();
        EXPECT_TRUE(link->add(test::number_of(std::move(ends.one))).ok());
        socket = std::move(ends.other);
        std::array<unsigned char, backends::ncclnet::greeting_bytes> said{};
        EXPECT_TRUE(socket.receive_all(said.data(), said.size(), test::patience()).ok());
        greeting = backends::ncclnet::parse_greeting(said.data()).value();
    }
    template <typename Bytes>
    bool say(const Bytes& bytes) const {
        return socket.send_all(bytes.data(), bytes.size(), test::patience()).ok();
    }
    bool ends_with(const char* words) const {
        const bool over = test::comes([&] { return owner->ends == 1; });
        return over && owner->why.code == ErrorCode::io_error &&
               owner->why.message.find(words) != std::string::npos && test::hangs_up(socket);
    }

    std::shared_ptr<Target> owner;
    std::shared_ptr<backend::Link> link;
    driver::TcpSocket socket{driver::Fd()};
    backends::ncclnet::Greeting greeting;
};

TEST_F(NcclNet, WhatMakesNoSenseEndsTheLink) {
    using backends::ncclnet::Greeting;
    using backends::ncclnet::Message;
    using backends::ncclnet::to_bytes;
    start();
    const Frame offered{Frame::Kind::push, 1, 1, 0, mib};
    {
        BareEnd end(*engine);
        EXPECT_TRUE(end.say(to_bytes(Greeting{"Another one", end.greeting.handle})));
        EXPECT_TRUE(end.ends_with("the other machine's is Another one")) << end.owner->why.to_string();
    }
    {
        BareEnd end(*engine);
        EXPECT_TRUE(end.say(std::string(backends::ncclnet::greeting_bytes, 'G')));
        EXPECT_TRUE(end.ends_with("no greeting")) << end.owner->why.to_string();
    }
    {
        BareEnd end(*engine);
        auto newer = to_bytes(end.greeting);
        newer[4] = 3;
        EXPECT_TRUE(end.say(newer));
        EXPECT_TRUE(end.ends_with("version 3")) << end.owner->why.to_string();
    }
    {
        BareEnd end(*engine);
        Greeting far = end.greeting;
        far.gpus.back() = backend::longest_distance + 1;
        EXPECT_TRUE(end.say(to_bytes(far)));
        EXPECT_TRUE(end.ends_with("farther away")) << end.owner->why.to_string();
    }
    struct Case {
        std::vector<Message> messages;
        const char* words;
    };
    std::vector<Message> many(65, {Message::Kind::offer, 0, offered});
    for (std::size_t i = 0; i < many.size(); ++i) many[i].offer = static_cast<std::uint16_t>(i);
    const std::vector<Case> cases = {
        {{{Message::Kind::here, 3, {}}}, "an answer to no offer"},
        {{{Message::Kind::nowhere, 3, {}}}, "an answer to no offer"},
        {{{Message::Kind::frame, 0, offered}}, "should have been offered"},
        {{{Message::Kind::offer, 1, {Frame::Kind::confirm, 1, 1, 0, 1}}}, "an offer of nothing"},
        {{{Message::Kind::offer, 1, {Frame::Kind::push, 1, 1, 0, 0}}}, "an offer of nothing"},
        {{{Message::Kind::offer, 1, offered}, {Message::Kind::offer, 1, offered}}, "an offer twice"},
        {many, "more offers than it may"},
        {{{static_cast<Message::Kind>(5), 0, {}}}, "no message"},
    };
    for (const auto& [messages, words] : cases) {
        BareEnd end(*engine);
        EXPECT_TRUE(end.say(to_bytes(end.greeting)));
        for (const Message& one : messages)
            if (!end.say(to_bytes(one))) break;
        EXPECT_TRUE(end.ends_with(words)) << words << ": " << end.owner->why.to_string();
    }
}

// A machine that offers as much as it may, is given places for it, and never sends it.
TEST_F(NcclNet, WhoKeepsItsBuffersLeavesSomeToOthers) {
    using backends::ncclnet::Message;
    start({.patience = {.silence = 600s}});
    const BareEnd keeps(*engine);
    auto first = backends::ncclnet::to_bytes(keeps.greeting);
    std::string all(first.begin(), first.end());
    for (std::uint16_t i = 0; i < 16; ++i) {
        const auto offer =
            backends::ncclnet::to_bytes(Message{Message::Kind::offer, i, {Frame::Kind::push, 1, 1, 0, mib}});
        all.append(offer.begin(), offer.end());
    }
    ASSERT_TRUE(keeps.say(all));
    std::array<unsigned char, backends::ncclnet::message_bytes> here{};
    ASSERT_TRUE(keeps.socket.receive_all(here.data(), here.size(), test::patience()).ok());
    join(mib);
    send_once();
    keeps.link->end(test::some_error());
    end();
}

// What came of the first start counts for the whole process.
TEST_F(NcclNet, PluginThatDoesNotStartIsRefusedForGood) {
    struct Case {
        const char* fault;
        ErrorCode code;
        const char* words;
    };
    for (const auto& [fault, code, words] : {Case{"init", ErrorCode::io_error, "failed in init"},
                                             Case{"init-hangs", ErrorCode::timed_out, "has not started"},
                                             Case{"no-devices", ErrorCode::unsupported, "no device"},
                                             Case{"no-host-memory", ErrorCode::unsupported, "no device"}}) {
        const std::string name = plugin.new_name();
        plugin.fault(fault);
        const Options options{.plugin = name, .patience = {.start = 300ms}};
        const auto refused = PluginEngine::create(options);
        plugin.fault("");
        ASSERT_FALSE(refused.ok()) << fault;
        EXPECT_EQ(refused.error().code, code) << refused.error().to_string();
        EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().to_string();
        EXPECT_FALSE(refused.error().hint.empty()) << fault;
        const auto again = PluginEngine::create({.plugin = name});
        ASSERT_FALSE(again.ok()) << fault;
        EXPECT_EQ(again.error().message, refused.error().message);
    }
}

TEST_F(NcclNet, WhatIsMissingIsSaid) {
    const auto none = PluginEngine::create({.plugin = "nowhere-to-be-found"});
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::not_found) << none.error().to_string();
    EXPECT_NE(none.error().hint.find("SIDESTEP_NCCL_NET"), std::string::npos);
    const auto other = PluginEngine::create({.plugin = "libm.so.6"});
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.error().code, ErrorCode::unsupported) << other.error().to_string();
}

}  // namespace
}  // namespace sidestep::wire
