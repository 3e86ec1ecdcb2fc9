// One rank's communicator: a Group that comes into being, perhaps on a thread of its own, and what NCCL keeps
// with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/group.hpp>
#include "shims/nccl/abi.h"
#include "shims/nccl/machine.hpp"

namespace sidestep::nccl {

// What this library takes from an ncclConfig_t.
struct Config {
    bool blocking = true;
    bool copy_engines = false;  // what they can carry, they do: NCCL_CTA_POLICY_ZERO
    int max_blocks = 0;         // thread blocks (CTAs) of an operation; 0: any number
    std::string name;

    // Null: `inherited`. Else nothing is inherited: what `given` leaves open has its default, as in NCCL.
    // Nothing of `given` is kept. ErrorCode::invalid_argument for values that NCCL refuses too.
    static Result<Config> read(const ncclConfig_t* given, const Config& inherited);
    GroupOptions options() const;
};

// The configuration of one call, null for none. ErrorCode::unsupported for what would have to be done and is
// not.
Result<void> check_config(const ncclCollConfig_t* given);

// A collective, or a send or receive, as it waits for ncclGroupEnd.
struct Call {
    Collective what = Collective::all_reduce;
    const void* send = nullptr;
    void* recv = nullptr;
    std::size_t count = 0;
    Dtype dtype = Dtype::u8;
    Reduction reduction;
    int root = 0;        // or the peer of send_recv
    bool sends = false;  // of send_recv
    cudaStream_t stream = nullptr;

    bool is_pair() const { return what == Collective::send_recv; }
};

// Threads: any, for everything. Operations of one communicator are put in an order by a lock, which no
// operation holds while it waits for another rank.
class Communicator {
public:
    Communicator(Gpu device, Config config, int rank, int ranks);
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    const Gpu& device() const { return device_; }
    const Config& config() const { return config_; }
    int rank() const { return rank_; }
    int ranks() const { return ranks_; }

    // The end of coming into being, by the thread that made the group. Where the configuration asks for copy
    // engines, makes a second group of the same ranks that uses nothing else: all ranks call then. Where
    // abort() was called meanwhile, the group ends.
    Result<void> set_group(Group group);
    void set_failure(const Error& error);

    // What ncclCommGetAsyncError answers, and the error where it is one.
    std::pair<ncclResult_t, Error> state() const;
    // An error where the communicator is not there yet, or busy in the background.
    Result<void> ready() const;
    // An error where it takes no operation now.
    Result<void> usable() const;

    // Success until the group has failed; then why. Of ready() ones.
    Result<void> status() const;

    // Puts an operation on its stream; or calls of one group, which have one stream, together: none of them where one
    // makes no sense.
    Result<void> run(const Call& call);
    Result<void> run_together(const std::vector<Call>& calls);
    // As many collectives at a time: far fewer than a stream takes, and one where two groups take turns.
    std::size_t calls_together() const { return copies_ ? 1 : 64; }
    // On emulated GPUs, which have no streams: waits until all operations have ended. Else nothing.
    Result<void> settle() const;
    // Microseconds that the operation would take.
    double expected_us(const Call& call) const;

    // What goes on in the background: until leave() the state is ncclInProgress.
    void enter() { busy_.fetch_add(1); }
    void leave(const Result<void>& how);

    Result<void> finalize();
    // Ends the group, and what waits for other ranks on its behalf: its own coming into being, a split, a
    // shrink. Returns at once.
    void abort(const std::string& why);
    // Ends the group alone: what is enqueued gives up, on all ranks. Of ready() ones; returns at once.
    void end(const Error& why);
    // What such waiting looks at.
    std::stop_token stop() const { return stop_.get_token(); }
    void revoke();
    bool finalized() const { return finalized_.load(); }
    Result<std::optional<Group>> split(int color, int key, const GroupOptions& options);
    Result<Group> shrink(const std::vector<int>& excluded, bool abort_first, const GroupOptions& options);

    // A number for ncclRedOp_t, made of no other one of this process.
    int add_reduction(const Reduction& reduction, Dtype dtype);
    Result<void> remove_reduction(int op);
    Result<Reduction> reduction(int op, Dtype dtype) const;

    // Lets the others map memory of a caller. The handle stays valid where they cannot; operations work all
    // the same.
    Result<void*> add_registration(void* memory, std::size_t bytes);
    Result<void> remove_registration(void* handle);
    // The memory of such a handle.
    Result<void*> registered_memory(void* handle) const;

    // Of ready() ones: the group's id, alike on all ranks.
    GroupId id() const { return group_->id(); }
    // The id of the next communicator that grows out of this one, alike on all ranks. One that is taken is
    // not given again.
    GroupId next_id() const { return grown_id(grown_.load()); }
    GroupId take_next_id() { return grown_id(grown_.fetch_add(1)); }

    // Memory of ncclMemAlloc on this GPU: held until the others have unmapped it, or the group has ended. Calls that come
    // later look again.
    void attach(const std::shared_ptr<const Allocation>& memory);
    void detach(const std::shared_ptr<const Allocation>& memory);

private:
    enum class Phase { joining, ready, failed };
    struct Registration {
        Buffer buffer;
        bool attached = false;
    };
    struct CustomReduction {
        Reduction reduction;
        Dtype dtype;
    };
    Result<void> prepare_locked(bool copied);
    bool by_copy_engines(const Call& call) const;
    Result<void> wait() const;
    void forget_locked();
    GroupId grown_id(std::uint32_t before) const;

    const Gpu device_;
    const Config config_;
    const int rank_;
    const int ranks_;
    std::atomic<Phase> phase_{Phase::joining};
    std::atomic<int> busy_{0};
    std::atomic<bool> aborted_{false};
    std::stop_source stop_;
    std::atomic<bool> finalized_{false};
    std::atomic<bool> revoked_{false};
    std::atomic<std::uint32_t> grown_{0};  // how often ncclCommGrow was called

    mutable std::mutex facts_;  // of failure_, and of aborted_ against set_group()
    Error failure_;             // of coming into being, or of what went on on another thread
    std::atomic<bool> has_failed_{false};

    std::mutex calls_;              // one at a time calls operations of the group
    std::optional<Group> group_;    // written once, before phase_ becomes ready
    std::optional<Group> copies_;   // likewise: of copy engines alone, where the configuration asks for them
    bool last_was_copied_ = false;  // under calls_

    mutable std::mutex tables_;
    std::map<int, CustomReduction> reductions_;
    std::map<void*, std::unique_ptr<Registration>> registrations_;
    std::vector<std::shared_ptr<const Allocation>> attached_;   // under calls_
    std::vector<std::shared_ptr<const Allocation>> to_forget_;  // under tables_
    std::atomic<bool> forgets_{false};                          // that to_forget_ holds something
};

}  // namespace sidestep::nccl
