#include "peer/publisher.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/try.hpp"
#include "driver/random.hpp"

namespace sidestep::peer {
namespace {

// A process without free descriptors can take nobody in: it looks again this much later.
constexpr std::chrono::milliseconds pause_when_full{20};

Result<driver::LocalListener> take_name(const Folder& folder, const std::string& name) {
    SIDESTEP_TRY(auto listener, folder.take(name));
    if (listener) return std::move(*listener);
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the name {} is taken by a process that is alive", name), folder.socket_of(name),
                 "withdraw it there, or use another name"};
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
    if (forked()) {
        if (thread_.joinable()) thread_.detach();
        return;
    }
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
bool Publisher::forked() const noexcept {
    const int process = process_.load();
    return process != 0 && process != ::getpid();
}

Result<void> Publisher::start() {
    if (thread_.joinable()) return {};
    SIDESTEP_TRY(driver::Waker waker, driver::Waker::create());
    waker_ = std::make_unique<driver::Waker>(std::move(waker));
    SIDESTEP_TRY(thread_, base::start_thread([this] { serve(); }, "published memory"));
    process_.store(::getpid());
    return {};
}

Result<std::uint64_t> Publisher::publish(const Folder& folder, const std::string& name, MemoryOffer offer,
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
    auto started = entries_.size() < max_names
                       ? start()
                       : Result<void>(Error{ErrorCode::unsupported,
                                            fmt::format("this process publishes {} names already", max_names),
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
    if (forked()) return;
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
        if (importers_ >= max_importers || !importer.send(entry.message, entry.descriptor)) continue;
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
