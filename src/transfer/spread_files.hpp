// The files of a spread: opened when their turn comes, checked, closed, and given their names at the end.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/registry.hpp"
#include "base/blocking_calls.hpp"
#include "transfer/spread.hpp"

namespace sidestep::transfer {

// Fails where a file that was read is not what it was when it was described. Answers whether something else about it changed: its
// owner, mode or links. May block.
Result<bool> check_unchanged(const backend::Registry& registry, const Buffer& file,
                             const backend::Description& then);

// One thread at a time.
class SpreadFiles {
public:
    // Files that are read are open at most this many at a time. Those that are written stay open until all
    // have got their names.
    static constexpr std::size_t max_open = 64;
    static constexpr std::size_t files_ahead = 8;  // whose turn comes next: opened, and closed, together

    using Note = std::function<void(std::string)>;

    // All outlive this. Of the options all but access and expected_size count. `note` keeps what is to be said of files.
    SpreadFiles(const backend::Registry& registry, base::BlockingCalls& calls, const Spread& spread,
                const backend::AttachOptions& options, Note note);

    // Targets are flushed before they get their names. Before begin().
    void sync() { options_.sync_file = true; }
    // Asks what all files are. Sources have to be there, with the identity and version asked for and all their ranges;
    // targets have to be possible. May block.
    Result<void> inspect();

    // Who opens files from now on, each with its own registration; every byte is to be moved (again).
    void begin(std::vector<backend::Backend*> backends);
    // `next`: the files whose turn comes next. Opens the first if it is not open, and others ahead of their turn. False
    // where as many are open as may be, or while one takes long to open.
    Result<bool> open(const std::vector<std::size_t>& next);
    // Of an open file.
    backend::Registration* registration(std::size_t file, const backend::Backend* backend) const;
    // That many bytes of a file have been moved.
    void landed(std::size_t file, Bytes bytes);
    // Looks at the sources whose bytes have all been moved: one that changed meanwhile is an error. Closes
    // them, by `aside`, or, where it is null, here. Targets stay open, and rest. Several at once, and unless `all`, none
    // as long as there are few.
    Result<bool> close_finished(base::BlockingCalls* aside, bool all);
    bool may_close() const { return finished_.size() >= files_ahead; }
    bool all_closed() const { return (open_ == 0 || !reads()) && finished_.empty() && !closing_; }
    // Files are being opened, or closed: this object has to stay meanwhile.
    bool calling() const;

    // Gives the targets their names, one after the other; files without bytes are made before. Gives up where it is told
    // to before the first has its name. May block.
    Result<void> commit(const std::function<bool()>& given_up);
    std::size_t committed() const { return committed_; }

    // How bytes came and went, from now on left as it is.
    void end_count();
    const StorageBytes& storage() const { return storage_; }
    // Of those that are not what they were, though their content is.
    void note_touched() const;

    // Hands over all that is open. Nothing may be in flight.
    std::shared_ptr<void> take_open();

private:
    using Registrations = std::vector<std::unique_ptr<backend::Registration>>;
    struct State {
        backend::Description found;  // of a source
        Bytes left = 0;
        Registrations open;                           // by backend; while it is being opened, the call's
        bool touched = false;                         // a source, but not written to
        std::shared_ptr<base::BlockingCall> opening;  // asked for; others may be opened by the same call
        std::optional<Error> refusal;                 // the call's
    };

    Result<void> inspect_source(std::size_t file);
    Result<void> attach(std::size_t file);
    Result<void> attach(const std::vector<std::size_t>& files);
    void open_ahead(const std::vector<std::size_t>& next);
    Result<void> close(std::vector<std::size_t> files);
    void gather(const State& state);
    bool reads() const { return spread_.direction == SpreadDirection::to_memory; }

    const backend::Registry& registry_;
    base::BlockingCalls& calls_;
    const Spread& spread_;
    backend::AttachOptions options_;
    const Note note_;
    std::vector<backend::Backend*> backends_;
    std::vector<State> states_;
    std::vector<std::size_t> finished_;
    std::size_t open_ = 0;  // or being opened
    std::atomic<bool> opens_quickly_{false};
    std::size_t committed_ = 0;
    bool counting_ = true;
    StorageBytes storage_;
    base::BlockingCall closer_;
    bool closing_ = false;
};

}  // namespace sidestep::transfer
