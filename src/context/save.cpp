// Context::save: tensors of any places to safetensors files.
#include "base/try.hpp"
#include "checkpoint/save_closing.hpp"
#include "context/impl.hpp"
#include "transfer/shared_memory.hpp"

namespace sidestep {
namespace {

// Memory that other processes of this machine published becomes memory of this one. The leases keep it mapped.
Result<std::vector<std::shared_ptr<const void>>> import_shared(transfer::SharedMemory& shared,
                                                               std::vector<TensorToSave>& tensors,
                                                               std::chrono::milliseconds limit) {
    std::vector<std::shared_ptr<const void>> leases;
    for (TensorToSave& tensor : tensors) {
        if (!tensor.data.place().is_shared() || !tensor.data.place().node().empty()) continue;
        SIDESTEP_TRY(transfer::Import import, shared.import(tensor.data, limit));
        tensor.data = import.buffer;
        leases.push_back(std::move(import.lease));
    }
    return leases;
}

}  // namespace

Transfer Context::save(const std::vector<TensorToSave>& tensors, const std::string& path,
                       const SaveOptions& options) const {
    if (auto ours = impl_->engine->check_process(); !ours) return ContextAccess::refuse(*this, ours.error());
    if (auto good = context::check(options); !good) return ContextAccess::refuse(*this, good.error());
    std::vector<TensorToSave> here = tensors;
    auto leases = import_shared(*impl_->shared, here, options.deadline);
    if (!leases) return ContextAccess::refuse(*this, leases.error());
    auto plan = checkpoint::plan_save(here, path, options);
    if (!plan) return ContextAccess::refuse(*this, plan.error());
    const auto closing = std::make_shared<checkpoint::SaveClosing>(*plan, options);
    plan->spread.closing = closing;
    plan->spread.leases = std::move(*leases);
    if (closing->wants_checksums())
        plan->spread.look = [closing](std::size_t file, Bytes offset, const void* data, Bytes size) {
            return closing->look(file, offset, data, size);
        };
    std::shared_ptr<transfer::Engine> engine(impl_, impl_->engine.get());
    std::shared_ptr<transfer::Activity> activity =
        engine->submit_spread(std::move(plan->spread), context::copy_options(options));
    return ContextAccess::follow(std::move(engine), std::move(activity));
}

}  // namespace sidestep
