#include "peer/publisher.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/random.hpp"
#include "driver/system_error.hpp"

namespace sidestep::peer {
namespace {

using Clock = std::chrono::steady_clock;

// How long another process may hold the folder while it takes a name; it needs microseconds.
constexpr std::chrono::seconds lock_limit{5};
// A process without free descriptors can take nobody in: it looks again this much later.
constexpr std::chrono::milliseconds pause_when_full{20};

// Held while a name is looked at and taken, so that two processes never both replace a dead one's socket.
Result<driver::Fd> lock_folder(const Folder& folder) {
    const std::string path = folder.path() + "/.lock";
    driver::Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    if (!fd) return driver::system_error(errno, "the folder of published memory cannot be locked", path);
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    const auto until = Clock::now() + lock_limit;
    while (::fcntl(fd.get(), F_OFD_SETLK, &range) != 0) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return driver::system_error(errno, "the folder of published memory cannot be locked", path);
        if (Clock::now() > until)
            return Error{ErrorCode::timed_out, "another process holds the folder of published memory", path,
                         "it hangs, or is stopped"};
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return fd;
}

Result<driver::LocalListener> take_name(const Folder& folder, const std::string& name) {
    SIDESTEP_TRY(const driver::Fd lock, lock_folder(folder));
    const std::string path = folder.socket_of(name);
    SIDESTEP_TRY(const driver::SocketPath found, driver::look_at_socket(path));
    if (found == driver::SocketPath::live)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the name {} is taken by a process that is alive", name), path,
                     "withdraw it there, or use another name"};
    if (found == driver::SocketPath::stale && ::unlink(path.c_str()) != 0)
        return driver::system_error(errno, "what a dead process left behind cannot be removed", path);
    return driver::LocalListener::bind(path);
}

std::uint64_t inode_of(const std::string& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

struct Publisher::Entry {
    driver::LocalListener listener;
    std::string path;
    std::uint64_t inode = 0;  // of the socket's file, so that nobody else's is ever removed
    std::string message;
    int descriptor = -1;
    bool withdrawn = false;
    std::vector<driver::LocalSocket> importers;
};

Publisher::Publisher() {
    for (std::size_t at = 0; at < id_.size(); at += sizeof(std::uint64_t)) {
        const std::uint64_t number = driver::random_number();
        std::memcpy(id_.data() + at, &number, std::min(sizeof number, id_.size() - at));
    }
}

Publisher::~Publisher() {
    std::vector<std::uint64_t> left;
    {
        std::lock_guard lock(mutex_);
        for (const auto& [id, entry] : entries_) left.push_back(id);
    }
    for (const std::uint64_t id : left) withdraw(id);
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    if (waker_) waker_->wake();
    if (thread_.joinable()) thread_.join();
}

// With the mutex held.
Result<void> Publisher::start() {
    if (thread_.joinable()) return {};
    SIDESTEP_TRY(driver::Waker waker, driver::Waker::create());
    waker_ = std::make_unique<driver::Waker>(std::move(waker));
    thread_ = std::thread([this] { serve(); });
    return {};
}

Result<std::uint64_t> Publisher::publish(const Folder& folder, const std::string& name, Offer offer,
                                         int descriptor) {
    SIDESTEP_CHECK(check_name(name));
    offer.publisher = id_;
    offer.has_descriptor = descriptor >= 0;
    SIDESTEP_TRY(std::string message, to_message(offer));
    SIDESTEP_TRY(driver::LocalListener listener, take_name(folder, name));
    auto entry = std::unique_ptr<Entry>(
        new Entry{std::move(listener), folder.socket_of(name), 0, std::move(message), descriptor, false, {}});
    entry->inode = inode_of(entry->path);
    std::lock_guard lock(mutex_);
    auto started =
        entries_.size() < most_names
            ? start()
            : Result<void>(Error{ErrorCode::unsupported,
                                 fmt::format("this process publishes {} names already", most_names),
                                 name,
                                 {}});
    if (!started) {
        ::unlink(entry->path.c_str());
        return started.error();
    }
    const std::uint64_t id = next_++;
    entries_.emplace(id, std::move(entry));
    waker_->wake();
    return id;
}

void Publisher::withdraw(std::uint64_t id) noexcept {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end() || found->second->withdrawn) return;
    Entry& entry = *found->second;
    entry.withdrawn = true;
    // The file goes while the listener still lives: nobody takes the name for stale in between.
    if (entry.inode != 0 && inode_of(entry.path) == entry.inode) ::unlink(entry.path.c_str());
    entry.listener.shut_down();
    for (const driver::LocalSocket& importer : entry.importers) importer.shut_down();
    waker_->wake();
}

void Publisher::serve() {
    std::vector<pollfd> polled;
    std::vector<Entry*> owners;
    std::unique_lock lock(mutex_);
    while (!stop_) {
        for (auto it = entries_.begin(); it != entries_.end();) {
            if (it->second->withdrawn) importers_ -= it->second->importers.size();
            it = it->second->withdrawn ? entries_.erase(it) : std::next(it);
        }
        polled.assign(1, {waker_->number(), POLLIN, 0});
        owners.assign(1, nullptr);
        const auto watch = [&](int number, Entry* owner) {
            polled.push_back({number, POLLIN, 0});
            owners.push_back(owner);
        };
        for (const auto& [id, entry] : entries_) {
            watch(entry->listener.number(), entry.get());
            for (const driver::LocalSocket& importer : entry->importers)
                watch(importer.number(), entry.get());
        }
        lock.unlock();
        ::poll(polled.data(), polled.size(), -1);
        lock.lock();
        if (polled[0].revents != 0) waker_->clear();
        // Only this thread takes entries away, so the pointers hold.
        bool full = false;
        for (std::size_t i = 1; i < polled.size(); ++i) {
            if (polled[i].revents == 0 || owners[i]->withdrawn) continue;
            if (polled[i].fd == owners[i]->listener.number())
                full |= !admit(*owners[i]);
            else
                drop(*owners[i], polled[i].fd);
        }
        if (!full) continue;
        lock.unlock();
        std::this_thread::sleep_for(pause_when_full);
        lock.lock();
    }
}

// Answers false where this process has no descriptor left to take anybody in.
bool Publisher::admit(Entry& entry) {
    for (;;) {
        auto accepted = entry.listener.accept();
        if (!accepted) return false;
        if (!*accepted) return true;
        driver::LocalSocket importer = std::move(**accepted);
        const auto peer = importer.peer();
        if (!peer || peer->user != ::geteuid()) {
            base::log(base::LogLevel::warn, "refused another user's process at published memory");
            continue;
        }
        if (importers_ >= most_importers || !importer.send(entry.message, entry.descriptor)) continue;
        entry.importers.push_back(std::move(importer));
        ++importers_;
    }
}

// An importer that hung up, or that talks, which none should.
void Publisher::drop(Entry& entry, int number) {
    importers_ -= std::erase_if(entry.importers,
                                [number](const auto& importer) { return importer.number() == number; });
}

}  // namespace sidestep::peer
