#include "transfer/spread_files.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/file_version.hpp"
#include "base/try.hpp"
#include "transfer/ends.hpp"
#include "transfer/movement.hpp"

namespace sidestep::transfer {
namespace {

// To hand a call over to another thread takes about as long.
constexpr std::chrono::microseconds quick_opening{100};

Bytes end_of(const SpreadFile& file) {
    return file.ranges.empty() ? 0 : file.ranges.back().end;
}

}  // namespace

SpreadFiles::SpreadFiles(const backend::Registry& registry, base::BlockingCalls& calls, const Spread& spread,
                         const backend::AttachOptions& options, Note note)
    : registry_(registry),
      calls_(calls),
      spread_(spread),
      options_(options),
      note_(std::move(note)),
      states_(spread.files.size()) {}

Result<void> SpreadFiles::inspect() {
    for (std::size_t file = 0; file < states_.size(); ++file) {
        Bytes before = 0;
        for (const FileRange& range : spread_.files[file].ranges) {
            if (range.begin >= range.end || range.begin < before)
                return Error{ErrorCode::internal,
                             fmt::format("bytes {} to {} of a file are not a range that can be moved",
                                         range.begin, range.end),
                             spread_.files[file].path};
            before = range.end;
        }
        if (reads()) {
            SIDESTEP_CHECK(inspect_source(file));
        } else {
            SIDESTEP_CHECK(describe(registry_, Buffer::file(spread_.files[file].path)));
        }
    }
    return {};
}

Result<void> SpreadFiles::inspect_source(std::size_t file) {
    const SpreadFile& asked = spread_.files[file];
    backend::Description& found = states_[file].found;
    SIDESTEP_TRY(found, describe(registry_, asked.buffer(0, 0)));
    if (asked.identity != 0 && found.identity != asked.identity)
        return Error{ErrorCode::io_error,
                     fmt::format("{} is another file than the one that was looked at first", asked.path),
                     asked.path, "open it again"};
    if (found.size < end_of(asked)) {
        // The first byte that is missing, and what it belongs to.
        const auto range =
            std::ranges::find_if(asked.ranges, [&](const FileRange& each) { return each.end > found.size; });
        const Bytes missing = std::max(range->begin, found.size);
        return Error{
            ErrorCode::end_of_file,
            fmt::format("{} has {} bytes and needs {}: {} is cut off at byte {}", asked.path, found.size,
                        end_of(asked), spread_.placement->name_of(file, missing), missing),
            asked.path, "the file was not written or copied whole"};
    }
    if (asked.version != 0 && !base::same_content(found.version, asked.version))
        return Error{ErrorCode::mismatch,
                     fmt::format("{} has changed: it is not as it was when it was opened", asked.path),
                     asked.path, "open the checkpoint again when nobody writes to it"};
    states_[file].touched = asked.version != 0 && found.version != asked.version;
    return {};
}

void SpreadFiles::begin(std::vector<backend::Backend*> backends) {
    backends_ = std::move(backends);
    for (std::size_t file = 0; file < states_.size(); ++file)
        states_[file].left = spread_.files[file].bytes();
}

Result<void> SpreadFiles::attach(std::size_t file) {
    State& state = states_[file];
    const SpreadFile& asked = spread_.files[file];
    backend::AttachOptions options = options_;
    options.access = reads() ? backend::Access::read : backend::Access::write;
    options.expected_size = reads() ? asked.bytes() : end_of(asked);
    options.identity = state.found.identity;
    options.version = state.found.version;
    Registrations made;
    for (backend::Backend* backend : backends_) {
        SIDESTEP_TRY(auto one,
                     backend->attach(reads() ? asked.buffer(0, state.found.size) : asked.buffer(), options));
        made.push_back(std::move(one));
    }
    state.open = std::move(made);
    return {};
}

backend::Registration* SpreadFiles::registration(std::size_t file, const backend::Backend* backend) const {
    const auto found = std::ranges::find(backends_, backend);
    return states_[file].open[static_cast<std::size_t>(found - backends_.begin())].get();
}

// Elsewhere, since a file system may take any time for it: limits are kept meanwhile, and nobody else waits. Together with
// those that come next, so that many small files are not waited for one by one. Where files open in less time than a
// call is handed over in, several are opened by one call.
void SpreadFiles::open_ahead(const std::vector<std::size_t>& next) {
    const bool wanted = !states_[next.front()].opening && states_[next.front()].open.empty();
    const bool quick = opens_quickly_.load(std::memory_order_relaxed);
    std::vector<std::size_t> some;
    for (const std::size_t each : next) {
        const State& state = states_[each];
        if (state.opening || !state.open.empty()) continue;
        if (reads() && open_ + some.size() >= max_open) break;
        some.push_back(each);
    }
    if (quick && !wanted && some.size() < files_ahead / 2) return;
    open_ += some.size();
    for (auto at = some.begin(); at != some.end();) {
        const std::vector<std::size_t> files(at, quick ? some.end() : at + 1);
        at += static_cast<std::ptrdiff_t>(files.size());
        const auto opening = std::make_shared<base::BlockingCall>();
        for (const std::size_t each : files) states_[each].opening = opening;
        opening->make(
            &calls_, [this, files] { return attach(files); },
            files.front() == next.front() ? wait_for_file : std::chrono::milliseconds(0));
    }
}

Result<void> SpreadFiles::attach(const std::vector<std::size_t>& files) {
    const auto begun = std::chrono::steady_clock::now();
    for (const std::size_t file : files)
        if (auto attached = attach(file); !attached) states_[file].refusal = attached.error();
    const auto taken = std::chrono::steady_clock::now() - begun;
    opens_quickly_.store(taken < quick_opening * files.size(), std::memory_order_relaxed);
    return {};
}

Result<bool> SpreadFiles::open(const std::vector<std::size_t>& next) {
    State& state = states_[next.front()];
    open_ahead(next);
    if (!state.opening) return !state.open.empty();
    if (state.opening->running()) return false;
    state.opening.reset();
    if (state.refusal) return *state.refusal;
    return true;
}

bool SpreadFiles::calling() const {
    return closer_.running() || std::ranges::any_of(states_, [](const State& state) {
               return state.opening && state.opening->running();
           });
}

void SpreadFiles::landed(std::size_t file, Bytes bytes) {
    states_[file].left -= bytes;
    if (states_[file].left == 0) finished_.push_back(file);
}

Result<bool> check_unchanged(const backend::Registry& registry, const Buffer& file,
                             const backend::Description& then) {
    const std::string& path = file.place().path();
    SIDESTEP_TRY(const backend::Description now, describe(registry, file));
    std::string how;
    ErrorCode code = ErrorCode::io_error;
    if (now.size != then.size)
        how = fmt::format("it had {} bytes and has {}", then.size, now.size);
    else if (now.identity != then.identity)
        how = "another file has its name";
    else if (!base::same_content(now.version, then.version))
        how = "somebody wrote to it", code = ErrorCode::mismatch;
    if (how.empty()) return now.version != then.version;
    return Error{code, fmt::format("{} changed while it was read: {}", path, how), path,
                 "begin again when nobody writes it"};
}

Result<bool> SpreadFiles::close_finished(base::BlockingCalls* aside, bool all) {
    if (!closing_ && (may_close() || (all && !finished_.empty()))) {
        for (const std::size_t file : finished_) {
            if (!reads()) break;
            gather(states_[file]);
            --open_;
        }
        closing_ = true;
        closer_.make(
            aside, [this, files = std::exchange(finished_, {})] { return close(files); }, wait_for_file);
    }
    const auto closed = closing_ ? closer_.take() : std::nullopt;
    if (!closed) return false;
    closing_ = false;
    SIDESTEP_CHECK(*closed);
    return true;
}

Result<void> SpreadFiles::close(std::vector<std::size_t> files) {
    for (const std::size_t file : files) {
        if (!reads()) {
            for (const auto& registration : states_[file].open) registration->rest();
            continue;
        }
        states_[file].open.clear();
        SIDESTEP_TRY(const bool touched,
                     check_unchanged(registry_, spread_.files[file].buffer(0, 0), states_[file].found));
        states_[file].touched |= touched;
    }
    return {};
}

void SpreadFiles::gather(const State& state) {
    for (const auto& registration : state.open) {
        for (std::string& text : registration->notes()) note_(std::move(text));
        if (counting_) storage_ += registration->storage_bytes();
    }
}

void SpreadFiles::end_count() {
    if (!reads())
        for (const State& state : states_) gather(state);
    counting_ = false;
}

Result<void> SpreadFiles::commit(const std::function<bool()>& given_up) {
    for (std::size_t file = 0; file < states_.size(); ++file)
        if (states_[file].open.empty()) SIDESTEP_CHECK(attach(file));
    for (; committed_ < states_.size(); ++committed_) {
        if (committed_ == 0 && given_up())
            return Error{ErrorCode::cancelled, "nobody waits for the files any more", "spread"};
        State& state = states_[committed_];
        if (auto made = state.open.front()->commit(); !made) {
            Error error = made.error();
            error.message = fmt::format("{} of {} files have their names and the rest is left out: {}",
                                        committed_, states_.size(), error.message);
            return error;
        }
        gather(state);
        state.open.clear();
    }
    return {};
}

std::shared_ptr<void> SpreadFiles::take_open() {
    auto open = std::make_shared<Registrations>();
    for (State& state : states_)
        for (auto& registration : std::exchange(state.open, {}))
            open->emplace_back(std::move(registration))->unmap();
    return open;
}

void SpreadFiles::note_touched() const {
    for (std::size_t file = 0; file < states_.size(); ++file)
        if (states_[file].touched)
            note_(fmt::format(
                "the mode, the owner or a link of {} changed meanwhile; its size and time of writing did not",
                spread_.files[file].path));
}

}  // namespace sidestep::transfer
