// What a Context owns, in the order it is built.
#pragma once

#include <memory>
#include <vector>

#include <sidestep/context.hpp>
#include "backend/registry.hpp"
#include "collective/departed_members.hpp"
#include "context/option_ranges.hpp"
#include "context/pins.hpp"
#include "peer/publisher.hpp"
#include "transfer/engine.hpp"
#include "transfer/shared_memory.hpp"
#include "wire/remote_backend.hpp"

namespace sidestep {

namespace checkpoint {
struct LoadedContent;
}

struct Context::Impl {
    explicit Impl(Topology machine) : topology(std::move(machine)) {}

    const Topology topology;
    backend::Registry registry;
    wire::RemoteBackend* remote = nullptr;  // belongs to the registry
    std::vector<BackendStatus> status;
    std::shared_ptr<context::Pins> pins;
    bool network_encryption = false;  // as the next
    bool network_checksums = false;   // as ContextOptions, for what this machine serves too
    std::string peer_folder;          // as ContextOptions::peer_folder, or the environment's
    std::shared_ptr<peer::Publisher> publisher = std::make_shared<peer::Publisher>();
    std::unique_ptr<transfer::SharedMemory> shared;
    std::unique_ptr<wire::OwnMemory> own_memory;  // of GPUs, as copies to nodes move it
    std::unique_ptr<transfer::Engine> engine;     // after what it uses, so that it goes before
    collective::DepartedMembers departed;         // of ranks that left groups; uses the backends too
};

// The door for functions that extend Context from another header.
struct ContextAccess {
    static Context::Impl& impl(const Context& context) { return *context.impl_; }
    using Impl = Context::Impl;
    static const std::shared_ptr<Impl>& shared(const Context& context) { return context.impl_; }
    // `note`, unless empty, goes into the Receipt of a copy that has ended when it is handed out.
    static Transfer submit(const Context& context, const Buffer& from, const Buffer& to,
                           const CopyOptions& options, void* stream, const char* note = "");
    static Transfer submit_batch(const Context& context, const std::vector<BatchItem>& items,
                                 const CopyOptions& options, void* stream, const char* note = "");
    // A Transfer that has failed.
    static Transfer refuse(const Context& context, Error error);
    static Transfer follow(std::shared_ptr<transfer::Engine> engine,
                           std::shared_ptr<transfer::Activity> activity) {
        return Transfer(std::move(engine), std::move(activity));
    }
    static Loading load(const Context& context, const Checkpoint& checkpoint, const LoadOptions& options);
    static Result<Checkpoint> open_checkpoint(const Context& context, const std::vector<std::string>& paths,
                                              const CheckpointOptions& options);
    // `content` is a Loaded::Content.
    static Loaded loaded(std::shared_ptr<const checkpoint::LoadedContent> content);
};

}  // namespace sidestep
