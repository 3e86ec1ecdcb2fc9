// One rail of a link: a socket for frames, and one connection by the plugin for the bytes of large ones.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/rails.hpp"
#include "backends/ncclnet/bulk.hpp"
#include "backends/ncclnet/memory.hpp"
#include "backends/ncclnet/message.hpp"
#include "backends/ncclnet/plugin.hpp"
#include "backends/ncclnet/pump.hpp"
#include "driver/event_loop.hpp"
#include "driver/tcp_socket.hpp"

namespace sidestep::backends::ncclnet {

// What all rails of an engine share.
struct Means {
    Plugin plugin;
    Patience patience;
    std::shared_ptr<Pump> pump;
    std::shared_ptr<PreparedMemory> prepared;
    std::shared_ptr<Bounces> bounces_out;
    std::shared_ptr<Bounces> bounces_in;  // others, so that two machines that wait for each other's go on
    backend::LargeFrames counts;
    const Topology* topology = nullptr;  // null: not known

    // What the kernel calls the card of a device; empty where the topology has none.
    std::string card_of(const driver::NcclNetDevice& device) const {
        return topology != nullptr ? backend::card_at(*topology, device.pci_path) : std::string();
    }
};

// Frames, and what is said about them, go over the socket, because it wakes the waiting thread and a plugin
// does not. So the plugin has nothing in flight unless something large is on its way, and is not polled
// otherwise. Small payloads travel with their frame. For a larger one the receiver first gets an offer; it
// gives the plugin a place, and then asks for the bytes. Any thread.
class Rail final : public backend::Rail, public Bulk::Owner, public std::enable_shared_from_this<Rail> {
public:
    // Has the plugin listen on the device, and says where on the socket. timed_out where the plugin hangs. `device`: of those of
    // the means.
    static Result<std::shared_ptr<Rail>> create(std::shared_ptr<Means> means, std::size_t device,
                                                driver::TcpSocket socket, driver::EventLoop& loop);
    ~Rail() override;
    Rail(const Rail&) = delete;
    Rail& operator=(const Rail&) = delete;

    Result<void> watch(Run run) override;
    Bytes queued() const override { return queued_.load(std::memory_order_relaxed); }
    int distance(const void* payload, unsigned to_gpu) const override;
    std::string over() const override { return device_.name; }
    Result<void> send(const backend::Frame& frame, const void* payload, std::function<void()> sent) override;
    Result<void> look(backend::LinkOwner& owner) override;
    bool resume(bool all) override;
    bool lives() override;
    void shut_down() const override { socket_.shut_down(); }
    // Where the plugin cannot be made to end, all that it may still touch is kept for good.
    void end() override;

private:
    static constexpr std::size_t buffer_bytes = std::size_t{64} << 10;
    static constexpr Bytes most_a_call = Bytes{256} << 10;
    static constexpr std::size_t most_waiting = std::size_t{1} << 20;  // frames
    static constexpr std::size_t most_small_later = 64;
    static constexpr int most_reads = 64;  // of the socket in one call of look(): others are served too

    using Told = std::vector<std::function<void()>>;
    struct Large {
        backend::Frame frame;
        void* payload = nullptr;
        std::function<void()> sent{};
    };
    // What waits to go out over the socket.
    struct Outgoing {
        std::array<unsigned char, message_bytes> head;
        const unsigned char* payload = nullptr;
        Bytes size = 0;     // of the payload
        Bytes gone = 0;     // of both
        Bytes counted = 0;  // in queued()
        std::function<void()> sent{};
    };
    struct OfferOut {
        bool wanted = false;
        Large out;
        std::shared_ptr<const Range> range{};
        std::shared_ptr<Bounce> bounce{};
    };
    struct OfferIn {
        bool given = false;  // to the plugin
        backend::Frame frame;
        backend::Landing landing{};
        std::shared_ptr<const Range> range{};
        std::shared_ptr<Bounce> bounce{};
    };
    // Senders that were told `later`, or have to be asked: an offer, or a frame with its bytes.
    struct Asked {
        backend::Frame frame;
        std::optional<std::uint16_t> offer{};
        std::string bytes{};
    };

    Rail(std::shared_ptr<Means> means, std::size_t device, driver::TcpSocket socket, driver::EventLoop& loop);

    // rail.cpp: how it comes to be and ends; what the plugin's side tells.
    Result<void> make();
    bool close_bulk();
    void waits_for(std::uint16_t number) override;
    void came(std::uint16_t number) override;
    void gone(std::uint16_t number) override;
    void failed(Error why) override;
    void run(const Step& step) { run_(step); }
    std::function<void()> wake();

    // rail_out.cpp; all but the first with the mutex held.
    Result<void> flush();
    void say(const Message& message);
    Result<void> flush(Told& told);
    Result<void> write(Told& told);
    void take_off(Bytes bytes, Told& told);
    void offer_next();
    Result<void> give_next();
    std::function<void()> close_offer(std::uint16_t number);
    void wait_for(bool in, bool out);

    // rail_in.cpp; from take_in() on by whoever holds `receiving_`, but for the last.
    Result<void> serve(backend::LinkOwner& owner);
    Result<void> receive(backend::LinkOwner& owner, bool must);
    Result<void> take_in(backend::LinkOwner& owner);
    Result<bool> read();
    Result<bool> take(backend::LinkOwner& owner);
    Result<void> take_greeting();
    Result<void> take_frame(backend::LinkOwner& owner, const Message& message);
    Result<void> take_answer(const Message& message);
    Result<void> ask(backend::LinkOwner& owner, Asked asked, const unsigned char* bytes);
    Result<bool> ask_again(backend::LinkOwner& owner);
    Result<void> land_offer(backend::LinkOwner& owner, const Asked& asked, backend::Landing landing);
    Result<void> grant_waiting(const backend::LinkOwner& owner);
    bool may_read() const;
    Result<void> take_bytes(backend::LinkOwner& owner, std::uint16_t number);

    const std::shared_ptr<Means> means_;
    const std::size_t number_;  // of its device in the means
    const driver::NcclNetDevice device_;
    const driver::TcpSocket socket_;
    driver::EventLoop& loop_;
    std::shared_ptr<Bulk> bulk_;  // constant from make() on
    Greeting mine_;
    Run run_;  // constant from watch() on
    driver::EventLoop::Id id_ = 0;

    // Held by whoever takes in what has come, and from end() on for good; a flag, since its holder may come back here.
    std::atomic_flag receiving_;
    std::atomic<std::thread::id> receiver_;  // who set it last
    std::vector<unsigned char> buffer_ = std::vector<unsigned char>(buffer_bytes);
    std::size_t begin_ = 0;  // of what is in the buffer
    std::size_t end_ = 0;
    bool greeted_ = false;
    bool failed_ = false;  // nothing of it is looked at any more
    std::atomic<bool> again_{false};
    std::atomic<unsigned> resumed_{0};

    std::atomic<Bytes> queued_{0};
    backend::GpuDistances gpus_{};     // at the other end; constant from joined_ on
    std::atomic<bool> joined_{false};  // it has said who it is
    int silent_ = 0;                   // seconds; lives() alone
    Time made_;
    mutable std::mutex mutex_;  // guards what follows
    bool dead_ = false;
    bool ended_ = false;
    bool in_ = true;  // what the loop waits for
    bool out_ = false;
    std::deque<Outgoing> queue_;
    std::deque<Large> large_;
    std::map<std::uint16_t, OfferOut> offers_out_;
    std::uint16_t next_offer_ = 0;
    std::deque<std::uint16_t> wanted_;  // in the order in which the other end asked
    std::map<std::uint16_t, OfferIn> offers_in_;
    std::deque<std::uint16_t> waits_for_bounce_;  // of them
    std::deque<Asked> later_;
    std::size_t small_later_ = 0;  // of them with bytes
    std::size_t to_ask_ = 0;       // of them
};

}  // namespace sidestep::backends::ncclnet
