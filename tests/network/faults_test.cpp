// What nodes refuse, and what becomes of copies whose node, client or connection goes.
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/network/nodes.hpp"

namespace sidestep {
namespace {

using test::Nodes;
using test::RawSocket;
using Clock = std::chrono::steady_clock;

class Refusals : public Nodes {
protected:
    std::string text = test::text_of(100'000, 5);
    ErrorCode code_of(const Buffer& from, const Buffer& to) {
        const auto done = here->copy(from, to).wait();
        if (done) return ErrorCode{};
        last = done.error().to_string();
        return done.error().code;
    }
    Buffer source() const { return Buffer::host(text.data(), text.size()); }
    std::string last;
};

TEST_F(Refusals, NameOfANodeThatNoGreetingHolds) {
    ServeOptions options;
    options.listen = "127.0.0.1:0";
    options.key_file = path("key");
    options.name = std::string(256, 'n');
    EXPECT_TRUE(machine.serve(options));
    options.name += 'n';
    const auto served = machine.serve(options);
    ASSERT_FALSE(served);
    EXPECT_EQ(served.error().code, ErrorCode::invalid_argument) << served.error().to_string();
}

TEST_F(Refusals, PlacesThatAreNotAllowed) {
    test::put(path("secret"), text);
    test::put(path("in/open"), text);
    std::filesystem::create_symlink(path("secret"), path("in/link"));
    std::string to(text.size(), '\0');
    const Buffer target = Buffer::host(to.data(), to.size());
    const struct {
        std::string file;
        bool write;
    } cases[] = {
        {path("secret"), false},        {path("in/../secret"), false}, {path("in/link"), false},
        {"/etc/passwd", false},         {path("in/open"), true},       {path("in/new"), true},
        {path("out/../in/open"), true}, {path("key"), false},          {path("in") + "//../secret", false}};
    for (const auto& one : cases) {
        const Buffer file = Buffer::file(one.file).on("n");
        EXPECT_EQ(one.write ? code_of(source(), file) : code_of(file, target), ErrorCode::permission_denied)
            << one.file << ": " << last;
        EXPECT_EQ(to, std::string(text.size(), '\0'));
    }
    EXPECT_EQ(test::get(path("in/open")), text);
    EXPECT_FALSE(std::filesystem::exists(path("in/new")));

    serve("file:" + path("in"));
    for (const char* place : {"n/gpu:0", "n/host"}) {
        const auto memory = here->allocate(*Place::parse(place), 4096);
        ASSERT_FALSE(memory) << place;
        EXPECT_EQ(memory.error().code, ErrorCode::permission_denied) << memory.error().to_string();
    }
    EXPECT_EQ(code_of(source(), Buffer::shared("kv").on("n")), ErrorCode::permission_denied) << last;
}

TEST_F(Refusals, MoreMemoryThanIsAllowed) {
    auto most = here->allocate(Place::host().on("n"), Bytes{200} << 20);
    ASSERT_TRUE(most) << most.error().to_string();
    const auto more = here->allocate(Place::host().on("n"), Bytes{100} << 20);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, ErrorCode::out_of_memory) << more.error().to_string();
    most = Allocation();
    // It is given back soon.
    const auto until = Clock::now() + std::chrono::seconds(10);
    while (!here->allocate(Place::host().on("n"), Bytes{100} << 20) && Clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(here->allocate(Place::host().on("n"), Bytes{100} << 20));
}

TEST_F(Refusals, AnotherKey) {
    test::put(path("other"), std::string(64, 'a') + "\n");
    std::filesystem::permissions(path("other"), std::filesystem::perms::owner_read);
    auto stranger = client(path("other"));
    ASSERT_TRUE(stranger) << stranger.error().to_string();
    const auto memory = stranger->allocate(Place::gpu(0).on("n"), 4096);
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ErrorCode::permission_denied) << memory.error().to_string();
}

TEST_F(Refusals, NobodyListens) {
    serving.reset();
    const auto memory = here->allocate(Place::gpu(0).on("n"), 4096);
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ErrorCode::not_found) << memory.error().to_string();
    EXPECT_NE(memory.error().hint.find("sidestep serve"), std::string::npos) << memory.error().to_string();
    const auto unknown = here->allocate(Place::gpu(0).on("no-such-node.invalid"), 4096);
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().code, ErrorCode::not_found) << unknown.error().to_string();
}

// Strangers who say nothing, nonsense, or the beginning of something.
TEST_F(Refusals, StrangersAreHungUpOnAndTheNodeLives) {
    const std::string hello = "SIDESTEP" + std::string(8, '\1') + "\1" + std::string(32, 'n');
    const struct {
        const char* what;
        std::string bytes;
        int within_ms;
    } cases[] = {{"nothing", "", 8000},
                 {"HTTP", "GET / HTTP/1.1\r\n\r\n", 3000},
                 {"no TLS", std::string("\x16\x03\x01\xff\xff") + std::string(70'000, 'x'), 8000},
                 {"half of TLS", std::string("\x16\x03\x01\x02\x00", 5), 8000},
                 {"a data socket of no session", hello, 3000},
                 {"half of a data socket", hello.substr(0, 20), 8000}};
    std::vector<std::unique_ptr<RawSocket>> strangers;
    for (const auto& one : cases) {
        strangers.push_back(std::make_unique<RawSocket>(port()));
        if (!one.bytes.empty()) strangers.back()->send(one.bytes);
    }
    for (std::size_t i = 0; i < std::size(cases); ++i)
        EXPECT_TRUE(strangers[i]->ended(cases[i].within_ms)) << cases[i].what;
    EXPECT_TRUE(here->allocate(Place::gpu(0).on("n"), 4096));
}

TEST_F(Refusals, ManyStrangersDoNotKeepClientsOut) {
    std::vector<std::unique_ptr<RawSocket>> strangers;
    for (int i = 0; i < 300; ++i) strangers.push_back(std::make_unique<RawSocket>(port()));
    auto other = client();
    ASSERT_TRUE(other);
    EXPECT_TRUE(other->allocate(Place::gpu(0).on("n"), 4096));
}

class Losses : public Refusals {};

TEST_F(Losses, ANodeThatGoesEndsItsCopies) {
    auto memory = here->allocate(Place::host().on("n"), Bytes{128} << 20);
    ASSERT_TRUE(memory) << memory.error().to_string();
    const std::string large = test::text_of(Bytes{128} << 20, 1);
    auto copy = here->copy(Buffer::host(large.data(), large.size()), memory->buffer());
    while (copy.bytes_done() == 0 && !copy.poll()) std::this_thread::yield();
    const auto begin = Clock::now();
    serving.reset();
    const auto done = copy.wait();
    // It may have been quicker than the end.
    if (!done) {
        EXPECT_TRUE(done.error().code == ErrorCode::io_error || done.error().code == ErrorCode::cancelled)
            << done.error().to_string();
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

// Whatever is asked of it first.
TEST_F(Losses, ANodeThatComesBackIsConnectedAgain) {
    ASSERT_TRUE(here->allocate(Place::gpu(0).on("n"), 4096));
    test::put(path("in/file"), text);
    for (int turn = 0; turn < 5; ++turn) {
        serve(allow);
        auto again = here->allocate(Place::gpu(0).on("n"), 4096);
        ASSERT_TRUE(again) << again.error().to_string();
        EXPECT_TRUE(here->copy(Buffer::host(text.data(), 4096), again->buffer()).wait());
        serve(allow);
        std::string to(text.size(), '\0');
        const auto read =
            here->copy(Buffer::file(path("in/file")).on("n"), Buffer::host(to.data(), to.size())).wait();
        ASSERT_TRUE(read) << read.error().to_string();
        EXPECT_EQ(to, text);
    }
}

// Memory of a connection that another took the place of, or whose Context is gone, can be let go of at any time.
TEST_F(Losses, MemoryOutlivesWhatItWasReachedBy) {
    auto old = here->allocate(Place::gpu(0).on("n"), 4096);
    ASSERT_TRUE(old);
    serve(allow);
    auto renewed = here->allocate(Place::gpu(0).on("n"), 4096);
    ASSERT_TRUE(renewed) << renewed.error().to_string();
    ASSERT_TRUE(here->connect("n", address));
    here.reset();
    *old = Allocation();
    *renewed = Allocation();
}

TEST_F(Losses, AClientThatGoesLeavesNothing) {
    auto other = client();
    ASSERT_TRUE(other);
    auto memory = other->allocate(Place::host().on("n"), Bytes{200} << 20);
    ASSERT_TRUE(memory) << memory.error().to_string();
    ASSERT_FALSE(here->allocate(Place::host().on("n"), Bytes{100} << 20));
    { const Context gone = std::move(*other); }
    const auto until = Clock::now() + std::chrono::seconds(10);
    auto after = here->allocate(Place::host().on("n"), Bytes{100} << 20);
    while (!after && Clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        after = here->allocate(Place::host().on("n"), Bytes{100} << 20);
    }
    EXPECT_TRUE(after) << after.error().to_string();
    EXPECT_EQ(serving->counts().clients, 1u);
}

TEST_F(Losses, AFailedCopyLeavesNoFile) {
    test::put(path("out/old"), "old");
    CopyOptions at_once;
    at_once.deadline = std::chrono::milliseconds(1);
    const std::string large = test::text_of(Bytes{64} << 20, 1);
    const auto done =
        here->copy(Buffer::host(large.data(), large.size()), Buffer::file(path("out/old")).on("n"), at_once)
            .wait();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::timed_out) << done.error().to_string();
    EXPECT_EQ(test::get(path("out/old")), "old");
    here.reset();  // hangs up
    const auto until = Clock::now() + std::chrono::seconds(10);
    while (serving->counts().clients > 0 && Clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path("out")))
        files += entry.exists() ? 1 : 0;
    EXPECT_EQ(files, 1u);
}

TEST(Serving, NeedsAnAddressThatItCanHave) {
    const Context machine = *Context::open({"dgx-h100"});
    const struct {
        const char* listen;
        const char* allow;
        ErrorCode code;
    } cases[] = {{"127.0.0.1", "nonsense", ErrorCode::invalid_argument},
                 {"no-such-host.invalid:0", "", ErrorCode::not_found},
                 {"192.0.2.1:0", "", ErrorCode::invalid_argument},
                 {"127.0.0.1:port", "", ErrorCode::invalid_argument},
                 {"127.0.0.1:0", "file:/no/such/folder", ErrorCode::not_found}};
    for (const auto& one : cases) {
        ServeOptions options;
        options.listen = one.listen;
        options.allow = one.allow;
        options.key_file =
            (std::filesystem::temp_directory_path() / ("sidestep-key-" + std::to_string(::getpid())))
                .string();
        const auto serving = machine.serve(options);
        ASSERT_FALSE(serving) << one.listen << " " << one.allow;
        EXPECT_EQ(serving.error().code, one.code) << serving.error().to_string();
        std::filesystem::remove(options.key_file);
    }
}

}  // namespace
}  // namespace sidestep
