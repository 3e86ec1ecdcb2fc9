#include "backends/s3/s3_backend.hpp"

#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/blocking_pieces.hpp"
#include "backend/file_names.hpp"
#include "backend/file_piece.hpp"
#include "backends/s3/store.hpp"
#include "base/kept.hpp"
#include "base/object_store.hpp"
#include "base/try.hpp"

namespace sidestep::backends::s3 {
namespace {

using backend::Capability;
using backend::Support;

// Requests at once, each over a connection of its own.
constexpr std::size_t connections = 32;
// What one request asks for.
constexpr Bytes largest_range = Bytes{8} << 20;
// What the network gives is not known here.
constexpr double usual_gb_per_s = 1;
constexpr double latency_us = 20'000;

// What requests that hang may still use.
struct Work {
    Store store;
    backend::BlockingPieces reads{connections, "s3"};
};

std::uint64_t number_of(const std::string& text) {
    return std::hash<std::string>{}(text) | 1;  // 0: nobody can tell
}

class OpenObject final : public backend::Registration {
public:
    OpenObject(Buffer buffer, Object object, std::shared_ptr<Work> work)
        : Registration(std::move(buffer)), object_(std::move(object)), work_(std::move(work)) {}

    const Object& object() const { return object_; }
    std::vector<std::string> notes() const override {
        auto repeated = work_->store.repeated();
        return repeated ? std::vector{std::move(*repeated)} : std::vector<std::string>();
    }

private:
    const Object object_;
    const std::shared_ptr<Work> work_;
};

class S3Backend final : public backend::Backend, public backend::FileNames {
public:
    ~S3Backend() override {
        work_->store.stop();
        if (!work_->reads.end()) base::keep(std::move(work_));
    }

    std::string_view name() const override { return "s3"; }
    Support probe(const Topology&) override {
        return Support::yes("libcurl is loaded when an object is named");
    }
    std::vector<Capability> capabilities() const override;
    bool reaches_nodes() const override { return true; }
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override;
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override;
    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override;
    Result<std::vector<std::string>> names_in(const Place& folder) override {
        return work_->store.names_in(Name::of(folder.path()));
    }

private:
    std::shared_ptr<Work> work_ = std::make_shared<Work>();
};

std::vector<Capability> S3Backend::capabilities() const {
    Capability read = backend::reads_files(PlaceKind::host, {MemoryKind::pageable, MemoryKind::pinned},
                                           backend::Reach::network, "HTTP ranges");
    read.max_gb_per_s = usual_gb_per_s;
    read.latency_us = latency_us;
    read.reason = fmt::format("up to {} requests at once", connections);
    return {read};
}

Result<std::optional<backend::Description>> S3Backend::describe(const Buffer& buffer) {
    if (!base::is_object(buffer.place())) return std::optional<backend::Description>{};
    const Name name = Name::of(buffer.place().path());
    if (name.key.empty() || name.key.ends_with('/'))
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is a folder, not an object", name.to_string()),
                     name.to_string(),
                     {}};
    SIDESTEP_TRY(const auto object, work_->store.look(name));
    backend::Description description;
    description.place = buffer.place();
    description.memory = MemoryKind::storage;
    description.size = object ? object->size : 0;
    if (object) {
        description.identity = number_of(buffer.place().path());
        description.version = number_of(object->etag);
        return std::optional(description);
    }
    // What has no object of its name may be a folder of others.
    const auto names = work_->store.names_in(name);
    if (names)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is a folder, not an object", name.to_string()),
                     name.to_string(),
                     {}};
    if (names.error().code != ErrorCode::not_found) return names.error();
    return std::optional(description);
}

Result<std::unique_ptr<backend::Registration>> S3Backend::attach(const Buffer& buffer,
                                                                 const backend::AttachOptions& options) {
    using Attached = std::unique_ptr<backend::Registration>;
    if (!base::is_object(buffer.place())) {
        SIDESTEP_CHECK(backend::check_memory(buffer, options.access));
        return Attached(std::make_unique<backend::Registration>(buffer));
    }
    const Name name = Name::of(buffer.place().path());
    if (options.access == backend::Access::write)
        return Error{ErrorCode::unsupported, "objects of a store are read, not written", name.to_string(),
                     "copy to a file here, and send it with the store's own tools"};
    SIDESTEP_TRY(auto object, work_->store.look(name));
    if (!object)
        return Error{ErrorCode::not_found, fmt::format("there is no {}", name.to_string()), name.to_string(),
                     "check the name"};
    if (options.version != 0 && options.version != number_of(object->etag))
        return Error{ErrorCode::mismatch,
                     fmt::format("{} changed: it is not what it was when it was looked at", name.to_string()),
                     name.to_string(), "begin again when nobody writes it"};
    return Attached(std::make_unique<OpenObject>(buffer, std::move(*object), work_));
}

Result<backend::Progress> S3Backend::start(const backend::Piece& piece, backend::Flight& flight) {
    auto* const source = dynamic_cast<OpenObject*>(piece.from);
    if (source == nullptr || piece.stream != nullptr || piece.capability != 0 ||
        !piece.to->buffer().place().is_host())
        return Error{
            ErrorCode::unsupported,
            fmt::format("the s3 backend cannot copy from {} to {}, nor on streams",
                        piece.from->buffer().place().to_string(), piece.to->buffer().place().to_string()),
            "s3 backend",
            {}};
    SIDESTEP_CHECK(backend::check_within(piece));
    char* const to = static_cast<char*>(piece.to->buffer().address()) + piece.to_offset;
    const Bytes from = source->buffer().offset() + piece.from_offset;
    std::vector<backend::BlockingPieces::Call> calls;
    for (Bytes done = 0; done < piece.size; done += largest_range)
        calls.push_back([work = work_.get(), &object = source->object(), from = from + done, to = to + done,
                         size = std::min(largest_range, piece.size - done)] {
            return work->store.read(object, from, to, size);
        });
    return work_->reads.start(std::move(calls), flight);
}

}  // namespace

std::unique_ptr<backend::Backend> create() {
    return std::make_unique<S3Backend>();
}

}  // namespace sidestep::backends::s3
