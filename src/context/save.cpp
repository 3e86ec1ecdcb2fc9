// Context::save: tensors of any places to safetensors files.
#include "checkpoint/save_closing.hpp"
#include "context/impl.hpp"

namespace sidestep {

Transfer Context::save(const std::vector<TensorToSave>& tensors, const std::string& path,
                       const SaveOptions& options) const {
    if (auto ours = impl_->engine->check_process(); !ours) return ContextAccess::refuse(*this, ours.error());
    if (auto good = context::check(options); !good) return ContextAccess::refuse(*this, good.error());
    auto plan = checkpoint::plan_save(tensors, path, options);
    if (!plan) return ContextAccess::refuse(*this, plan.error());
    const auto closing = std::make_shared<checkpoint::SaveClosing>(*plan, options);
    plan->spread.closing = closing;
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
