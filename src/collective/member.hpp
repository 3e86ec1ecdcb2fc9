// One rank of a group: joins, turns operations into tasks of its seat, leaves.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>

#include "base/owner_process.hpp"
#include "collective/service_thread.hpp"
#include "collective/tasks.hpp"

namespace sidestep::collective {

struct JoinRequest {
    const backend::Registry& registry;  // outlives the member
    bool emulated = false;
    std::string peer_folder;  // empty: the default
    Seating seating;
    GroupOptions options;
    std::string figures = {};   // JSON of Figures; counts on rank 0 only; empty: the built-in ones
    std::stop_token stop = {};  // ends waiting for others
    std::function<Result<void>()> coming = {};  // as Rendezvous::meet has it
};

// `timeout` from now; as good as never where it is 0.
driver::LocalSocket::Time deadline_after(std::chrono::milliseconds timeout);
// Of a wait that is no operation's.
inline driver::LocalSocket::Time join_deadline_of(const GroupOptions& options) {
    return deadline_after(options.join_timeout.value_or(options.timeout));
}

// run(), attach(), detach(), split and shrink by one thread at a time; the others by any, at any time.
class Member {
public:
    // Returns when all ranks have joined. Errors name who is missing, or what does not fit.
    static Result<std::unique_ptr<Member>> join(const JoinRequest& request);

    Result<void> run(const Operation& operation, void* stream);
    // Calls that do not depend on each other, in their order; on all ranks the same ones. Where one of them makes no
    // sense none is run.
    Result<void> run_together(std::vector<Operation> calls, void* stream);

    Result<void> attach(const Buffer& buffer);
    Result<void> detach(const Buffer& buffer);
    Result<CollectivePlan> explain(const Operation& operation) const;

    // The seating of a new group of those that give the same color, made of this one's id; nothing for a
    // color below 0.
    Result<std::optional<Seating>> split(int color, int key, driver::LocalSocket::Time until,
                                         const std::stop_token& stop);
    Result<Seating> shrink(const std::vector<int>& excluded, driver::LocalSocket::Time until,
                           const std::stop_token& stop);

    // Whether all ranks of the group that split() or shrink() has last agreed on may still join it.
    Result<void> next_are_coming() const;
    // This one does not.
    void does_not_come(const Error& why) const { service_->exchanges().take_back(why); }

    Result<void> status() const { return service_->status(); }
    Result<bool> idle() const;
    Result<void> wait() const;
    void abort(const std::string& why);

    // Waits for this rank's own tasks, then says goodbye; the service thread stays until finished().
    void leave();
    bool finished() const { return service_->finished(); }
    bool forked() const { return service_->forked(); }
    void hurry(driver::LocalSocket::Time until) { service_->hurry(until); }
    void leave_other_processes_behind(driver::LocalSocket::Time until) {
        service_->leave_other_processes_behind(until);
    }
    // Also after leave(), when status() is no longer to be called.
    bool failed() const { return own().verdict.failed(); }

    int rank() const { return seating_.rank; }
    int ranks() const { return seating_.ranks; }
    const Seating& seating() const { return seating_; }
    driver::LocalSocket::Time join_deadline() const { return join_deadline_of(options_); }

private:
    const base::OwnerProcess process_;

    // What was decided for a call, for the next one like it.
    struct Decided {
        Operation operation;
        std::uint32_t signature = 0;
        bool valid = false;
        Choice choice;
        bool has_tasks = false;
        std::vector<protocol::CollectiveTask> tasks;
    };

    Member(Seating seating, GroupOptions options, GroupFacts facts, std::unique_ptr<ServiceThread> service)
        : seating_(std::move(seating)),
          options_(std::move(options)),
          facts_(std::move(facts)),
          service_(std::move(service)) {}

    RankResources& own() const { return service_->own(); }
    Result<Decided*> choose_for(const Operation& operation);
    Result<Decided*> decide(const Operation& operation);
    Result<void> check_state() const;
    Result<void> carry_out(const Operation& operation, void* stream);
    Result<void> set_tokens(protocol::CollectiveTask& task, bool& asked);
    Result<protocol::Token> token_of(const void* address, Bytes bytes, bool& asked);
    Touched touched_of(const Operation& operation, const Choice& choice) const;
    Result<void> enqueue(std::vector<protocol::CollectiveTask>& tasks, const Noted& noted, void* stream);
    Result<void> check_peers(const Operation& operation) const;
    GroupId derived_id(std::uint64_t number, std::uint64_t color) const;

    const Seating seating_;
    const GroupOptions options_;
    const GroupFacts facts_;
    const std::unique_ptr<ServiceThread> service_;
    std::array<Decided, 32> decided_;
    Decided listed_;  // of calls with lists; the choice alone is kept
    std::uint64_t number_ = 0;
    std::uint64_t step_ = 0;
    std::uint32_t next_ = 0;  // bit r: rank r belongs to that group
};

}  // namespace sidestep::collective
