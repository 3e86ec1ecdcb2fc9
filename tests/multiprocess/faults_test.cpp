// Peers that die, hang, lie or are somebody else: every copy ends, with an error that says why.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/multiprocess/fake_publisher.hpp"

namespace sidestep::multiprocess {
namespace {

using std::chrono::milliseconds;

class Faults : public testing::Test {
protected:
    Faults() {
        auto memory = context.allocate(Place::gpu(2), bytes);
        EXPECT_TRUE(memory);
        if (memory) target = std::move(*memory);
    }

    Result<Receipt> read(const std::string& name, milliseconds deadline = milliseconds(20'000)) {
        CopyOptions options;
        options.deadline = deadline;
        return context.copy(Buffer::shared(name, 0, bytes), target.buffer(), options).wait();
    }
    ErrorCode code_of_read(const std::string& name, milliseconds deadline = milliseconds(20'000)) {
        const auto done = read(name, deadline);
        last = done ? "the copy went well" : done.error().to_string();
        return done ? ErrorCode{0} : done.error().code;
    }
    // The error of a copy that a fake publisher answers.
    ErrorCode code_of_answer(FakePublisher& fake, const std::string& message,
                             const std::vector<int>& descriptors,
                             milliseconds deadline = milliseconds(20'000)) {
        std::thread other([&] { EXPECT_TRUE(fake.answer(message, descriptors)); });
        const ErrorCode code = code_of_read("fake", deadline);
        other.join();
        fake.close_connections();
        return code;
    }
    // The same where that is all it ever says.
    ErrorCode code_of_beginning(FakePublisher& fake, const std::string& message,
                                const std::vector<int>& descriptors = {}) {
        std::thread other([&] { EXPECT_TRUE(fake.begin(message, descriptors)); });
        const ErrorCode code = code_of_read("fake");
        other.join();
        fake.close_connections();
        return code;
    }

    static constexpr Bytes bytes = 1_MiB;
    TestFolder folder;
    Context context = open_context(folder);
    Allocation target;
    std::string last;
};

TEST_F(Faults, NothingPublished) {
    EXPECT_EQ(code_of_read("kv"), ErrorCode::not_found) << last;
    EXPECT_NE(last.find("SIDESTEP_PEER_FOLDER"), std::string::npos) << last;
}

TEST_F(Faults, PublisherKilledBeforeTheCopy) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    ASSERT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
    peer.kill();
    EXPECT_EQ(code_of_read("kv"), ErrorCode::not_found) << last;
    // A name that a dead process left behind is free for the next one.
    Peer next(folder);
    ASSERT_EQ(next.tell(fmt::format("publish kv gpu:0 {} 2", bytes)), "ok");
    ASSERT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
    EXPECT_EQ(differs(target.buffer(), 2), "");
}

// A child that a publisher forked and that does not end with it. Ended with the object.
class Orphan {
public:
    explicit Orphan(Peer& parent) : process_(std::stoi(parent.tell("fork"))) {}
    ~Orphan() { ::kill(process_, SIGKILL); }
    Orphan(const Orphan&) = delete;
    Orphan& operator=(const Orphan&) = delete;
    bool lives() const { return ::kill(process_, 0) == 0; }

private:
    pid_t process_;
};

TEST_F(Faults, APublisherIsDeadThoughAChildOfItHasItsSockets) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    ASSERT_EQ(peer.tell("part part kv 0 4096"), "ok");
    ASSERT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
    const std::size_t importing = open_descriptors();
    const Orphan child(peer);
    peer.kill();
    // An importer sees it without being asked to look.
    EXPECT_TRUE(soon_has_descriptors(importing - 2)) << "the socket, and what watches the process";
    EXPECT_TRUE(child.lives());
}

TEST_F(Faults, ANameOfADeadPublisherIsFreeThoughAChildOfItHasTheSocket) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    ASSERT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
    const Orphan child(peer);
    peer.kill();
    Peer next(folder);
    ASSERT_EQ(next.tell(fmt::format("publish kv gpu:0 {} 2", bytes)), "ok");
    ASSERT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
    EXPECT_EQ(differs(target.buffer(), 2), "");
    EXPECT_TRUE(child.lives());
}

TEST_F(Faults, WhoComesAcrossADeadPublisherRemovesItsSockets) {
    Peer alive(folder);
    ASSERT_EQ(alive.tell(fmt::format("publish alive gpu:0 {} 1", bytes)), "ok");
    for (const bool with_child : {false, true}) {
        Peer peer(folder);
        ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
        ASSERT_EQ(peer.tell("part part kv 0 4096"), "ok");
        std::optional<Orphan> child;
        if (with_child) child.emplace(peer);
        peer.kill();
        EXPECT_EQ(code_of_read("kv"), ErrorCode::not_found) << last;
        std::vector<std::string> left;
        for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
            if (const std::string name = entry.path().filename(); name.front() != '.') left.push_back(name);
        EXPECT_EQ(left, std::vector<std::string>{"alive"}) << "with a child: " << with_child;
    }
    alive.stop();  // which is not dead
    EXPECT_EQ(code_of_read("alive", milliseconds(100)), ErrorCode::timed_out) << last;
    alive.go_on();
    EXPECT_EQ(code_of_read("alive"), ErrorCode{0}) << last;
}

TEST_F(Faults, APublisherLeavesItsProgramTheLastDescriptors) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    ASSERT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
    Context other = open_context(folder);
    auto memory = other.allocate(Place::gpu(1), bytes);
    ASSERT_TRUE(memory) << memory.error().to_string();
    const auto read_by_other = [&] { return other.copy(Buffer::shared("kv"), memory->buffer()).wait(); };
    // With as many as are the program's, and with none at all.
    for (const int left : {64, 0}) {
        ASSERT_EQ(peer.tell(fmt::format("leave {}", left)), "ok");
        for (int i = 0; i < 3; ++i) {
            const auto refused = read_by_other();
            ASSERT_FALSE(refused) << left;
            EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory) << refused.error().to_string();
            EXPECT_NE(refused.error().message.find(
                          "the process that publishes has no room for more importers: fewer "
                          "than 64 descriptors are left to it"),
                      std::string::npos)
                << refused.error().to_string();
        }
        EXPECT_EQ(peer.tell(fmt::format("open {}", left)), "ok");
        EXPECT_EQ(code_of_read("kv"), ErrorCode{0}) << last;  // by the connection that is there
    }
    ASSERT_EQ(peer.tell("leave 100"), "ok");
    const auto done = read_by_other();
    EXPECT_TRUE(done) << done.error().to_string();
}

TEST_F(Faults, PublisherKilledDuringTheCopy) {
    constexpr Bytes large = 48_MiB;
    auto memory = context.allocate(Place::gpu(3), large);
    ASSERT_TRUE(memory) << memory.error().to_string();
    for (int round = 0; round < 3; ++round) {
        Peer peer(folder);
        ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", large)), "ok");
        CopyOptions options;
        options.chunk = 1_MiB;
        options.deadline = milliseconds(20'000);
        Transfer transfer = context.copy(Buffer::shared("kv"), memory->buffer(), options);
        peer.kill();
        auto ended = transfer.wait_for(milliseconds(25'000));
        ASSERT_TRUE(ended.has_value()) << "the copy hangs";
        // The memory is mapped here, so that the copy can go on without the process: bytes are then right.
        if (*ended) {
            EXPECT_EQ(differs(memory->buffer(), 1), "");
        }
    }
}

TEST_F(Faults, PublisherWithdraws) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    ASSERT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
    ASSERT_EQ(peer.tell("withdraw kv"), "ok");
    EXPECT_EQ(code_of_read("kv"), ErrorCode::not_found) << last;
    struct stat status {};
    EXPECT_NE(::stat(folder.socket("kv").c_str(), &status), 0) << "the socket is still there";
}

TEST_F(Faults, PublisherThatHangs) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    peer.stop();
    const auto before = std::chrono::steady_clock::now();
    EXPECT_EQ(code_of_read("kv", milliseconds(200)), ErrorCode::timed_out) << last;
    EXPECT_EQ(code_of_read("kv"), ErrorCode::timed_out) << last;  // 5 s without a deadline of its own
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(19));
    peer.go_on();
    EXPECT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
}

TEST_F(Faults, NameOfALiveProcessIsRefused) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell("publish kv gpu:0 4096 1"), "ok");
    auto taken = context.publish("kv", target);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, ErrorCode::invalid_argument) << taken.error().to_string();
    EXPECT_NE(taken.error().message.find("taken"), std::string::npos) << taken.error().to_string();
    ASSERT_EQ(peer.tell("withdraw kv"), "ok");
    EXPECT_TRUE(context.publish("kv", target));
}

TEST_F(Faults, AFileInTheWayIsLeftAlone) {
    std::ofstream(folder.socket("kv")) << "somebody's";
    auto published = context.publish("kv", target);
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().code, ErrorCode::invalid_argument) << published.error().to_string();
    std::string text;
    std::ifstream(folder.socket("kv")) >> text;
    EXPECT_EQ(text, "somebody's");
    EXPECT_EQ(code_of_read("kv"), ErrorCode::not_found) << last;
}

TEST_F(Faults, GarbageInsteadOfAnOffer) {
    FakePublisher fake(folder.socket("fake"));
    EXPECT_EQ(code_of_read("nothing"), ErrorCode::not_found) << last;  // what is opened once is there
    const std::size_t before = open_descriptors();
    for (const std::string& garbage :
         {std::string("x"), std::string(1024, '\xff'), std::string(100'000, 'x')}) {
        EXPECT_EQ(code_of_answer(fake, garbage, {}), ErrorCode::io_error) << last;
        EXPECT_EQ(code_of_beginning(fake, garbage), ErrorCode::io_error) << last;
    }
    EXPECT_TRUE(soon_has_descriptors(before));
    std::thread other([&] { EXPECT_TRUE(fake.hang_up()); });
    EXPECT_EQ(code_of_read("fake"), ErrorCode::not_found) << last;
    other.join();
}

TEST_F(Faults, HalfOffersAndWrongVersions) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    const RealOffer real = hear_offer(folder.socket("kv"));
    ASSERT_GT(real.message.size(), 40u);
    FakePublisher fake(folder.socket("fake"));
    EXPECT_EQ(code_of_read("nothing"), ErrorCode::not_found) << last;  // what is opened once is there
    const std::size_t before = open_descriptors();
    for (std::size_t size = 1; size < real.message.size(); ++size)
        ASSERT_NE(code_of_answer(fake, real.message.substr(0, size), {real.descriptor}), ErrorCode{0})
            << size;
    std::string longer = real.message;
    longer += 'x';
    EXPECT_EQ(code_of_answer(fake, longer, {real.descriptor}), ErrorCode::io_error) << last;
    std::string newer = real.message;
    newer[4] = 9;
    EXPECT_EQ(code_of_answer(fake, newer, {real.descriptor}), ErrorCode::unsupported) << last;
    // The first version began with its offer.
    newer[4] = 1;
    EXPECT_EQ(code_of_beginning(fake, newer, {real.descriptor}), ErrorCode::unsupported) << last;
    EXPECT_NE(last.find("version 1"), std::string::npos) << last;
    EXPECT_EQ(code_of_answer(fake, real.message, {}), ErrorCode::io_error) << last;  // without its descriptor
    EXPECT_TRUE(soon_has_descriptors(before));
    // The whole of it is what the fake publisher needs: the refusals above are for what was wrong.
    EXPECT_EQ(code_of_answer(fake, real.message, {real.descriptor}), ErrorCode{0}) << last;
    ::close(real.descriptor);
}

// Every byte changed, in every field: whatever is believed, nothing outside the memory is touched.
TEST_F(Faults, OffersWithOneByteChanged) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    const RealOffer real = hear_offer(folder.socket("kv"));
    FakePublisher fake(folder.socket("fake"));
    int refused = 0;
    for (std::size_t at = 0; at < real.message.size(); ++at) {
        for (const char change : {'\x01', '\x80', '\xff'}) {
            std::string message = real.message;
            message[at] = static_cast<char>(message[at] ^ change);
            // Of another number it is no answer. On a busy machine the copy has to come so far before it gives up.
            const milliseconds deadline(at >= 7 && at < 15 ? 400 : 20'000);
            refused += code_of_answer(fake, message, {real.descriptor}, deadline) != ErrorCode{0} ? 1 : 0;
        }
    }
    EXPECT_GT(refused,
              60);  // mark, version, place, size, offset and lengths; not identity, address and publisher
    ::close(real.descriptor);
}

TEST_F(Faults, ADescriptorThatIsNoSharedMemory) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    const RealOffer real = hear_offer(folder.socket("kv"));
    FakePublisher fake(folder.socket("fake"));
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    EXPECT_EQ(code_of_answer(fake, real.message, {null}), ErrorCode::io_error) << last;
    // Memory that its owner can make smaller later would end whoever reads it then.
    const int loose = ::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(::ftruncate(loose, static_cast<off_t>(4 * bytes)), 0);
    EXPECT_EQ(code_of_answer(fake, real.message, {loose}), ErrorCode::io_error) << last;
    const int small = ::memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(::ftruncate(small, 4096), 0);
    ASSERT_EQ(::fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    EXPECT_EQ(code_of_answer(fake, real.message, {small}), ErrorCode::io_error) << last;
    for (const int fd : {null, loose, small, real.descriptor}) ::close(fd);
}

TEST_F(Faults, AFloodOfDescriptorsIsClosed) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    const RealOffer real = hear_offer(folder.socket("kv"));
    FakePublisher fake(folder.socket("fake"));
    EXPECT_EQ(code_of_read("nothing"), ErrorCode::not_found) << last;  // what is opened once is there
    const std::size_t before = open_descriptors();
    for (const std::size_t count : {2, 16, 17, 200})
        EXPECT_EQ(code_of_answer(fake, real.message, std::vector<int>(count, real.descriptor)),
                  ErrorCode::io_error)
            << count << ": " << last;
    EXPECT_TRUE(soon_has_descriptors(before));
    ::close(real.descriptor);
}

TEST_F(Faults, ImportersThatTalkOrFloodHoldNobodyUp) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, folder.socket("kv").c_str(), sizeof(address.sun_path) - 1);
    std::vector<int> sockets;
    for (int i = 0; i < 300; ++i) {
        const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        ASSERT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
        if (i % 3 == 0) (void)!::send(fd, "noise", 5, MSG_NOSIGNAL);
        // Which never hears the answers.
        const std::string asked = question("kv");
        for (int k = 0; i % 3 == 1 && k < 100; ++k)
            (void)!::send(fd, asked.data(), asked.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        sockets.push_back(fd);
    }
    EXPECT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
    for (const int fd : sockets) ::close(fd);
    EXPECT_EQ(peer.tell("check kv 1"), "ok");
}

// Runs `as_nobody` in a process of another user; answers whether it said yes.
template <typename Call>
bool in_child(Call&& call) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(call() ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

constexpr uid_t nobody = 65534;

TEST_F(Faults, AnotherUsersImporterHearsNothing) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    // Even where the modes of folder and socket would let anybody in.
    ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
    ASSERT_EQ(::chmod(folder.socket("kv").c_str(), 0666), 0);
    const std::string socket = folder.socket("kv");
    EXPECT_TRUE(in_child([&] { return !hear_offer(socket).message.empty(); })) << "the same user hears it";
    EXPECT_TRUE(in_child([&] { return ::setuid(nobody) == 0 && hear_offer(socket).message.empty(); }));
    EXPECT_EQ(code_of_read("kv"), ErrorCode{0}) << last;
}

TEST_F(Faults, AnotherUsersPublisherIsRefused) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", bytes)), "ok");
    const RealOffer real = hear_offer(folder.socket("kv"));
    int ready[2] = {-1, -1};
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        // Who listens is who listen() was called by.
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, folder.socket("theirs").c_str(), sizeof(address.sun_path) - 1);
        const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
        const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
        if (!bound || ::setuid(nobody) != 0 || ::listen(fd, 4) != 0) ::_exit(1);
        (void)!::write(ready[1], "r", 1);
        const int connection = ::accept(fd, nullptr, nullptr);
        (void)!::send(connection, real.message.data(), real.message.size(), MSG_NOSIGNAL);
        ::alarm(300);
        for (;;) ::pause();  // until it is killed
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_EQ(code_of_read("theirs"), ErrorCode::permission_denied) << last;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (const int fd : {ready[0], ready[1], real.descriptor}) ::close(fd);
}

TEST_F(Faults, AnotherUsersFolderIsRefused) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
    ASSERT_EQ(::chown(folder.path().c_str(), nobody, nobody), 0);
    auto published = context.publish("kv", target);
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().code, ErrorCode::permission_denied) << published.error().to_string();
    EXPECT_EQ(code_of_read("kv"), ErrorCode::permission_denied) << last;
}

}  // namespace
}  // namespace sidestep::multiprocess
