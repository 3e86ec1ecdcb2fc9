// The contract of an engine: what carries bytes between two machines. Bytes are only ever pushed; a read asks the
// machine that has them to push.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

#include "backend/device_memory.hpp"

namespace sidestep::backend {

// What two machines tell each other while bytes move. All but `push` and `fault` stand alone.
struct Frame {
    enum class Kind : std::uint8_t {
        // `size` bytes follow, which belong `offset` bytes into `region`; or, where `region` is 0, `offset` bytes into what
        // `request`, a number of the receiver's, waits for.
        push = 1,
        // The pushed bytes of `request`, a number of the receiver's, from its byte `offset` on, `size` of them, are where they
        // belong. It may stand for several pushes.
        confirm,
        pull,   // asks for `size` bytes from `offset` of `region` on, as a part of the answer to `request`
        fault,  // `request`, a number of the receiver's, has failed: code and words follow, `size` bytes
        // As a pull, but the bytes go to a third machine, `target_offset` into what the receiver calls `target`; they are
        // confirmed when they are there.
        pass,
        // On links that scatter: the places in `region` that the next frame is about, a scatter or gather of the same request
        // and `at`, on the same link; `size` bytes of to_bytes() below. Of a gather with a target as many follow, of size 0, which
        // say where each goes there.
        places,
        scatter,  // as a push, to places that were told before
        gather,   // as a pull of such places; as a pass where it has a target
    };
    Kind kind = Kind::push;
    std::uint64_t request = 0;
    std::uint64_t region = 0;
    Bytes offset = 0;
    Bytes size = 0;
    std::uint64_t target = 0;  // of a pass, or a gather; 0 elsewhere
    Bytes target_offset = 0;   // of a pass
    Bytes at = 0;  // which bytes of the request a push to a region, a pull or a pass is about; 0 elsewhere
    // Of bytes, and of what asks for them: for memory of which GPU of the machine that they go to, from 1 on; 0: of none, or nobody
    // knows. The sender takes a card for them that leads to one near it.
    std::uint8_t to_gpu = 0;

    bool operator==(const Frame&) const = default;
    // The frame concerns bytes of a region that was requested, or carries them.
    bool is_of_a_request() const { return kind != Kind::confirm && kind != Kind::fault; }
    bool has_payload() const {
        return kind != Kind::confirm && kind != Kind::pull && kind != Kind::pass && kind != Kind::gather;
    }
};

// Most bytes that follow one frame.
constexpr Bytes max_push = Bytes{1} << 20;
constexpr Bytes max_fault = 1024;
// Of one link: a machine may have as many devices of a fabric, each with a socket of its own.
constexpr std::size_t most_sockets = 32;
constexpr std::size_t most_places = 256;    // of one scatter
constexpr std::size_t most_told_gpus = 16;  // of a machine
constexpr Bytes place_bytes = 16;

// A frame as it travels: numbers of 8 bytes, the lowest first.
constexpr std::size_t frame_bytes = 64;
std::array<unsigned char, frame_bytes> to_bytes(const Frame& frame);
// io_error for bytes that are no frame, or one that is larger than any may be.
Result<Frame> parse_frame(const unsigned char* bytes);

// A part of a region.
struct RegionPart {
    Bytes offset = 0;
    Bytes size = 0;
    bool operator==(const RegionPart&) const = default;
};
// What follows a frame of places; io_error for bytes that are none.
std::string to_bytes(std::span<const RegionPart> places);
Result<std::vector<RegionPart>> parse_places(std::string_view bytes);

// Memory of this machine.
struct Memory {
    void* address = nullptr;
    Bytes size = 0;
};

// Adds memory that comes next: to the last part where it goes on from there.
inline void join(std::vector<Memory>& parts, const Memory& next) {
    if (next.size == 0) return;
    if (!parts.empty() &&
        static_cast<unsigned char*>(parts.back().address) + parts.back().size == next.address)
        parts.back().size += next.size;
    else
        parts.push_back(next);
}

// Where what follows a frame goes. `keeps` is held until it is there.
struct Landing {
    enum class Kind { here, nowhere, later };
    Kind kind = Kind::nowhere;  // nowhere: read and dropped; later: not before Link::resume()
    void* address = nullptr;
    std::shared_ptr<void> keeps = {};
    // On links that scatter, where it is not empty: one after the other, as much as follows in all, in place of the address.
    std::vector<Memory> parts = {};
};

// Who talks over a link. On the link's threads, several at a time, and on those that look(); must not block.
class LinkOwner {
public:
    virtual ~LinkOwner() = default;
    // For a push or a fault, before its bytes. Asked again after resume() where the answer was `later`. An error ends
    // the link.
    virtual Result<Landing> landing(const Frame& frame) = 0;
    // The frame, and what follows it, is there. An error ends the link.
    virtual Result<void> arrived(const Frame& frame, Landing landing) = 0;
    // What had come by now has arrived: what waits for more of its kind, so as to go together, goes now. After the last
    // arrived() of a call of look() or of the link's threads.
    virtual void caught_up() {}
    // The link has ended, and touches no memory any more. Once, and last.
    virtual void ended(Error error) = 0;
};

struct Outgoing {
    Frame frame;
    const void* payload = nullptr;
    std::vector<Memory> parts = {};  // as of a Landing
    // What makes the frame's head as it goes out: called on the thread that sends it, as late as the engine can. Null: it is ready.
    // For a payload that is in one part.
    Frame (*finish)(const Frame& frame, const void* payload) = nullptr;
    // Others are on their way already, so that it may wait some microseconds for more that go with it.
    bool may_wait = false;

    Frame finished() const { return finish != nullptr ? finish(frame, payload) : frame; }
    static Outgoing of(const Frame& frame, std::vector<Memory> memory) {
        if (memory.size() == 1) return {frame, memory.front().address};
        return {frame, nullptr, std::move(memory)};
    }
};

// Under which the bytes of a socket are encrypted, in each direction (driver/tls_socket.hpp). Empty: they go as they are.
struct SocketKeys {
    std::string out = {};
    std::string in = {};
    bool empty() const { return out.empty(); }
};

// Frames to and from one other machine, whole and each once, those of several threads in any order. Any thread.
class Link {
public:
    // Ends it, without telling the owner, who may be in a call at that time: see close().
    virtual ~Link() = default;

    // Takes a socket over which both ends know each other, of engines that use sockets; it belongs to the link, after an
    // error too. io_error where the link has ended.
    virtual Result<void> add(int socket, const SocketKeys& keys) = 0;
    Result<void> add(int socket) { return add(socket, {}); }
    virtual std::size_t sockets() const = 0;
    // Frames of its places and scatters go over it, and payloads of parts.
    virtual bool scatters() const { return false; }
    // Pushes of more bytes than this may come from, and land in, memory of GPUs that prepare_device() made ready: no
    // processor touches them. `never`: none may.
    static constexpr Bytes never = ~Bytes{0};
    virtual Bytes direct_above() const { return never; }
    // The name of its engine.
    virtual std::string_view engine() const { return {}; }
    // What its bytes go over, for people: "mlx5_0, mlx5_1". Empty where nobody would ask.
    virtual std::string over() const { return {}; }

    // What follows a push or a fault stays until `sent` is called, or the link has ended; `sent` may be empty, and is
    // called at once where the link has taken all. Dropped without a word where the link has ended.
    virtual void send(const Frame& frame, const void* payload, std::function<void()> sent) = 0;
    // As many calls of send(), in fewer of the system's; `sent` is called when all have been. At least one frame.
    virtual void send_all(std::span<const Outgoing> frames, std::function<void()> sent);
    // Takes in what has arrived, on the calling thread; for threads that wait.
    virtual void look() = 0;
    // Those whom landing() told `later` are asked again: one of them, in turns, or all. To be called once for each time
    // that it said so.
    enum class Resume { one, all };
    virtual void resume(Resume whom) = 0;
    // Ends it; the owner is told `why` unless it was told before. Returns at once.
    virtual void close(Error why) = 0;
    // As close(), and the link has ended when it returns. Not in a call of the owner, nor on a thread of the engine.
    virtual void end(Error why) = 0;
};

// Calls `each` for so many things that are sent one by one, with what is to be called when that one has been sent.
template <typename Each>
void count_sent(std::size_t count, std::function<void()> sent, Each&& each) {
    if (!sent || count == 1) {
        for (std::size_t i = 0; i < count; ++i) each(i, sent);
        return;
    }
    const auto left = std::make_shared<std::atomic<std::size_t>>(count);
    const auto all = std::make_shared<const std::function<void()>>(std::move(sent));
    for (std::size_t i = 0; i < count; ++i)
        each(i, [left, all] {
            if (left->fetch_sub(1) == 1) (*all)();
        });
}

// What links are made by. Any thread. Outlives its links' last calls: the destructor ends those that are left.
class NetworkEngine {
public:
    virtual ~NetworkEngine() = default;
    virtual std::string_view name() const = 0;
    // Sockets to one machine that are worth while.
    virtual std::size_t useful_sockets() const = 0;
    // A link without a socket yet. Its owner is kept from being destroyed during a call, not longer.
    virtual std::shared_ptr<Link> link(std::weak_ptr<LinkOwner> owner) = 0;
    // Makes memory of this machine ready to be sent from, or to be landed in, as long as the answer lives: an engine
    // may move its bytes without a copy then. Null where there is nothing to do. Bytes of other memory move too, only
    // slower.
    virtual Result<std::shared_ptr<const void>> prepare(void* address, Bytes size) {
        static_cast<void>(address), static_cast<void>(size);
        return std::shared_ptr<const void>();
    }
    // The same for memory of a GPU, which `exporter` hands out: see Link::direct_above(). Nothing where the engine reaches no
    // such memory; unsupported, with each step that was refused, where it does not reach this. Its bytes go through host
    // memory then.
    virtual Result<std::optional<ReachedDevice>> prepare_device(const Buffer& memory, DmaBufs& exporter) {
        static_cast<void>(memory), static_cast<void>(exporter);
        return std::optional<ReachedDevice>();
    }
    // A new link has something to go over at this moment. Does not block.
    virtual bool works() const { return true; }
    // A link was lost for that, though the other machine is there: what it went over is left out for a while. Whether there is
    // something else for the next one.
    virtual bool avoid(const Error& why) {
        static_cast<void>(why);
        return false;
    }
    // Whether what a link was lost for is over, as far as this machine sees; an engine that cannot tell is not used again.
    virtual bool has_recovered() const { return false; }
};

}  // namespace sidestep::backend
