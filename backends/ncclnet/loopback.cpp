#include "backends/ncclnet/loopback.hpp"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "backends/ncclnet/outcome.hpp"

namespace sidestep::backends::ncclnet {

// What is told of a piece that goes around. On the pump's thread.
class Loopbacks::Loop final : public Bulk::Owner {
public:
    void begin(Bulk& bulk, Bulk::Piece from, Bulk::Piece into, std::shared_ptr<Outcome> outcome) {
        if (failure_) return outcome->tell(*failure_);
        bulk_ = &bulk;
        from_ = std::move(from);
        outcome_ = std::move(outcome);
        bulk.receive(std::move(into));
    }
    void waits_for(std::uint16_t) override { bulk_->send(std::move(from_)); }
    void came(std::uint16_t) override { tell({}); }
    void gone(std::uint16_t) override {}
    void failed(Error why) override {
        failure_ = why;
        tell(std::move(why));
    }

private:
    void tell(Result<void> what) {
        if (const auto outcome = std::exchange(outcome_, nullptr)) outcome->tell(std::move(what));
    }

    Bulk* bulk_ = nullptr;  // outlives what is under way
    Bulk::Piece from_;
    std::shared_ptr<Outcome> outcome_;
    std::optional<Error> failure_;  // of the connection, after which it says nothing more
};

Result<void> Loopbacks::take(const std::shared_ptr<const Range>& range) {
    const std::lock_guard lock(mutex_);
    owns_.resize(plugin_.devices.size());
    for (std::size_t i = 0; i < owns_.size(); ++i)
        if (auto taken = take(owns_[i], plugin_.devices[i].number, range); !taken) return taken;
    return {};
}

Error Loopbacks::silent(const char* what) const {
    return {ErrorCode::timed_out,
            fmt::format("the network plugin {} does not {}", plugin_.net->name(), what),
            plugin_.net->library(),
            {}};
}

Result<void> Loopbacks::take(Own& own, int device, const std::shared_ptr<const Range>& range) {
    const bool is_new = own.bulk == nullptr;
    if (is_new) {
        own.loop = std::make_shared<Loop>();
        own.bulk = std::make_shared<Bulk>(plugin_.net, device, patience_, own.loop);
    }
    const auto outcome = std::make_shared<Outcome>();
    pump_->post([=, pump = pump_.get(), bulk = own.bulk] {
        if (is_new) {
            pump->add(bulk);
            const auto handle = bulk->listen();
            if (!handle) return outcome->tell(handle.error());
            bulk->join(*handle);
        }
        bulk->try_range(range, [outcome](Result<void> told) { outcome->tell(std::move(told)); });
    });
    const auto answer = outcome->wait(pump_->patience_now(patience_.join + patience_.close));
    if (answer && *answer) return *answer;
    // The next question begins anew.
    drop(own);
    return answer ? *answer : silent("say whether it takes memory");
}

Result<void> Loopbacks::carry(std::size_t device, Bulk::Piece from, Bulk::Piece into,
                              std::shared_ptr<const void> keeps) {
    const std::lock_guard lock(mutex_);
    Own& own = owns_.at(device);
    if (own.bulk == nullptr) return silent("keep its connections");
    const auto outcome = std::make_shared<Outcome>();
    pump_->post([=, bulk = own.bulk, loop = own.loop] { loop->begin(*bulk, from, into, outcome); });
    const auto answer = outcome->wait(pump_->patience_now(patience_.silence + patience_.close));
    if (answer && *answer) return *answer;
    drop(own, std::move(keeps));
    return answer ? *answer : silent("bring bytes that it was given");
}

// Memory that the plugin may still touch afterwards is kept for good.
void Loopbacks::drop(Own& own, std::shared_ptr<const void> keeps) {
    if (own.bulk == nullptr) return;
    pump_->post([pump = pump_.get(), gone = std::exchange(own, {}), keeps = std::move(keeps)] {
        gone.bulk->close({}, [pump, it = gone.bulk.get(), keeps](const Result<void>& done) {
            pump->remove(it);
            if (!done && keeps) new std::shared_ptr(keeps);
        });
    });
}

void Loopbacks::close() {
    const std::lock_guard lock(mutex_);
    for (Own& own : owns_) drop(own);
}

}  // namespace sidestep::backends::ncclnet
