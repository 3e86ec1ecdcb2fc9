// Reads and writes in flight, whatever carries them out.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include <sidestep/units.hpp>

namespace sidestep::driver {

// One pread or pwrite.
struct FileRequest {
    bool write = false;
    // The bytes may be copied from or to the page cache by a thread of the kernel, beside others, rather
    // than at once by the caller.
    bool in_background = false;
    int fd = -1;
    void* address = nullptr;
    Bytes size = 0;         // at most 1 GiB
    Bytes offset = 0;       // in the file
    std::uint64_t tag = 0;  // comes back in the completion
    // What keep_memory() gave for a range that `address` and `size` lie in; below 0: nothing.
    int kept_memory = -1;
    // Of a write: where a TargetMap has the range. Threads copy there instead; EFAULT where its pages are not
    // to be had.
    void* mapped = nullptr;
};

struct FileCompletion {
    std::uint64_t tag = 0;
    std::int64_t result = 0;  // bytes moved, which may be fewer than asked for, or -errno
};

// An engine decides nothing: short transfers, EINTR and end of file are passed on as they come. Used by
// one thread at a time. The destructor waits until nothing is in flight; where something may hang, end() comes first.
class FileIoEngine {
public:
    // How long a request may take once the engine is to end.
    static constexpr std::chrono::seconds end_limit{1};

    virtual ~FileIoEngine() = default;

    // Drops what nobody has begun, and waits for the rest until end_limit after the last request was begun. False
    // where something hangs then: the engine is kept (base::keep) with all that its requests name. To be called last.
    virtual bool end() { return true; }

    virtual std::string_view name() const = 0;
    // How many requests may be outstanding (submitted and not yet reaped).
    virtual unsigned depth() const = 0;
    // Takes a request; never blocks. A failure to submit arrives as the request's completion.
    virtual void submit(const FileRequest& request) = 0;
    // Hands the submitted requests to the threads or the kernel that carry them out.
    virtual void flush() = 0;
    // A request that nobody has begun ends with -ECANCELED; of one that many share what is left is left out. Others go on.
    virtual void withdraw(std::uint64_t) {}
    // So many of its requests hang: it carries out as many others beside them as if they were not there.
    virtual void make_up_for(unsigned) {}
    // Memory that many requests will use, made ready once instead of for each of them. Below 0 where that
    // cannot be had: the requests go without. The memory stays valid until drop_memory(), which is called
    // when no request uses it any more.
    virtual int keep_memory(void*, Bytes) { return -1; }
    virtual void drop_memory(int) {}
    // Whether threads of the engine's own make the call of set_callback() after each request that has ended. Of others
    // reap() tells alone.
    virtual bool calls_back() const { return false; }
    // To be called before the first request. end() waits for calls as for requests; none is made after it.
    virtual void set_callback(std::function<void()>) {}
    // Appends what has ended since the last call. Never blocks.
    virtual void reap(std::vector<FileCompletion>& ended) = 0;
    // Above 0: the errno for which the engine takes no request any more, for good. Those that nobody has begun end with
    // it, the others as ever. Only of engines that do not call back.
    virtual int broken() const { return 0; }
};

}  // namespace sidestep::driver
