// What a Context owns, in the order it is built.
#pragma once

#include <memory>
#include <vector>

#include "backend/registry.hpp"
#include "transfer/engine.hpp"
#include <sidestep/context.hpp>

namespace sidestep {

struct Context::Impl {
    explicit Impl(Topology machine) : topology(std::move(machine)) {}

    const Topology topology;
    backend::Registry registry;
    std::vector<BackendStatus> status;
    std::unique_ptr<transfer::Engine> engine;  // last, so that it goes first: it uses all of the above
};

// The door for functions that extend Context from another header.
struct ContextAccess {
    static Context::Impl& impl(const Context& context) { return *context.impl_; }
    static Transfer submit(const Context& context, const Buffer& from, const Buffer& to,
                           const CopyOptions& options, void* stream);
};

}  // namespace sidestep
