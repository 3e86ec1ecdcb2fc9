#include "backends/ncclnet/loopback.hpp"

#include <utility>

#include <fmt/format.h>

#include "backends/ncclnet/outcome.hpp"

namespace sidestep::backends::ncclnet {

Result<void> Loopbacks::take(const std::shared_ptr<const Range>& range) {
    const std::lock_guard lock(mutex_);
    owns_.resize(plugin_.devices.size());
    for (std::size_t i = 0; i < owns_.size(); ++i)
        if (auto taken = take(owns_[i], plugin_.devices[i].number, range); !taken) return taken;
    return {};
}

Result<void> Loopbacks::take(std::shared_ptr<Bulk>& own, int device,
                             const std::shared_ptr<const Range>& range) {
    const bool is_new = own == nullptr;
    if (is_new) own = std::make_shared<Bulk>(plugin_.net, device, patience_, std::weak_ptr<Bulk::Owner>());
    const auto outcome = std::make_shared<Outcome>();
    pump_->post([=, pump = pump_.get(), bulk = own] {
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
    if (answer) return *answer;
    return Error{
        ErrorCode::timed_out,
        fmt::format("the network plugin {} does not say whether it takes memory", plugin_.net->name()),
        plugin_.net->library(),
        {}};
}

void Loopbacks::drop(std::shared_ptr<Bulk>& own) {
    if (own == nullptr) return;
    pump_->post([pump = pump_.get(), bulk = std::exchange(own, nullptr)] {
        bulk->close({}, [pump, it = bulk.get()](const Result<void>&) { pump->remove(it); });
    });
}

void Loopbacks::close() {
    const std::lock_guard lock(mutex_);
    for (auto& own : owns_) drop(own);
}

}  // namespace sidestep::backends::ncclnet
