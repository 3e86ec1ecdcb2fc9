#include "wire/far.hpp"

namespace sidestep::wire {

std::shared_ptr<Bridge> Far::bridge_from(const Far& from, base::Workers& workers,
                                         const std::shared_ptr<std::atomic<unsigned>>& failures) const {
    std::lock_guard lock(mutex);
    auto& known = bridges[from.session.get()];
    if (known && !known->failed()) return known;
    known = std::make_shared<Bridge>(from.peer, from.session, peer, attached.region, size, failures);
    if (auto begun = workers.add([bridge = known] { bridge->open(); }); !begun) known->open();
    return known;
}

}  // namespace sidestep::wire
