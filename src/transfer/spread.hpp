// Files read once and spread over the memories of several places, or gathered from them: what is to be moved.
// Plain data and one pure question, which src/checkpoint answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sidestep/buffer.hpp>
#include <sidestep/options.hpp>

namespace sidestep::transfer {

// A range of a file.
struct FileRange {
    Bytes begin = 0;
    Bytes end = 0;
};

// A file and the ranges of it that are moved: ascending, apart from one another, none empty.
struct SpreadFile {
    std::string path;
    std::uint64_t identity = 0;  // backend::Description::identity that it must have; 0: any
    std::vector<FileRange> ranges;
    std::uint64_t version = 0;  // backend::Description::version that it must have; 0: any
    std::string node = {};      // the machine that has the file; empty: this one

    Buffer buffer(Bytes offset = 0, Bytes size = Buffer::whole) const {
        return Buffer::file(path, offset, size).on(node);
    }
    Bytes bytes() const {
        Bytes sum = 0;
        for (const FileRange& range : ranges) sum += range.end - range.begin;
        return sum;
    }
};

// Whether bytes there are found by a name and an offset: in files, and in memory that processes of a node published.
inline bool is_opened(const Place& place) {
    return place.is_file() || place.is_shared();
}

// Bytes that lie together both in a file and in a memory.
struct Run {
    static constexpr std::uint32_t every_memory = ~std::uint32_t{0};

    Bytes file_offset = 0;
    Bytes size = 0;
    std::uint32_t memory = 0;  // position in Spread::memories; every_memory: at the same offset of each
    Bytes memory_offset = 0;
};

// Which bytes of a file belong where. Asked by several threads at once.
class Placement {
public:
    virtual ~Placement() = default;

    // Appends the runs of file `file` between two offsets, in the order of the file; together exactly those
    // bytes of the range that the spread moves, each once for each memory it belongs to.
    virtual void runs(std::size_t file, FileRange range, std::vector<Run>& runs) const = 0;

    // The memory that alone gets the byte at an offset of a file; every_memory where several get it, or what
    // lies around it is cut among several.
    virtual std::uint32_t memory_at(std::size_t, Bytes) const { return Run::every_memory; }

    // What lies at a byte of a file, for errors: "tensor model.norm.weight".
    virtual std::string name_of(std::size_t file, Bytes offset) const = 0;
};

// What goes with written files: indexes, manifests, whatever tells of them. One call after the other; all may block.
class SpreadClosing {
public:
    virtual ~SpreadClosing() = default;

    // Before the first byte moves. An error refuses the movement.
    virtual Result<void> begin() = 0;
    // After it: whether files are to be flushed before they get their names, though nobody asked for that.
    virtual bool wants_sync() const { return false; }
    // All files are whole, and none has its name. An error ends the movement with no file named.
    virtual Result<void> before_names() = 0;
    // After before_names(): the first file did not get its name.
    virtual Result<void> without_names() = 0;
    // The first did, another one did not.
    virtual void give_up() = 0;
    // All have their names. Answers with notes.
    virtual Result<std::vector<std::string>> after_names() = 0;
};

enum class SpreadDirection { to_memory, to_file };

struct Spread {
    SpreadDirection direction = SpreadDirection::to_memory;
    std::vector<SpreadFile> files;  // to_file: whole files, written under other names until all are whole
    // At gpu and host places. To memory: one a place. To files: one for the header of each file and one for
    // each tensor, so thousands at few places, of nodes too; also what is opened, from its first byte on, each once.
    std::vector<Buffer> memories;
    // Keep memory of other processes among these mapped.
    std::vector<std::shared_ptr<const void>> leases = {};
    std::shared_ptr<const Placement> placement;
    // Bytes that arrive in all memories together, or leave them; 0: counted by asking the placement for all
    // runs.
    Bytes bytes = 0;

    // Looks at bytes of a file while they are in host memory, before they go on; null: nobody does. Called by
    // several threads at once, once for each block of `block` bytes (from the file's first byte on) that lies
    // wholly in one of its ranges, and for the shorter ones at their ends. An error ends the movement.
    using Look = std::function<Result<void>(std::size_t file, Bytes offset, const void* data, Bytes size)>;
    Look look;
    // To files; null: nothing goes with them.
    std::shared_ptr<SpreadClosing> closing;
    static constexpr Bytes block = Bytes{1} << 20;
};

// Processors this process may use, as they were at the first call.
unsigned usable_processors();

}  // namespace sidestep::transfer
