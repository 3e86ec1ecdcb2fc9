// One connection by the plugin, there and back, which carries the bytes of large frames.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

#include "backends/ncclnet/memory.hpp"
#include "backends/ncclnet/plugin.hpp"
#include "backends/ncclnet/pump.hpp"

namespace sidestep::backends::ncclnet {

// A plugin brings the first that is sent into the first that is received into, and so on. So the receiver first gives it a place
// for each piece and then asks for the piece, and the sender sends them in the order in which it is asked. All on the
// pump's thread, as what the owner is told.
class Bulk final : public Pump::Client {
public:
    class Owner {
    public:
        virtual ~Owner() = default;
        virtual void waits_for(std::uint16_t number) = 0;  // the plugin has a place for it
        virtual void came(std::uint16_t number) = 0;
        virtual void gone(std::uint16_t number) = 0;
        virtual void failed(Error why) = 0;  // and nothing afterwards
    };
    struct Piece {
        std::uint16_t number = 0;
        void* address = nullptr;
        Bytes size = 0;
        std::shared_ptr<const Range> range{};     // that holds it
        std::shared_ptr<const Bounce> instead{};  // of memory that the plugin does not take
    };

    Bulk(std::shared_ptr<driver::NcclNet> net, int device, const Patience& patience,
         std::weak_ptr<Owner> owner)
        : net_(std::move(net)), device_(device), patience_(patience), owner_(std::move(owner)) {}

    Result<driver::NcclNetHandle> listen();
    void join(const driver::NcclNetHandle& theirs);
    void send(Piece piece) { give(sending_, std::move(piece)); }
    void receive(Piece piece) { give(receiving_, std::move(piece)); }
    // Whether the plugin takes that memory, to send from and to receive into; told when both ends are joined, or when it has
    // failed.
    void try_range(std::shared_ptr<const Range> range, std::function<void(Result<void>)> told);
    // The owner is told nothing any more. What is in flight may end within `patience`: plugins take it badly to be closed
    // with requests open. Then `told` what came of it: the plugin touches no memory any more; or an error, where it may still
    // do so, and all that it was given has to be kept.
    void close(std::chrono::milliseconds patience, std::function<void(Result<void>)> told);

    Pump::Progress turn() override;
    void forget(std::uint64_t range) override;

private:
    // What NCCL itself opens at most is twice that.
    static constexpr std::size_t most_in_flight = driver::nccl_net::most_requests / 2;

    struct InFlight {
        Piece piece;
        driver::NcclNet::Request request = nullptr;
        bool flushes = false;  // the bytes are there, and have to be seen by their GPU
    };
    struct Trial {
        std::shared_ptr<const Range> range;
        std::function<void(Result<void>)> told;
    };
    struct Registered {
        driver::NcclNet::Region region = nullptr;
        std::shared_ptr<std::atomic<int>> counted{};
    };
    struct Way {
        driver::NcclNet::Comm comm = nullptr;
        std::deque<Piece> waiting{};
        std::vector<InFlight> in_flight{};
        std::map<std::uint64_t, Registered> regions{};  // by the ranges' ids
        bool busy() const { return !waiting.empty() || !in_flight.empty(); }
    };

    void give(Way& way, Piece piece);
    Result<bool> go_on();
    Result<bool> connect();
    Result<bool> start(Way& way);
    Result<driver::NcclNet::Region> region(Way& way, const Range& range);
    Result<driver::NcclNet::Region> region_of(Way& way, Piece& piece);
    Result<bool> look(Way& way);
    Result<bool> flush(Way& way, InFlight& landed);
    bool joined() const { return sending_.comm != nullptr && receiving_.comm != nullptr; }
    void run_trials();
    void refuse_trials(const Error& why);
    Result<void> check_silence(bool moved);
    Result<void> close();
    void deregister(Way& way, Result<void>& first);

    const std::shared_ptr<driver::NcclNet> net_;
    const int device_;
    const Patience patience_;
    std::weak_ptr<Owner> owner_;
    driver::NcclNet::Comm listening_ = nullptr;
    driver::NcclNetHandle theirs_{};  // the plugin writes into it
    bool joining_ = false;
    bool over_ = false;  // closed, or failed
    std::function<void(Result<void>)> closing_;
    Time closes_{};
    Time since_{};  // of the last that came about
    Way sending_;
    Way receiving_;
    std::vector<Trial> trials_;
};

}  // namespace sidestep::backends::ncclnet
