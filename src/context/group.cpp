// The public Group over collective::Member.
#include <sidestep/group.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/environment.hpp"
#include "base/owner_process.hpp"
#include "base/thread.hpp"
#include "base/try.hpp"
#include "collective/member.hpp"
#include "context/impl.hpp"
#include "topology/text_file_reader.hpp"

namespace sidestep {

using collective::Operation;

struct Group::Impl {
    Impl(std::shared_ptr<ContextAccess::Impl> owner, std::unique_ptr<collective::Member> rank)
        : context(std::move(owner)), member(std::move(rank)) {
        context->departed.joined();
    }
    ~Impl() { context->departed.take(std::move(member)); }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    std::shared_ptr<ContextAccess::Impl> context;  // goes last: departed members use its backends
    std::unique_ptr<collective::Member> member;
    // Runs it, or keeps it for end_calls().
    Result<void> call(Result<Operation> operation, CUstream_st* stream);
    Result<void> pair(bool sends, int peer, void* data, std::size_t count, Dtype dtype, CUstream_st* stream);
    Result<void> gather(Operation operation, CUstream_st* stream);
    // To the group that split() or shrink() has agreed on.
    Result<Group> join_next(const Seating& seating, const GroupOptions& options,
                            const std::stop_token& stop) const;

    int depth = 0;  // of begin_calls()
    // Between begin_calls() and end_calls(): collectives, and all sends and receives as one operation.
    std::vector<Operation> gathered;
    Operation pairs{.collective = Collective::send_recv};
    CUstream_st* gathered_on = nullptr;
    Result<void> refused;  // the first error there
};

// The door for functions of this file.
struct GroupAccess {
    static Group make(std::shared_ptr<ContextAccess::Impl> context,
                      std::unique_ptr<collective::Member> member) {
        return Group(base::make_shared_here<Group::Impl>(std::move(context), std::move(member)));
    }
};

namespace {

protocol::Combine combine_of(ReduceOp op) {
    switch (op) {
        case ReduceOp::sum:
            return protocol::Combine::sum;
        case ReduceOp::prod:
            return protocol::Combine::prod;
        case ReduceOp::min:
            return protocol::Combine::min;
        case ReduceOp::max:
            return protocol::Combine::max;
        case ReduceOp::avg:
            return protocol::Combine::avg;
        case ReduceOp::scaled_sum:
            return protocol::Combine::scaled_sum;
    }
    return protocol::Combine::none;
}

struct Call {
    Collective collective;
    const void* send = nullptr;
    void* recv = nullptr;
    std::size_t count = 0;
    Dtype dtype = Dtype::u8;
    const Reduction* reduction = nullptr;
    int root = 0;
};

Result<Operation> operation_of(const Call& call) {
    Operation operation{.collective = call.collective,
                        .send = call.send,
                        .recv = call.recv,
                        .count = call.count,
                        .root = call.root};
    SIDESTEP_TRY(operation.element, collective::element_of(call.dtype, call.reduction != nullptr));
    if (call.reduction == nullptr) return operation;
    operation.combine = combine_of(call.reduction->op);
    if (operation.combine == protocol::Combine::scaled_sum) {
        std::memcpy(&operation.scale, call.reduction->scale.data(), sizeof(operation.scale));
        operation.device_scale = call.reduction->device_scale;
    }
    return operation;
}

GroupOptions settled(GroupOptions options, const base::Environment& environment) {
    if (options.timeout == GroupOptions{}.timeout && environment.group_timeout)
        options.timeout = *environment.group_timeout;
    return options;
}

Result<std::string> stored_figures(const std::string& path) {
    if (path.empty()) return std::string();
    constexpr const char* variable = "SIDESTEP_TUNING";
    const auto text = topology::read_text_file(path, collective::largest_figures,
                                               {"file of figures", "sidestep tune --to writes one"});
    if (!text) return topology::at_file(text.error(), variable);
    auto figures = collective::figures_for_others(*text);
    if (!figures) return topology::at_file(topology::at_file(figures.error(), path), variable);
    return figures;
}

Result<Group> join(const std::shared_ptr<ContextAccess::Impl>& context, const Seating& seating,
                   const GroupOptions& options, const std::stop_token& stop,
                   std::function<Result<void>()> coming = {}) {
    SIDESTEP_CHECK(context::check(options));
    SIDESTEP_TRY(const base::Environment environment, base::Environment::read());
    collective::JoinRequest request{
        context->registry, context->topology.emulated(), context->peer_folder, seating, {}, {}, stop,
        std::move(coming)};
    request.options = settled(options, environment);
    if (seating.rank == 0) {
        SIDESTEP_TRY(request.figures, stored_figures(environment.tuning));
    }
    SIDESTEP_TRY(auto member, collective::Member::join(request));
    return GroupAccess::make(context, std::move(member));
}

Result<std::uint64_t> bytes_of(std::size_t count, Dtype dtype) {
    SIDESTEP_TRY(const protocol::Element element, collective::element_of(dtype, false));
    if (count > Buffer::whole / size_of(element))
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} elements are more bytes than there are", count),
                     "send_recv",
                     {}};
    return std::uint64_t{count} * size_of(element);
}

}  // namespace

Group::Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

Result<Group> Group::join(const Context& context, const Seating& seating, const GroupOptions& options,
                          std::stop_token stop) {
    return sidestep::join(ContextAccess::shared(context), seating, options, stop);
}

Result<std::vector<Group>> Group::local(const Context& context, const std::vector<Place>& places,
                                        const GroupOptions& options) {
    if (places.empty() || places.size() > protocol::max_ranks)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("a group has 1 to {} ranks, not {}", protocol::max_ranks, places.size()),
                     "group",
                     {}};
    SIDESTEP_TRY(const GroupId id, GroupId::create());
    std::vector<std::optional<Result<Group>>> joined(places.size());
    std::vector<std::thread> threads;
    std::stop_source no_more;  // nobody waits for a rank that has no thread
    const auto join_one = [&](std::size_t rank) {
        joined[rank] =
            join(context, Seating{id, static_cast<int>(rank), static_cast<int>(places.size()), places[rank]},
                 options, no_more.get_token());
    };
    for (std::size_t rank = 1; rank < places.size(); ++rank) {
        auto started = base::start_thread([&join_one, rank] { join_one(rank); }, "group");
        if (started) {
            threads.push_back(std::move(*started));
        } else {
            joined[rank] = started.error();
            no_more.request_stop();
        }
    }
    join_one(0);
    for (std::thread& thread : threads) thread.join();
    std::vector<Group> groups;
    // Of several errors the first that is no mere absence.
    for (auto& one : joined)
        if (!*one && one->error().code != ErrorCode::timed_out && one->error().code != ErrorCode::cancelled)
            return one->error();
    for (auto& one : joined) {
        if (!*one) return one->error();
        groups.push_back(std::move(**one));
    }
    return groups;
}

int Group::rank() const {
    return impl_->member->rank();
}
int Group::ranks() const {
    return impl_->member->ranks();
}
const Place& Group::place() const {
    return impl_->member->seating().place;
}
const GroupId& Group::id() const {
    return impl_->member->seating().id;
}

Result<void> Group::all_reduce(const void* send, void* recv, std::size_t count, Dtype dtype,
                               const Reduction& reduction, CUstream_st* stream) {
    return impl_->call(operation_of({Collective::all_reduce, send, recv, count, dtype, &reduction}), stream);
}

Result<void> Group::broadcast(const void* send, void* recv, std::size_t count, Dtype dtype, int root,
                              CUstream_st* stream) {
    return impl_->call(operation_of({Collective::broadcast, send, recv, count, dtype, nullptr, root}),
                       stream);
}

Result<void> Group::reduce(const void* send, void* recv, std::size_t count, Dtype dtype,
                           const Reduction& reduction, int root, CUstream_st* stream) {
    return impl_->call(operation_of({Collective::reduce, send, recv, count, dtype, &reduction, root}),
                       stream);
}

Result<void> Group::all_gather(const void* send, void* recv, std::size_t count, Dtype dtype,
                               CUstream_st* stream) {
    return impl_->call(operation_of({Collective::all_gather, send, recv, count, dtype}), stream);
}

Result<void> Group::reduce_scatter(const void* send, void* recv, std::size_t count, Dtype dtype,
                                   const Reduction& reduction, CUstream_st* stream) {
    return impl_->call(operation_of({Collective::reduce_scatter, send, recv, count, dtype, &reduction}),
                       stream);
}

Result<void> Group::all_to_all(const void* send, void* recv, std::size_t count, Dtype dtype,
                               CUstream_st* stream) {
    return impl_->call(operation_of({Collective::all_to_all, send, recv, count, dtype}), stream);
}

Result<void> Group::all_to_all_v(const void* send, void* recv, const BlockLists& blocks, Dtype dtype,
                                 CUstream_st* stream) {
    auto operation = operation_of({Collective::all_to_all_v, send, recv, 0, dtype});
    if (operation) operation->blocks = blocks;
    return impl_->call(std::move(operation), stream);
}

Result<void> Group::gather(const void* send, void* recv, std::size_t count, Dtype dtype, int root,
                           CUstream_st* stream) {
    return impl_->call(operation_of({Collective::gather, send, recv, count, dtype, nullptr, root}), stream);
}

Result<void> Group::scatter(const void* send, void* recv, std::size_t count, Dtype dtype, int root,
                            CUstream_st* stream) {
    return impl_->call(operation_of({Collective::scatter, send, recv, count, dtype, nullptr, root}), stream);
}

// A part of what was gathered would leave the other ranks waiting for the rest: after an error none of it runs.
Result<void> Group::Impl::call(Result<Operation> operation, CUstream_st* stream) {
    if (depth == 0) return operation ? member->run(*operation, stream) : operation.error();
    const auto taken = operation ? gather(std::move(*operation), stream) : Result<void>(operation.error());
    if (refused && !taken) refused = taken;
    return taken;
}

Result<void> Group::Impl::gather(Operation operation, CUstream_st* stream) {
    if (!(gathered.empty() && pairs.pairs.empty()) && gathered_on != stream)
        return Error{ErrorCode::invalid_argument,
                     "all calls between begin_calls() and end_calls() go to one stream",
                     std::string(to_string(operation.collective)),
                     {}};
    gathered_on = stream;
    if (operation.collective == Collective::send_recv)
        pairs.pairs.push_back(operation.pairs.front());
    else
        gathered.push_back(std::move(operation));
    return {};
}

Result<void> Group::Impl::pair(bool sends, int peer, void* data, std::size_t count, Dtype dtype,
                               CUstream_st* stream) {
    const auto bytes = bytes_of(count, dtype);
    if (!bytes) return call(bytes.error(), stream);
    if (peer < 0 || peer >= member->ranks())
        return call(Error{ErrorCode::invalid_argument,
                          fmt::format("a group of {} ranks has no rank {}", member->ranks(), peer),
                          "send_recv",
                          {}},
                    stream);
    Operation operation{.collective = Collective::send_recv};
    operation.pairs.push_back({sends, peer, data, *bytes});
    return call(std::move(operation), stream);
}

Result<void> Group::send(const void* data, std::size_t count, Dtype dtype, int to, CUstream_st* stream) {
    return impl_->pair(true, to, const_cast<void*>(data), count, dtype, stream);
}

Result<void> Group::recv(void* data, std::size_t count, Dtype dtype, int from, CUstream_st* stream) {
    return impl_->pair(false, from, data, count, dtype, stream);
}

void Group::begin_calls() {
    ++impl_->depth;
}

Result<void> Group::end_calls() {
    if (impl_->depth == 0)
        return Error{
            ErrorCode::invalid_argument, "end_calls() was called without begin_calls()", "group", {}};
    if (--impl_->depth > 0) return {};
    std::vector<Operation> calls = std::exchange(impl_->gathered, {});
    Operation pairs = std::exchange(impl_->pairs, {.collective = Collective::send_recv});
    SIDESTEP_CHECK(std::exchange(impl_->refused, {}));
    if (!pairs.pairs.empty()) calls.push_back(std::move(pairs));
    return impl_->member->run_together(std::move(calls), impl_->gathered_on);
}

Result<void> Group::barrier(CUstream_st* stream) {
    return impl_->call(Operation{}, stream);
}

Result<void> Group::attach(const Buffer& buffer) {
    return impl_->member->attach(buffer);
}
Result<void> Group::detach(const Buffer& buffer) {
    return impl_->member->detach(buffer);
}

Result<CollectivePlan> Group::explain(Collective collective, std::size_t count, Dtype dtype,
                                      const Reduction& reduction, const void* send, const void* recv) const {
    const bool combines = collective::combines(collective);
    SIDESTEP_TRY(const Operation operation, operation_of({collective, send, const_cast<void*>(recv), count,
                                                          dtype, combines ? &reduction : nullptr}));
    return impl_->member->explain(operation);
}

// The others would wait for a rank that has failed before it met them.
Result<Group> Group::Impl::join_next(const Seating& seating, const GroupOptions& options,
                                     const std::stop_token& stop) const {
    auto group =
        sidestep::join(context, seating, options, stop, [this] { return member->next_are_coming(); });
    if (!group) member->does_not_come(group.error());
    return group;
}

Result<std::optional<Group>> Group::split(int color, int key, const GroupOptions& options,
                                          std::stop_token stop) {
    SIDESTEP_CHECK(context::check(options));
    const auto until = impl_->member->join_deadline();
    SIDESTEP_TRY(const auto seating, impl_->member->split(color, key, until, stop));
    if (!seating) return std::optional<Group>();
    SIDESTEP_TRY(Group group, impl_->join_next(*seating, options, stop));
    return std::optional<Group>(std::move(group));
}

Result<Group> Group::shrink(const std::vector<int>& excluded, const GroupOptions& options,
                            std::stop_token stop) {
    SIDESTEP_CHECK(context::check(options));
    const auto until = impl_->member->join_deadline();
    SIDESTEP_TRY(const Seating seating, impl_->member->shrink(excluded, until, stop));
    return impl_->join_next(seating, options, stop);
}

Result<void> Group::status() const {
    return impl_->member->status();
}
Result<bool> Group::idle() const {
    return impl_->member->idle();
}
Result<void> Group::wait() const {
    return impl_->member->wait();
}
void Group::abort(const std::string& why) {
    impl_->member->abort(why);
}

}  // namespace sidestep
