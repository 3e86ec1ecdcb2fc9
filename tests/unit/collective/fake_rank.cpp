#include "tests/unit/collective/fake_rank.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "peer/offer.hpp"

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;

void send_raw(int socket, const std::string& bytes, const std::vector<int>& descriptors) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const std::size_t size = descriptors.size() * sizeof(int);
    std::vector<char> control(CMSG_SPACE(size));
    if (!descriptors.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(size);
        std::memcpy(CMSG_DATA(header), descriptors.data(), size);
    }
    (void)::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// A folder of a file system for which `server` should answer, and never does: whoever asks the folder for anything waits
// until `server` is closed. -1 where such a file system cannot be mounted: that takes root, and FUSE.
int silent_folder(int server) {
    std::string path = "/tmp/sidestep-silent-XXXXXX";
    if (server < 0 || ::mkdtemp(path.data()) == nullptr) return -1;
    const std::string options = fmt::format("fd={},rootmode=40000,user_id=0,group_id=0", server);
    int found = -1;
    if (::mount("silent", path.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0) {
        found = ::open(path.c_str(), O_PATH | O_CLOEXEC);
        ::umount2(path.c_str(), MNT_DETACH);
    }
    ::rmdir(path.c_str());
    return found;
}

}  // namespace

int make_memory(std::uint64_t bytes, unsigned flags, int seals) {
    const int fd = ::memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0) return fd;
    if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0 && ::fcntl(fd, F_ADD_SEALS, seals) == 0) return fd;
    ::close(fd);
    return -1;
}

FakeRank::FakeRank(std::string folder, const GroupId& id, unsigned rank, unsigned ranks)
    : prefix_(folder + "/group-" + id.to_string() + "."),
      rank_(rank),
      ranks_(ranks),
      until_(Clock::now() + std::chrono::minutes(1)),
      arena_(make_memory(protocol::ArenaLayout{ranks}.bytes(), 0, F_SEAL_SHRINK)),
      sockets_(ranks),
      hellos_(ranks),
      arenas_(ranks) {
    auto listener = driver::LocalListener::bind(socket_of(rank));
    if (listener) listener_.emplace(std::move(*listener));
    if (rank != 0) return;
    auto board = Board::create(prefix_ + "board", ranks, id.to_string(), "");
    if (board) board_.emplace(std::move(*board));
    if (board_) board_->join(0, "gpu:0");
}

std::string FakeRank::arena_offer() const {
    peer::MemoryOffer offer;
    offer.scheme = "memfd";
    offer.handle = std::string(8, '\1');
    offer.place = Place::gpu(static_cast<int>(rank_));
    offer.size = protocol::ArenaLayout{ranks_}.bytes();
    offer.has_descriptor = true;
    return peer::to_message(offer).value();
}

void FakeRank::tell(Said said) {
    if (lie_) lie_(said);
    std::string bytes = to_bytes(said.message);
    if (said.spoil) said.spoil(bytes);
    for (int i = 0; i < said.times; ++i) say_bytes(said.to, bytes, said.descriptors);
}

void FakeRank::say_bytes(unsigned to, const std::string& bytes, const std::vector<int>& descriptors) {
    if (to < sockets_.size() && sockets_[to]) send_raw(sockets_[to]->number(), bytes, descriptors);
}

void FakeRank::say_to_all(const Message& message, const std::vector<int>& descriptors) {
    for (unsigned rank = 0; rank < ranks_; ++rank) say(rank, message, descriptors);
}

std::optional<driver::LocalMessage> FakeRank::hear_whole(unsigned from, Time until) {
    if (from >= sockets_.size() || !sockets_[from]) return std::nullopt;
    auto received = sockets_[from]->receive(longest_message, until);
    return received ? std::optional(std::move(*received)) : std::nullopt;
}

std::optional<Message> FakeRank::hear(unsigned from, Time until) {
    const auto received = hear_whole(from, until);
    const auto message = received ? parse_message(received->bytes) : Result<Message>(Error{});
    return message ? std::optional(*message) : std::nullopt;
}

// The other end's first word, and then this rank's, but to lower ranks, which have heard it.
bool FakeRank::take_hello(driver::LocalSocket socket, std::optional<unsigned> called) {
    auto received = socket.receive(longest_message, until_);
    const auto message = received ? parse_message(received->bytes) : Result<Message>(Error{});
    const auto hello = message ? parse_hello(message->blob) : Result<Hello>(Error{});
    if (!hello || message->word != Word::hello || hello->rank >= ranks_) return false;
    const unsigned rank = hello->rank;
    hellos_[rank] = *hello;
    sockets_[rank] = std::move(socket);
    if (rank != 0 || called != 0u) return true;
    auto board = Board::adopt(std::move(received->descriptor), prefix_ + "board", ranks_);
    if (!board) return false;
    board_.emplace(std::move(*board));
    board_->join(rank_, "gpu:" + std::to_string(rank_));
    return true;
}

bool FakeRank::meet_lower(unsigned rank) {
    while (waits()) {
        auto socket = driver::LocalSocket::connect(socket_of(rank), until_);
        if (!socket) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            continue;
        }
        sockets_[rank] = std::move(*socket);
        return true;
    }
    return false;
}

bool FakeRank::meet_higher() {
    while (waits()) {
        auto socket = listener_->accept();
        if (!socket) return false;
        if (*socket) return take_hello(std::move(**socket), {});
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return false;
}

bool FakeRank::take_arena(unsigned from) {
    auto received = hear_whole(from, until_);
    const auto message = received ? parse_message(received->bytes) : Result<Message>(Error{});
    if (!message || message->word != Word::arena) return false;
    if (!received->descriptor) return true;  // to one of its own process a rank says an address
    auto map = driver::SharedMap::open(received->descriptor.get(), protocol::ArenaLayout{ranks_}.bytes());
    if (map) arenas_[from].emplace(std::move(*map));
    return map.ok();
}

bool FakeRank::join(const Lie& lie) {
    lie_ = lie;
    const auto say_hello = [&](unsigned to) {
        const Hello hello{.rank = rank_,
                          .ranks = ranks_,
                          .process = static_cast<std::uint32_t>(::getpid()),
                          .program = {1, 2},
                          .place = "gpu:" + std::to_string(rank_)};
        Said said{.at = Said::At::hello, .to = to};
        said.message = {.word = Word::hello, .blob = to_bytes(hello)};
        if (rank_ == 0 && board_) said.descriptors = {board_->descriptor()};
        tell(std::move(said));
    };
    for (unsigned rank = 0; rank < rank_; ++rank) {
        if (!meet_lower(rank)) return false;
        say_hello(rank);
    }
    for (unsigned rank = rank_ + 1; rank < ranks_; ++rank)
        if (!meet_higher()) return false;
    for (unsigned rank = rank_ + 1; rank < ranks_; ++rank) say_hello(rank);
    for (unsigned rank = 0; rank < rank_; ++rank) {
        driver::LocalSocket socket = std::move(*sockets_[rank]);
        sockets_[rank].reset();
        if (!take_hello(std::move(socket), rank)) return false;
    }
    const auto others = [&](const std::function<bool(unsigned)>& part) {
        bool well = true;
        for (unsigned rank = 0; rank < ranks_; ++rank) well = well && (rank == rank_ || part(rank));
        return well;
    };
    others([&](unsigned rank) {
        tell({.at = Said::At::arena,
              .to = rank,
              .message = {.word = Word::arena, .blob = arena_offer()},
              .descriptors = {arena_.get()}});
        return true;
    });
    if (!others([&](unsigned rank) { return take_arena(rank); })) return false;
    others([&](unsigned rank) {
        tell({.at = Said::At::ready, .to = rank, .message = {.word = Word::ready}});
        return true;
    });
    return others([&](unsigned rank) {
        const auto ready = hear(rank, until_);
        return ready && ready->word == Word::ready;
    });
}

void spoil(std::string& bytes, Chance& chance) {
    if (bytes.empty()) return;
    switch (chance.below(6)) {
        case 0:
            return bytes.resize(chance.below(bytes.size()));
        case 1:
            bytes += chance.bytes(chance.below(20'000));
            return;
        case 2:
            bytes = chance.bytes(chance.below(2 * bytes.size()));
            return;
        case 3:
            return put_at(bytes, chance.below(bytes.size()), chance.number());
        case 4:
            return put_at(bytes, chance.below(bytes.size()), static_cast<std::uint32_t>(chance.number()));
        default:
            for (std::uint64_t i = 0; i <= chance.below(4); ++i)
                bytes[chance.below(bytes.size())] = static_cast<char>(chance.any());
    }
}

Zoo::Zoo() : server_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    constexpr std::uint64_t much = 64 << 20;
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) == 0) {
        keep("the end of a pipe that reads", ends[0]);
        keep("the end of a pipe that writes", ends[1]);
    }
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) {
        keep("one end of a connection", ends[0]);
        ::close(ends[1]);
    }
    keep("a folder", ::open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    keep("the name of a folder", ::open("/tmp", O_PATH | O_CLOEXEC));
    keep("a folder that nobody answers for", silent_folder(server_ ? server_.get() : -1));
    keep("a device", ::open("/dev/null", O_RDWR | O_CLOEXEC));
    keep("a file without a name", ::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    keep("memory that can be made smaller", make_memory(much, 0, 0));
    keep("memory that is too short", make_memory(4096, 0, F_SEAL_SHRINK));
    keep("memory of no bytes", make_memory(0, 0, F_SEAL_SHRINK));
    keep("memory that nobody may write", make_memory(much, 0, F_SEAL_SHRINK | F_SEAL_WRITE));
    keep("memory of more than there are addresses", make_memory(1ull << 62, 0, F_SEAL_SHRINK));
    keep("huge pages that there are not", make_memory(much, MFD_HUGETLB, F_SEAL_SHRINK));
}

}  // namespace sidestep::collective
