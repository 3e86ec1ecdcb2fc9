#include "backends/verbs/device_trial.hpp"

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "backends/verbs/pair.hpp"
#include "base/try.hpp"
#include "driver/random.hpp"

namespace sidestep::backends::verbs {

using backend::device_trial_bytes;

namespace {

constexpr std::chrono::seconds trial_patience{5};

// One end of a write.
struct End {
    std::uint64_t address = 0;
    const driver::VerbsRegion* region = nullptr;
};

// Two queue pairs of one card that are joined to each other.
class LoopedPair {
public:
    static Result<std::unique_ptr<LoopedPair>> create(const Card& card) {
        std::unique_ptr<LoopedPair> made(new LoopedPair(card));
        SIDESTEP_TRY(made->completions_, driver::VerbsCompletions::create(card.context, 8));
        ibv_qp_cap wanted{};
        wanted.max_send_wr = wanted.max_recv_wr = 2;
        wanted.max_send_sge = wanted.max_recv_sge = 1;
        std::array<Greeting, 2> says;
        for (std::size_t i = 0; i < 2; ++i) {
            auto& pair = made->pairs_[i];
            SIDESTEP_TRY(pair,
                         driver::VerbsQueuePair::create(card.context, made->completions_->get(), wanted));
            SIDESTEP_CHECK(make_joinable(*pair, card));
            says[i] = greeting_of(*pair, card);
        }
        for (std::size_t i = 0; i < 2; ++i)
            SIDESTEP_CHECK(join_pair(*made->pairs_[i], card, says[i], says[1 - i], card.mtu));
        return made;
    }

    // Answers when the bytes are there: the completion of the end that has them tells, in whatever order they travelled.
    Result<void> write(const End& from, const End& to) {
        ibv_recv_wr told{};
        SIDESTEP_CHECK(pairs_[1]->receive(told));
        ibv_sge part{from.address, device_trial_bytes, from.region->local_key()};
        ibv_send_wr request{};
        request.sg_list = &part;
        request.num_sge = 1;
        request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        request.send_flags = IBV_SEND_SIGNALED;
        request.wr.rdma.remote_addr = to.address;
        request.wr.rdma.rkey = to.region->remote_key();
        SIDESTEP_CHECK(pairs_[0]->send(request));
        return wait_for(2);
    }

private:
    explicit LoopedPair(const Card& card) : context_(card.context) {}

    Result<void> wait_for(std::size_t left) {
        const auto until = std::chrono::steady_clock::now() + trial_patience;
        ibv_wc entry{};
        while (left > 0) {
            SIDESTEP_TRY(const std::size_t count, completions_->poll(&entry, 1));
            if (count > 0 && entry.status != IBV_WC_SUCCESS)
                return Error{ErrorCode::io_error,
                             fmt::format("the card says: {}", context_->verbs().wc_status_str(entry.status)),
                             "verbs",
                             {}};
            left -= count;
            if (count > 0) continue;
            if (std::chrono::steady_clock::now() > until)
                return Error{
                    ErrorCode::timed_out, "bytes that were sent to try it out did not come", "verbs", {}};
            std::this_thread::yield();
        }
        return {};
    }

    const driver::SharedVerbsContext context_;
    std::unique_ptr<driver::VerbsCompletions> completions_;
    std::array<std::unique_ptr<driver::VerbsQueuePair>, 2> pairs_;  // go first
};

}  // namespace

Result<void> try_device(const Card& card, const PreparedMemory& prepared, backend::DmaBufs& gpus,
                        const Buffer& scratch) {
    const auto known = prepared.find(scratch.address(), device_trial_bytes);
    if (known == nullptr)
        return Error{ErrorCode::internal, "the memory to try it out with is not prepared", "verbs", {}};
    const End device{reinterpret_cast<std::uintptr_t>(scratch.address()), &known->region};
    std::vector<char> bytes(device_trial_bytes);
    SIDESTEP_TRY(const auto region,
                 driver::VerbsRegion::host(card.context, bytes.data(), device_trial_bytes, access_flags()));
    const End host{reinterpret_cast<std::uintptr_t>(bytes.data()), &region};
    SIDESTEP_TRY(const auto pair, LoopedPair::create(card));
    return backend::try_device(
        {.card = card.context->name(),
         .host = bytes.data(),
         .make_unknown = [](void* to) { driver::fill_unknown(to, device_trial_bytes); },
         .carry_in = [&] { return pair->write(host, device); },
         .carry_back = [&] { return pair->write(device, host); }},
        gpus, scratch);
}

}  // namespace sidestep::backends::verbs
