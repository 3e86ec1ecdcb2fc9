#include "transfer/spread_files.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::transfer {
namespace {

constexpr std::size_t files_ahead = 8;
// What opens sooner is waited for.
constexpr std::chrono::milliseconds usual_opening{10};

Bytes end_of(const SpreadFile& file) {
    return file.ranges.empty() ? 0 : file.ranges.back().end;
}

}  // namespace

SpreadFiles::SpreadFiles(const backend::Registry& registry, const Spread& spread,
                         const backend::AttachOptions& options)
    : registry_(registry), spread_(spread), options_(options), states_(spread.files.size()) {}

Result<backend::Description> SpreadFiles::describe(const Buffer& buffer) const {
    for (backend::Backend* backend : registry_.usable()) {
        SIDESTEP_TRY(const auto found, backend->describe(buffer));
        if (found) return *found;
    }
    return Error{ErrorCode::unsupported, "no backend reads files here", buffer.place().to_string(), {}};
}

Result<void> SpreadFiles::inspect() {
    for (std::size_t file = 0; file < states_.size(); ++file) {
        Bytes before = 0;
        for (const FileRange& range : spread_.files[file].ranges) {
            if (range.begin >= range.end || range.begin < before)
                return Error{ErrorCode::internal,
                             fmt::format("bytes {} to {} of a file are not a range that can be moved",
                                         range.begin, range.end),
                             spread_.files[file].path,
                             {}};
            before = range.end;
        }
        if (reads()) {
            SIDESTEP_CHECK(inspect_source(file));
        } else {
            SIDESTEP_CHECK(describe(Buffer::file(spread_.files[file].path)));
        }
    }
    return {};
}

Result<void> SpreadFiles::inspect_source(std::size_t file) {
    const SpreadFile& asked = spread_.files[file];
    State& state = states_[file];
    SIDESTEP_TRY(const backend::Description found, describe(Buffer::file(asked.path, 0, 0)));
    if (asked.identity != 0 && found.identity != asked.identity)
        return Error{ErrorCode::io_error,
                     fmt::format("{} is another file than the one that was looked at first", asked.path),
                     asked.path, "open it again"};
    if (found.size < end_of(asked)) {
        // The first byte that is missing, and what it belongs to.
        const auto range = std::find_if(asked.ranges.begin(), asked.ranges.end(),
                                        [&](const FileRange& each) { return each.end > found.size; });
        const Bytes missing = std::max(range->begin, found.size);
        return Error{
            ErrorCode::end_of_file,
            fmt::format("{} has {} bytes and needs {}: {} is cut off at byte {}", asked.path, found.size,
                        end_of(asked), spread_.placement->name_of(file, missing), missing),
            asked.path, "the file was not written or copied whole"};
    }
    state.size = found.size;
    state.identity = found.identity;
    return {};
}

void SpreadFiles::begin(backend::Backend& backend) {
    backend_ = &backend;
    for (std::size_t file = 0; file < states_.size(); ++file)
        states_[file].left = spread_.files[file].bytes();
}

Result<std::unique_ptr<backend::Registration>> SpreadFiles::attach(std::size_t file) const {
    const std::string& path = spread_.files[file].path;
    backend::AttachOptions options = options_;
    options.access = reads() ? backend::Access::read : backend::Access::write;
    options.expected_size = reads() ? 0 : end_of(spread_.files[file]);
    options.identity = states_[file].identity;
    return backend_->attach(reads() ? Buffer::file(path, 0, states_[file].size) : Buffer::file(path),
                            options);
}

// Elsewhere, since a file system may take any time for it: limits are kept meanwhile, and nobody else waits. Together with
// those that come next, so that many small files are not waited for one by one.
void SpreadFiles::open_ahead(std::size_t file) {
    const std::size_t end = std::min(file + files_ahead, states_.size());
    for (; file < end && (!reads() || open_ < max_open); ++file) {
        State& state = states_[file];
        if (state.registration || state.opening || state.left == 0) continue;
        state.opening = opener_.add([this, &state, file] { state.opened.emplace(attach(file)); });
        ++open_;
    }
}

Result<backend::Registration*> SpreadFiles::open(std::size_t file) {
    State& state = states_[file];
    if (state.registration) return state.registration.get();
    open_ahead(file);
    const auto patience = state.late ? std::chrono::milliseconds(0) : usual_opening;
    if (!state.opening || !opener_.wait(*state.opening, patience)) {
        state.late = state.opening.has_value();
        return static_cast<backend::Registration*>(nullptr);
    }
    auto opened = std::move(*state.opened);
    state.opened.reset();
    state.opening.reset();
    state.late = false;
    SIDESTEP_TRY(state.registration, std::move(opened));
    return state.registration.get();
}

void SpreadFiles::landed(std::size_t file, Bytes bytes) {
    states_[file].left -= bytes;
    if (states_[file].left == 0) finished_.push_back(file);
}

Result<void> SpreadFiles::check_unchanged(std::size_t file) const {
    const State& state = states_[file];
    const std::string& path = spread_.files[file].path;
    SIDESTEP_TRY(const backend::Description now, describe(Buffer::file(path, 0, 0)));
    if (now.size == state.size && now.identity == state.identity) return {};
    return Error{ErrorCode::io_error,
                 now.size != state.size
                     ? fmt::format("{} changed while it was read: it had {} bytes and has {}", path,
                                   state.size, now.size)
                     : fmt::format("{} changed while it was read: another file has its name", path),
                 path, "load it again when nobody writes it"};
}

Result<bool> SpreadFiles::close_finished() {
    if (finished_.empty()) return false;
    for (const std::size_t file : std::exchange(finished_, {})) {
        if (!reads()) continue;
        gather(states_[file]);
        if (states_[file].registration) --open_;
        states_[file].registration.reset();
        SIDESTEP_CHECK(check_unchanged(file));
    }
    return true;
}

void SpreadFiles::gather(const State& state) {
    if (!state.registration) return;
    for (std::string& text : state.registration->notes()) note(std::move(text));
    if (counting_) storage_ += state.registration->storage_bytes();
}

void SpreadFiles::end_count() {
    if (!reads())
        for (const State& state : states_) gather(state);
    counting_ = false;
}

Result<bool> SpreadFiles::commit_next() {
    if (committed_ == 0)
        for (std::size_t file = 0; file < states_.size(); ++file)
            if (!states_[file].registration) {
                SIDESTEP_TRY(states_[file].registration, attach(file));
            }
    if (committed_ == states_.size()) return false;
    if (auto made = states_[committed_].registration->commit(); !made) {
        Error error = made.error();
        error.message = fmt::format("{} of {} files have their names and the rest is left out: {}",
                                    committed_, states_.size(), error.message);
        return error;
    }
    gather(states_[committed_]);
    states_[committed_].registration.reset();
    ++committed_;
    return true;
}

std::vector<std::string> SpreadFiles::take_notes() {
    return std::exchange(notes_, {});
}

void SpreadFiles::note(std::string text) {
    if (notes_.size() > max_notes || std::find(notes_.begin(), notes_.end(), text) != notes_.end()) return;
    if (notes_.size() == max_notes) text = "other files have notes too, which are left out";
    notes_.push_back(std::move(text));
}

}  // namespace sidestep::transfer
