// The files of a spread: opened when their turn comes, checked, closed, and given their names at the end.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/registry.hpp"
#include "base/aside.hpp"
#include "transfer/spread.hpp"

namespace sidestep::transfer {

// One thread at a time. Calls may block.
class SpreadFiles {
public:
    // Files that are read are open at most this many at a time. Those that are written stay open until all
    // have got their names.
    static constexpr std::size_t max_open = 64;

    // `spread` outlives this. Of the options all but access and expected_size count.
    SpreadFiles(const backend::Registry& registry, const Spread& spread,
                const backend::AttachOptions& options);

    // Asks what all files are. Sources have to be there, with the identity asked for and all their ranges;
    // targets have to be possible.
    Result<void> inspect();

    // Who opens files from now on; every byte is to be moved (again).
    void begin(backend::Backend& backend);
    // The file, opened if it is not; null where as many are open as may be, or while one takes long to open.
    Result<backend::Registration*> open(std::size_t file);
    // One is being opened, and nothing waits for it: this object has to stay meanwhile.
    bool opening() const { return opener_.busy(); }
    void wait_for_opening() const { opener_.wait_until_idle(); }
    // Opens none that it has not begun to open.
    void give_up_opening() { opener_.drop(); }
    // That many bytes of a file have been moved.
    void landed(std::size_t file, Bytes bytes);
    // Looks at the sources whose bytes have all been moved: one that changed meanwhile is an error. Closes
    // them.
    Result<bool> close_finished();
    bool all_closed() const { return open_ == 0; }

    // Gives the next target its name; false where all have theirs. Before the first call the files without
    // bytes are made.
    Result<bool> commit_next();
    std::size_t committed() const { return committed_; }

    // How bytes came and went, from now on left as it is.
    void end_count();
    const StorageBytes& storage() const { return storage_; }
    std::vector<std::string> take_notes();

    // Gives up what is open. Nothing may be in flight.
    void clear() { states_.clear(); }

private:
    struct State {
        Bytes size = 0;
        std::uint64_t identity = 0;
        Bytes left = 0;
        std::unique_ptr<backend::Registration> registration;
        std::optional<base::Aside::Number> opening;
        bool late = false;  // it has been waited for
        // What came of that, until it is taken.
        std::optional<Result<std::unique_ptr<backend::Registration>>> opened;
    };

    Result<backend::Description> describe(const Buffer& buffer) const;
    Result<void> inspect_source(std::size_t file);
    Result<void> check_unchanged(std::size_t file) const;
    Result<std::unique_ptr<backend::Registration>> attach(std::size_t file) const;
    void open_ahead(std::size_t file);
    void gather(const State& state);
    void note(std::string text);
    bool reads() const { return spread_.direction == SpreadDirection::to_memory; }

    static constexpr std::size_t max_notes = 16;

    const backend::Registry& registry_;
    const Spread& spread_;
    const backend::AttachOptions options_;
    backend::Backend* backend_ = nullptr;
    std::vector<State> states_;
    std::vector<std::size_t> finished_;
    std::size_t open_ = 0;  // or being opened
    std::size_t committed_ = 0;
    bool counting_ = true;
    StorageBytes storage_;
    std::vector<std::string> notes_;
    base::Aside opener_;  // goes first
};

}  // namespace sidestep::transfer
