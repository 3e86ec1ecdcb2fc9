// The publisher's end: names that lead to one socket, and one thread that takes importers in and answers them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/owner_process.hpp"
#include "driver/local_socket.hpp"
#include "peer/folder.hpp"
#include "peer/offer.hpp"

namespace sidestep::peer {

// Any thread may call. The thread starts with the first name, and waits for no importer: whoever does not take what is
// sent to it, or says anything but questions, is hung up on.
class Publisher {
public:
    // Importers at a time, of all names; each has one connection.
    static constexpr std::size_t most_importers = 4096;
    // Descriptors below the limit (ulimit -n) that are the program's: enough for what it opens now and then, files,
    // libraries and pipes. Importers are taken in by what is left over.
    static constexpr std::size_t reserved_descriptors = 64;

    explicit Publisher(std::size_t max_importers = most_importers);
    // Withdraws every name; not in a child that was forked, whose sockets are its parent's too.
    ~Publisher();
    Publisher(const Publisher&) = delete;
    Publisher& operator=(const Publisher&) = delete;

    // Offers memory under a name until it is withdrawn; answers a number for withdraw(). The descriptor (-1:
    // none) is only borrowed and stays open until then. The offer's `publisher`, `publication` and `has_descriptor`
    // are set here. invalid_argument where a process that is alive has the name. All names of a publisher lie on one
    // file system.
    Result<std::uint64_t> publish(const Folder& folder, const std::string& name, MemoryOffer offer,
                                  int descriptor);

    // From now on the name is not found any more, and every importer sees that it has ended.
    void withdraw(std::uint64_t id) noexcept;

private:
    struct Entry {
        std::uint64_t id = 0;
        std::string path;
        std::string offer;
        int descriptor = -1;
    };
    struct Caller {
        driver::LocalSocket socket;
        std::set<std::uint64_t> told = {};  // publications whose end it will hear of
        bool gone = false;
    };
    static constexpr std::size_t max_names = 4096;

    Result<void> start();
    Result<void> lead_here(const std::string& path);
    void remove(const Entry& entry) const noexcept;
    void serve();
    bool admit();
    std::string lack() const;
    bool attend(Caller& caller) const;

    const std::size_t max_importers_;
    const base::OwnerProcess owner_;
    PublisherId id_{};
    std::mutex
        mutex_;  // guards what follows; importers are closed by the thread alone, which may be polling them
    std::map<std::string, Entry, std::less<>> names_;
    std::uint64_t next_ = 1;
    std::optional<driver::LocalListener> listener_;
    std::string socket_;  // file_id() of the listener's: only paths that lead there are ever removed
    std::vector<Caller> callers_;
    driver::Fd spare_;  // closed where there is no other descriptor by which to say so
    bool stop_ = false;
    std::unique_ptr<driver::Waker> waker_;  // constant once the thread runs
    std::thread thread_;
};

}  // namespace sidestep::peer
