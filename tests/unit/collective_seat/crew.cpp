#include "crew.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include <fmt/format.h>

namespace sidestep::collective_seat {
namespace {

// Those of Crew::of().
std::map<unsigned, std::unique_ptr<Crew>> crews;

// They go while main() still runs: after it a driver of GPUs may have taken itself down.
class GoodBye final : public testing::Environment {
public:
    void TearDown() override { crews.clear(); }
};
const testing::Environment* const good_bye = testing::AddGlobalTestEnvironment(new GoodBye);

}  // namespace

Crew::Crew(unsigned ranks, std::uint64_t deadline_ns, std::size_t heap_bytes)
    : ranks_(ranks), heap_bytes_(heap_bytes), rows_(ranks), rig_(make_rig(ranks)) {
    if (rig_ == nullptr) return;
    for (unsigned rank = 0; rank < ranks; ++rank) {
        const Place place = rig_->place(rank);
        auto heap = rig_->backend().allocator()->allocate(place, heap_bytes, MemoryKind::device);
        auto seat = rig_->backend().seats()->seat({rank, ranks, place, deadline_ns});
        if (!heap || !seat) {
            ADD_FAILURE() << (heap ? seat.error() : heap.error()).to_string();
            return;
        }
        (*seat)->meet(rows_.data());
        heaps_.push_back(std::move(*heap));
        seats_.push_back(std::move(*seat));
    }
    for (const auto& seat : seats_) {
        for (unsigned rank = 0; rank < ranks; ++rank) {
            EXPECT_TRUE(seat->admit(seats_[rank]->arena()).ok());
            EXPECT_TRUE(seat->admit(heaps_[rank].buffer()).ok());
            EXPECT_TRUE(seat->reach(rank, 0, backend::bytes_of(seats_[rank]->arena())).ok());
            EXPECT_TRUE(seat->reach(rank, 1, backend::bytes_of(heaps_[rank].buffer())).ok());
        }
        EXPECT_TRUE(seat->prepare_copies().ok());
    }
}

// A rank that waits for another one is let go, not waited for. No arena goes while somebody may write to it.
Crew::~Crew() {
    for (const auto& seat : seats_) seat->abort();
    for (unsigned rank = 0; rank < seats_.size(); ++rank) wait_idle(rank);
    seats_.clear();
}

Crew& Crew::of(unsigned ranks) {
    auto& crew = crews[ranks];
    if (!crew) crew = std::make_unique<Crew>(ranks);
    return *crew;
}

unsigned Crew::max_on_a_gpu() const {
    unsigned max = 0;
    for (unsigned rank = 0; rank < ranks_; ++rank) {
        unsigned here = 0;
        for (unsigned other = 0; other < ranks_; ++other)
            here += rig_->place(other) == rig_->place(rank) ? 1 : 0;
        max = std::max(max, here);
    }
    return max;
}

char* Crew::at(unsigned rank, std::size_t offset) const {
    return static_cast<char*>(heaps_[rank].address()) + offset;
}

void Crew::write(unsigned rank, std::size_t offset, const Values& values) {
    ASSERT_LE(offset + values.size(), heap_bytes_);
    rig_->write(at(rank, offset), values.data(), values.size());
}

void Crew::fill(unsigned rank, std::size_t offset, std::size_t bytes, char byte) {
    ASSERT_LE(offset + bytes, heap_bytes_);
    rig_->fill(at(rank, offset), byte, bytes);
}

bool Crew::holds(unsigned rank, std::size_t offset, std::span<const char> values) {
    return rig_->holds(at(rank, offset), values.data(), values.size());
}

Values Crew::read(unsigned rank, std::size_t offset, std::size_t bytes) {
    Values values(bytes);
    rig_->read(values.data(), at(rank, offset), bytes);
    return values;
}

void Crew::start(unsigned rank, const protocol::CollectiveTask& task) {
    const auto started = seats_[rank]->run(task, rig_->stream(rank));
    ASSERT_TRUE(started.ok()) << started.error().to_string();
}

void Crew::run(const std::vector<protocol::CollectiveTask>& tasks) {
    for (unsigned rank = 0; rank < ranks_; ++rank) start(rank, tasks[rank]);
    finish();
}

bool Crew::wait_idle(unsigned rank) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (;;) {
        const auto idle = seats_[rank]->idle();
        EXPECT_TRUE(idle.ok());
        if (!idle || *idle) return idle.ok();
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

void Crew::finish() {
    for (unsigned rank = 0; rank < ranks_; ++rank) {
        ASSERT_TRUE(wait_idle(rank)) << "rank " << rank << " has not ended";
        const auto fault = seats_[rank]->fault();
        ASSERT_FALSE(fault.has_value()) << "rank " << rank << ": " << to_string(*fault);
    }
}

std::string to_string(const protocol::FaultRecord& fault) {
    return fmt::format("fault {} with rank {} in operation {}, signatures {:#x} {:#x}, bytes {} {}",
                       static_cast<unsigned>(fault.kind), fault.peer, fault.number, fault.signature,
                       fault.peer_signature, fault.bytes, fault.peer_bytes);
}

}  // namespace sidestep::collective_seat
