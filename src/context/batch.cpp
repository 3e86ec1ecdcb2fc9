#include "context/impl.hpp"
#include "transfer/batch_plan.hpp"

namespace sidestep {

Transfer Context::copy_batch(const std::vector<BatchItem>& items, const CopyOptions& options) const {
    return ContextAccess::submit_batch(*this, items, options, nullptr);
}

Transfer ContextAccess::submit_batch(const Context& context, const std::vector<BatchItem>& items,
                                     const CopyOptions& options, void* stream, const char* note) {
    if (auto good = context::check(options); !good) return refuse(context, good.error());
    std::vector<transfer::BatchCopy> copies;
    copies.reserve(items.size());
    for (const BatchItem& item : items) copies.push_back({&item.from, &item.to});
    std::shared_ptr<transfer::Engine> engine(context.impl_, context.impl_->engine.get());
    auto batch = engine->submit_batch(copies, options, stream, context.impl_->pins->use(copies));
    if (*note != '\0') batch->add_note(note);
    return Transfer(std::move(engine), std::move(batch));
}

Transfer ContextAccess::refuse(const Context& context, Error error) {
    std::shared_ptr<transfer::Engine> engine(context.impl_, context.impl_->engine.get());
    return Transfer(std::move(engine), transfer::Engine::refuse(std::move(error)));
}

}  // namespace sidestep
