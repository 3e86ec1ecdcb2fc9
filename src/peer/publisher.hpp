// The publisher's end: names that listen, and one thread that answers whoever connects.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "driver/local_socket.hpp"
#include "peer/folder.hpp"
#include "peer/offer.hpp"

namespace sidestep::peer {

// Any thread may call. The thread starts with the first name, and only ever sends: what an importer says ends
// its connection, so that no importer can hold up another one.
class Publisher {
public:
    Publisher();
    // Withdraws every name; not in a child that was forked, whose sockets are its parent's too.
    ~Publisher();
    Publisher(const Publisher&) = delete;
    Publisher& operator=(const Publisher&) = delete;

    // Offers memory under a name until it is withdrawn; answers a number for withdraw(). The descriptor (-1:
    // none) is only borrowed and stays open until then. The offer's `publisher` and `has_descriptor` are set
    // here. invalid_argument where a process that is alive has the name.
    Result<std::uint64_t> publish(const Folder& folder, const std::string& name, MemoryOffer offer,
                                  int descriptor);

    // From now on nobody finds the name, and every importer sees that its connection has ended.
    void withdraw(std::uint64_t id) noexcept;

private:
    struct Entry;
    static constexpr std::size_t max_names = 4096;
    static constexpr std::size_t max_importers = 4096;  // of all names

    Result<void> start();
    // This is a child of the process that publishes, without its thread.
    bool forked() const noexcept;
    void serve();
    bool admit(Entry& entry);
    void drop(Entry& entry, int number);

    PublisherId id_{};
    std::atomic<int> process_{0};  // whose thread serves; 0: none yet
    std::mutex
        mutex_;  // guards what follows; sockets are closed by the thread alone, which may be polling them
    std::map<std::uint64_t, std::unique_ptr<Entry>> entries_;
    std::uint64_t next_ = 1;
    std::size_t importers_ = 0;
    bool stop_ = false;
    std::unique_ptr<driver::Waker> waker_;  // constant once the thread runs
    std::thread thread_;
};

}  // namespace sidestep::peer
