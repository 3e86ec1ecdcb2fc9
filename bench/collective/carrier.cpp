#include "bench/collective/carrier.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/collective/elements.hpp"

namespace sidestep::bench::collective {
namespace {

class GroupCarrier final : public Carrier {
public:
    GroupCarrier(Group& group, const GroupMemory& memory, const Seat& seat, GroupPolicy policy)
        : group_(group), memory_(memory), seat_(seat), policy_(policy) {}

    std::string name() const override {
        return policy_ == GroupPolicy::zero_sm ? "sidestep, copy engines" : "sidestep";
    }
    std::string refuses(const Call& call) const override {
        if (policy_ != GroupPolicy::zero_sm) return {};
        const auto plan = group_.explain(call.operation, call.count, call.type, reduction_of(call));
        return plan ? std::string() : plan.error().message;
    }
    void* send() const override { return memory_.send.address(); }
    void* recv() const override { return memory_.recv.address(); }

    Result<void> run(const Call& call, const void* from, void* to, void* stream) override {
        auto* const on = static_cast<CUstream_st*>(stream);
        const std::size_t count = call.count;
        switch (call.operation) {
            case Collective::all_reduce:
                return group_.all_reduce(from, to, count, call.type, reduction_of(call), on);
            case Collective::broadcast:
                return group_.broadcast(from, to, count, call.type, seat_.root, on);
            case Collective::reduce:
                return group_.reduce(from, to, count, call.type, reduction_of(call), seat_.root, on);
            case Collective::all_gather:
                return group_.all_gather(from, to, count, call.type, on);
            case Collective::reduce_scatter:
                return group_.reduce_scatter(from, to, count, call.type, reduction_of(call), on);
            case Collective::all_to_all:
                return group_.all_to_all(from, to, count, call.type, on);
            case Collective::all_to_all_v: {
                const SkewedBlocks blocks(call, seat_.rank, seat_.ranks);
                return group_.all_to_all_v(from, to, blocks.lists(), call.type, on);
            }
            case Collective::gather:
                return group_.gather(from, to, count, call.type, seat_.root, on);
            case Collective::scatter:
                return group_.scatter(from, to, count, call.type, seat_.root, on);
            case Collective::send_recv:
                return ring(call, from, to, on);
            case Collective::barrier:
                return group_.barrier(on);
        }
        return Error{ErrorCode::internal, "an unknown collective", "bench collective", {}};
    }
    Result<void> wait() override { return seat_.emulated ? group_.wait() : group_.status(); }
    std::string path(const Call& call, const void* from, const void* to) override {
        const auto plan = group_.explain(call.operation, call.count, call.type, reduction_of(call), from, to);
        if (!plan) return plan.error().message;
        std::string text = plan->algorithm;
        if (!plan->memory.empty() && plan->memory != "yes") text += fmt::format("; memory: {}", plan->memory);
        return text;
    }

private:
    static Reduction reduction_of(const Call& call) {
        return call.reduction == ReduceOp::scaled_sum ? Reduction::scaled(Elements::scale, call.type)
                                                      : Reduction::of(call.reduction);
    }
    Result<void> ring(const Call& call, const void* from, void* to, CUstream_st* on) {
        const int next = (seat_.rank + 1) % seat_.ranks,
                  before = (seat_.rank + seat_.ranks - 1) % seat_.ranks;
        group_.begin_calls();
        const auto sent = group_.send(from, call.count, call.type, next, on);
        const auto received = group_.recv(to, call.count, call.type, before, on);
        const auto ended = group_.end_calls();
        if (!sent) return sent;
        if (!received) return received;
        return ended;
    }

    Group& group_;
    const GroupMemory& memory_;
    Seat seat_;
    GroupPolicy policy_;
};

class NcclCarrier final : public Carrier {
public:
    NcclCarrier(std::shared_ptr<raw::Nccl> library, std::unique_ptr<raw::NcclRank> rank,
                const NcclMemory& memory, raw::NcclMode mode, const Seat& seat)
        : library_(std::move(library)), rank_(std::move(rank)), memory_(memory), mode_(mode), seat_(seat) {}

    std::string name() const override {
        return fmt::format("NCCL {}, {}", library_->version(), raw::to_string(mode_));
    }
    std::string refuses(const Call& call) const override { return library_->lacks(mode_, call.operation); }
    void* send() const override { return memory_.send; }
    void* recv() const override { return memory_.recv; }
    Result<void> run(const Call& call, const void* from, void* to, void* stream) override {
        const SkewedBlocks blocks(call, seat_.rank, seat_.ranks);
        const BlockLists lists = blocks.lists();
        return rank_->run({call.operation, from, to, call.count, call.type, call.reduction, Elements::scale,
                           seat_.root, &lists, stream});
    }
    Result<void> wait() override { return {}; }
    std::string path(const Call&, const void*, const void*) override { return library_->file(); }

private:
    std::shared_ptr<raw::Nccl> library_;
    std::unique_ptr<raw::NcclRank> rank_;
    const NcclMemory& memory_;
    raw::NcclMode mode_;
    Seat seat_;
};

}  // namespace

std::unique_ptr<Carrier> group_carrier(Group& group, const GroupMemory& memory, const Seat& seat,
                                       GroupPolicy policy) {
    return std::make_unique<GroupCarrier>(group, memory, seat, policy);
}

Result<std::unique_ptr<NcclMemory>> NcclMemory::allocate(std::shared_ptr<raw::Nccl> library, Bytes bytes) {
    std::unique_ptr<NcclMemory> memory(new NcclMemory(std::move(library)));
    for (void** end : {&memory->send, &memory->recv}) {
        SIDESTEP_TRY(const auto made, memory->library_->allocate(bytes));
        *end = made;
    }
    return memory;
}

NcclMemory::~NcclMemory() {
    for (void* memory : {send, recv})
        if (memory) library_->free(memory);
}

Result<std::unique_ptr<Carrier>> nccl_carrier(std::shared_ptr<raw::Nccl> library, const NcclMemory& memory,
                                              Bytes bytes, raw::NcclMode mode, const std::string& id,
                                              const Seat& seat) {
    SIDESTEP_TRY(auto rank, raw::NcclRank::join(library, mode, id, seat.rank, seat.ranks, memory.send,
                                                memory.recv, bytes));
    return std::unique_ptr<Carrier>(
        std::make_unique<NcclCarrier>(std::move(library), std::move(rank), memory, mode, seat));
}

SkewedBlocks::SkewedBlocks(const Call& call, int rank, int ranks) {
    std::uint64_t sent = 0, received = 0;
    for (int peer = 0; peer < ranks; ++peer) {
        send_counts.push_back(skewed_count(call.count, rank, peer));
        recv_counts.push_back(skewed_count(call.count, peer, rank));
        send_offsets.push_back(std::exchange(sent, sent + send_counts.back()));
        recv_offsets.push_back(std::exchange(received, received + recv_counts.back()));
    }
}

BlockLists SkewedBlocks::lists() const {
    return {send_counts.data(), send_offsets.data(), recv_counts.data(), recv_offsets.data(), false};
}

}  // namespace sidestep::bench::collective
