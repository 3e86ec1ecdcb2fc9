// Context::load: memory for a checkpoint at every place, and the files spread over it.
#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "base/deadlines.hpp"
#include "base/try.hpp"
#include "checkpoint/load_plan.hpp"
#include "checkpoint/loaded.hpp"
#include "checkpoint/manifest_reader.hpp"
#include "context/impl.hpp"
#include "transfer/ends.hpp"

namespace sidestep {

using checkpoint::LoadPlan;

namespace {

// What keeps the memory of a load until nothing of it is in flight: the spread holds it with the placement.
struct Target {
    std::shared_ptr<const checkpoint::LoadPlacement> placement;
    std::shared_ptr<const std::vector<Allocation>> memory;
};

}  // namespace

struct Loading::Impl {
    explicit Impl(Transfer started) : transfer(std::move(started)) {}
    ~Impl() {
        { const Transfer ended(std::move(transfer)); }
        let_go();
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    // Whoever drives the activity may hold it a little longer. A device that hangs may still write to the
    // memory: then it stays as long as the activity.
    void let_go() {
        if (target && activity->drained()) target->memory.reset();
    }
    Result<Loaded> end(Result<Receipt> result);

    std::shared_ptr<checkpoint::LoadedContent> content;  // null where the load was refused
    std::shared_ptr<Target> target;
    std::shared_ptr<const transfer::Activity> activity;
    std::shared_ptr<std::atomic<std::size_t>>
        unchecked;  // parts of blocks that no checksum told of; may be null
    std::vector<std::string> notes;
    Bytes total = 0;
    Transfer transfer;
};

namespace {

Error of_load(ErrorCode code, std::string message, std::string where, std::string hint = {}) {
    return {code, std::move(message), std::move(where), std::move(hint)};
}

// Memory at every place, before anything is read. What is missing is told for all places at once.
Result<std::shared_ptr<const std::vector<Allocation>>> allocate_all(const Context& context,
                                                                    const std::vector<Place>& places,
                                                                    const std::vector<Bytes>& bytes) {
    auto memory = std::make_shared<std::vector<Allocation>>();
    std::string missing;
    Error last;
    for (std::size_t i = 0; i < places.size(); ++i) {
        const MemoryKind kind = places[i].is_host() ? MemoryKind::pageable : MemoryKind::automatic;
        auto block = context.allocate(places[i], bytes[i], kind);
        if (block) {
            memory->push_back(std::move(*block));
            continue;
        }
        last = block.error();
        if (last.code != ErrorCode::out_of_memory) return last;
        missing +=
            fmt::format("; {} needs {}: {}", places[i].to_string(), format_bytes(bytes[i]), last.message);
    }
    if (missing.empty()) return std::shared_ptr<const std::vector<Allocation>>(std::move(memory));
    return of_load(
        ErrorCode::out_of_memory, fmt::format("too little memory for the checkpoint{}", missing), "load",
        fmt::format("load fewer tensors, or parts of them at each place (layouts tensor and axis); {}",
                    last.hint));
}

using Unchecked = std::shared_ptr<std::atomic<std::size_t>>;

// The Look that compares blocks with the checksums; `files` are the spread's, as positions in the checkpoint.
Result<transfer::Spread::Look> compare_with(const checkpoint::Manifest& manifest,
                                            const Checkpoint& checkpoint, std::vector<std::size_t> files,
                                            const Unchecked& unchecked) {
    SIDESTEP_TRY(auto created, checkpoint::ManifestCheck::create(manifest, checkpoint.files(),
                                                                 checkpoint.tensors(), files));
    const auto check = std::make_shared<const checkpoint::ManifestCheck>(std::move(created));
    return transfer::Spread::Look([check, files = std::move(files), unchecked](std::size_t file, Bytes offset,
                                                                               const void* data,
                                                                               Bytes size) -> Result<void> {
        SIDESTEP_TRY(const bool whole, check->compare(files[file], offset, data, size));
        if (!whole) ++*unchecked;
        return {};
    });
}

transfer::Spread spread_of(LoadPlan& plan, const std::shared_ptr<Target>& target) {
    transfer::Spread spread;
    spread.direction = transfer::SpreadDirection::to_memory;
    spread.files = std::move(plan.files);
    spread.bytes = plan.bytes;
    for (const Allocation& block : *target->memory) spread.memories.push_back(block.buffer());
    spread.placement = std::shared_ptr<const transfer::Placement>(target, target->placement.get());
    return spread;
}

// What a load is made of, before it starts.
struct Prepared {
    LoadPlan plan;
    transfer::Spread spread;
    std::shared_ptr<Target> target;
    Unchecked unchecked;
    std::chrono::milliseconds deadline{0};  // of what comes
};

Result<Prepared> prepare(const Context& context, const Topology& topology, const Checkpoint& checkpoint,
                         const LoadOptions& options) {
    SIDESTEP_CHECK(context::check(options));
    Prepared prepared;
    prepared.deadline = options.deadline;
    std::optional<checkpoint::Manifest> manifest;
    if (!options.manifest.empty()) {
        const auto begin = std::chrono::steady_clock::now();
        SIDESTEP_TRY(manifest, base::make_within<checkpoint::Manifest>(
                                   options.deadline, options.manifest,
                                   [path = options.manifest] { return checkpoint::read_manifest(path); }));
        prepared.deadline = base::left_of(options.deadline, begin);
        if (manifest->block != transfer::Spread::block)
            return of_load(
                ErrorCode::unsupported,
                fmt::format("the manifest has checksums of blocks of {}, and loads check blocks of {}",
                            format_bytes(manifest->block), format_bytes(transfer::Spread::block)),
                options.manifest);
    }
    SIDESTEP_TRY(prepared.plan, checkpoint::plan_load(checkpoint, options, manifest ? manifest->block : 0));
    for (const Place& place : options.to) SIDESTEP_CHECK(transfer::check_here(topology, place));
    for (std::size_t i = 0; i < prepared.plan.files.size(); ++i)
        prepared.plan.files[i].version = checkpoint.files()[prepared.plan.file_numbers[i]].identity;
    transfer::Spread::Look look;
    if (manifest) {
        prepared.unchecked = std::make_shared<std::atomic<std::size_t>>(0);
        SIDESTEP_TRY(look,
                     compare_with(*manifest, checkpoint, prepared.plan.file_numbers, prepared.unchecked));
    }
    prepared.target = std::make_shared<Target>();
    prepared.target->placement = prepared.plan.placement;
    SIDESTEP_TRY(prepared.target->memory, allocate_all(context, options.to, prepared.plan.layout().memory));
    prepared.spread = spread_of(prepared.plan, prepared.target);
    prepared.spread.look = std::move(look);
    return prepared;
}

}  // namespace

Result<Loaded> Loading::Impl::end(Result<Receipt> result) {
    const std::shared_ptr<checkpoint::LoadedContent> ended = std::move(content);
    let_go();
    if (!result) return result.error();
    if (!ended)
        return Error{ErrorCode::invalid_argument, "what was loaded has been handed out already", "load",
                     "wait for a load once"};
    ended->receipt = std::move(*result);
    for (std::string& note : notes) ended->receipt.notes.push_back(std::move(note));
    if (unchecked && unchecked->load() > 0)
        ended->receipt.notes.push_back(fmt::format(
            "{} parts of blocks were read that the manifest has no checksum of", unchecked->load()));
    return ContextAccess::loaded(ended);
}

Loading ContextAccess::load(const Context& context, const Checkpoint& checkpoint,
                            const LoadOptions& options) {
    if (auto ours = impl(context).engine->check_process(); !ours)
        return Loading(std::make_unique<Loading::Impl>(refuse(context, ours.error())));
    auto prepared = prepare(context, context.topology(), checkpoint, options);
    if (!prepared) return Loading(std::make_unique<Loading::Impl>(refuse(context, prepared.error())));
    auto content = std::make_shared<Loaded::Content>(checkpoint, options);
    content->memory = prepared->target->memory;
    content->file_bytes = prepared->plan.file_bytes;
    list_tensors(prepared->plan.layout(), *content);

    std::shared_ptr<transfer::Engine> engine(context.impl_, context.impl_->engine.get());
    CopyOptions limits = context::copy_options(options);
    limits.deadline = prepared->deadline;
    auto activity = engine->submit_spread(std::move(prepared->spread), limits);
    auto impl = std::make_unique<Loading::Impl>(follow(std::move(engine), activity));
    impl->activity = std::move(activity);
    impl->target = std::move(prepared->target);
    impl->content = std::move(content);
    impl->unchecked = std::move(prepared->unchecked);
    impl->notes = checkpoint.notes();
    for (std::string& note : prepared->plan.notes) impl->notes.push_back(std::move(note));
    impl->total = prepared->plan.bytes;
    return Loading(std::move(impl));
}

Loaded ContextAccess::loaded(std::shared_ptr<const checkpoint::LoadedContent> content) {
    return Loaded(std::static_pointer_cast<const Loaded::Content>(std::move(content)));
}

Loading Context::load(const Checkpoint& checkpoint, const LoadOptions& options) const {
    return ContextAccess::load(*this, checkpoint, options);
}

Loading::Loading(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Loading::Loading(Loading&&) noexcept = default;
Loading& Loading::operator=(Loading&&) noexcept = default;
Loading::~Loading() = default;

Result<Loaded> Loading::wait() {
    return impl_->end(impl_->transfer.wait());
}

std::optional<Result<Loaded>> Loading::wait_for(std::chrono::milliseconds limit) {
    auto ended = impl_->transfer.wait_for(limit);
    if (!ended) return std::nullopt;
    return impl_->end(std::move(*ended));
}

void Loading::cancel() {
    impl_->transfer.cancel();
}

Bytes Loading::bytes_done() const {
    return impl_->transfer.bytes_done();
}

Bytes Loading::bytes_total() const {
    return impl_->total;
}

}  // namespace sidestep
