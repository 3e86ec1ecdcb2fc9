// The backends of one Context, and the offers the planner sees.
#pragma once

#include <memory>
#include <ranges>
#include <string_view>
#include <vector>

#include "backend/backend.hpp"

namespace sidestep::backend {

// Filled once while the Context opens, constant after.
class Registry {
public:
    // Probes the backend and keeps it, usable or not. The topology outlives this object: a backend may ask it later.
    void add(std::unique_ptr<Backend> backend, const Topology& topology);
    // Notes one that this build or machine leaves out, with what it would have offered.
    void add_absent(Offer offer);

    // In the order of registration.
    const std::vector<Offer>& offers() const { return offers_; }
    // The usable backend of that name, or null.
    Backend* find(std::string_view name) const;
    // What the first usable backend says that knows the buffer; nothing where none does. Fails as it does.
    Result<std::optional<Description>> describe(const Buffer& buffer) const;
    // As what the first usable backend shares that can; nothing where none does. Fails as it does.
    Result<std::optional<Exported>> share(const Buffer& buffer) const;
    // Every usable backend, in the order of registration.
    const std::vector<Backend*>& usable() const { return usable_; }
    // A role of those that have it, as in with(&Backend::sharer).
    template <typename Role>
    auto with(Role* (Backend::*role)()) const {
        return usable_ | std::views::transform(role) |
               std::views::filter([](Role* one) { return one != nullptr; });
    }

private:
    std::vector<std::unique_ptr<Backend>> owned_;
    std::vector<Offer> offers_;
    std::vector<Backend*> usable_;
};

}  // namespace sidestep::backend
