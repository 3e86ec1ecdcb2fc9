// Checkpoint::open of files of a node: their headers come by copies.
#include <sidestep/checkpoint.hpp>

#include <optional>

#include <fmt/format.h>

#include "backend/file_names.hpp"
#include "base/object_store.hpp"
#include "base/try.hpp"
#include "checkpoint/files_reader.hpp"
#include "context/impl.hpp"
#include "transfer/ends.hpp"

namespace sidestep {
namespace {

using Impl = ContextAccess::Impl;

// A path that is a file of a node; nothing for all others.
std::optional<Place> far_place(const std::string& path) {
    const auto place = Place::parse(path);
    if (!place || !place->is_file() || place->node().empty()) return std::nullopt;
    return *place;
}

// In a folder of a node, or of a store.
Result<std::vector<std::string>> names_in(const Impl& impl, const Place& folder) {
    if (!base::is_object(folder)) return impl.remote->names_in(folder.node(), folder.path());
    for (backend::Backend* backend : impl.registry.usable())
        if (auto* const lists = dynamic_cast<backend::FileNames*>(backend)) return lists->names_in(folder);
    return Error{ErrorCode::unsupported, "no backend here reaches objects", folder.to_string(), {}};
}

Result<std::optional<driver::FileFacts>> facts_of(const Impl& impl, const Place& place) {
    const auto found = transfer::describe(impl.registry, Buffer::file(place.path()).on(place.node()));
    driver::FileFacts facts;
    if (!found) {
        if (found.error().code != ErrorCode::invalid_argument) return found.error();
        // A folder is no place that bytes could be copied to or from; the node tells the names in it all the same.
        const auto names = names_in(impl, place);
        const bool folder = place.path().ends_with('/') || base::is_object(place);
        if (!names) return folder ? names.error() : found.error();
        facts.type = driver::FileType::directory;
        return std::optional(facts);
    }
    // So a node says that a file is not there which might be written.
    if (found->identity == 0 && found->size == 0) return std::optional<driver::FileFacts>();
    facts.size = found->size;
    facts.identity = found->identity;
    facts.version = found->version;
    return std::optional(facts);
}

// The call may outlast its caller's wait, so it keeps what it uses.
checkpoint::FarFilesPtr files_of(std::shared_ptr<Impl> impl, const std::string& node) {
    auto far = std::make_shared<checkpoint::FarFiles>();
    far->node = node;
    far->facts = [impl, node](const std::string& path) {
        return facts_of(*impl, Place::file(path).on(node));
    };
    far->read = [impl, node](const std::string& path, Bytes offset, void* to, Bytes size) -> Result<void> {
        std::shared_ptr<transfer::Engine> engine(impl, impl->engine.get());
        auto job =
            engine->submit(Buffer::file(path, offset, size).on(node), Buffer::host(to, size), {}, nullptr);
        SIDESTEP_CHECK(ContextAccess::follow(std::move(engine), std::move(job)).wait());
        return {};
    };
    far->names = [impl, node](const std::string& folder) {
        return names_in(*impl, Place::file(folder).on(node));
    };
    return far;
}

Error mixed(const std::string& first, const std::string& other) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("the files of a checkpoint lie on one machine, and {} and {} do not", first, other),
        "checkpoint", "copy them together first"};
}

// The machine is not in what the reader of a header says.
Error on_node(Error error, const std::string& node) {
    if (node == base::object_store) {
        if (!error.where.starts_with("s3://") && error.where.find('/') != std::string::npos)
            error.where = Place::file(error.where).on(node).to_string();
        return error;
    }
    if (error.where.starts_with('/')) error.where = fmt::format("{}/file:{}", node, error.where);
    return error;
}

}  // namespace

Result<Checkpoint> ContextAccess::open_checkpoint(const Context& context,
                                                  const std::vector<std::string>& paths,
                                                  const CheckpointOptions& options) {
    const std::shared_ptr<Impl>& impl = shared(context);
    SIDESTEP_CHECK(impl->engine->check_process());
    const auto first = paths.empty() ? std::nullopt : far_place(paths.front());
    std::vector<std::string> there;
    for (const std::string& path : paths) {
        const auto place = far_place(path);
        if (place.has_value() != first.has_value() || (first && place->node() != first->node()))
            return mixed(paths.front(), path);
        if (!place) continue;
        there.push_back(place->path());
    }
    if (!first) return Checkpoint::open(paths, options);
    const std::string& node = first->node();
    auto opened = Checkpoint::open_at(there, options, files_of(impl, node));
    if (!opened) return on_node(opened.error(), node);
    return opened;
}

Result<Checkpoint> Checkpoint::open(const Context& context, const std::vector<std::string>& paths,
                                    const CheckpointOptions& options) {
    return ContextAccess::open_checkpoint(context, paths, options);
}

}  // namespace sidestep
