#include "peer/publisher.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/try.hpp"
#include "driver/random.hpp"
#include "driver/system_error.hpp"

namespace sidestep::peer {
namespace {

// A process without free descriptors cannot accept connections: it tries again this much later.
constexpr std::chrono::milliseconds pause_when_full{20};
// Those who wait to be taken in, of each look: importers that were taken in before have their turn too.
constexpr int most_taken_at_once = 64;

// Whether this process may open so many files more. From the top, where most numbers are free.
bool can_open(std::size_t files) {
    for (long number = ::sysconf(_SC_OPEN_MAX); number-- > 0 && files > 0;)
        if (::fcntl(static_cast<int>(number), F_GETFD) < 0) --files;
    return files == 0;
}

driver::Fd make_spare() {
    return driver::Fd(::open("/", O_PATH | O_CLOEXEC));
}

}  // namespace

Publisher::Publisher(std::size_t max_importers) : max_importers_(max_importers) {
    for (std::size_t at = 0; at < id_.size(); at += sizeof(std::uint64_t)) {
        const std::uint64_t number = driver::random_number();
        std::memcpy(id_.data() + at, &number, std::min(sizeof number, id_.size() - at));
    }
}

Publisher::~Publisher() {
    if (owner_.forked()) {
        if (thread_.joinable()) thread_.detach();
        return;
    }
    {
        std::lock_guard lock(mutex_);
        for (const auto& [name, entry] : names_) remove(entry);
        if (listener_) listener_->shut_down();
        for (const Caller& caller : callers_) caller.socket.shut_down();
        stop_ = true;
    }
    if (waker_) waker_->wake();
    if (thread_.joinable()) thread_.join();
}

// With the mutex held, as all that follows.
Result<void> Publisher::start() {
    if (thread_.joinable()) return {};
    SIDESTEP_TRY(driver::Waker waker, driver::Waker::create());
    waker_ = std::make_unique<driver::Waker>(std::move(waker));
    if (!spare_) spare_ = make_spare();
    SIDESTEP_TRY(thread_, base::start_thread([this] { serve(); }, "published memory"));
    return {};
}

Result<std::uint64_t> Publisher::publish(const Folder& folder, const std::string& name, MemoryOffer offer,
                                         int descriptor) {
    SIDESTEP_CHECK(check_name(name));
    SIDESTEP_TRY(const auto held, folder.hold());  // which may take long, and is no reason to answer nobody
    std::lock_guard lock(mutex_);
    offer.publisher = id_;
    offer.publication = next_;
    offer.has_descriptor = descriptor >= 0;
    SIDESTEP_TRY(std::string message, to_message(offer));
    if (names_.size() >= max_names)
        return Error{ErrorCode::unsupported,
                     fmt::format("this process publishes {} names already", max_names),
                     name,
                     {}};
    SIDESTEP_TRY(const bool is_free, folder.make_free(name));
    const std::string path = folder.socket_of(name);
    if (!is_free || names_.contains(name))
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the name {} is taken by a process that is alive", name), path,
                     "withdraw it there, or use another name"};
    SIDESTEP_CHECK(start());
    SIDESTEP_CHECK(lead_here(path));
    names_.emplace(name, Entry{next_, path, std::move(message), descriptor});
    return next_++;
}

// The first name is that of a socket, and all others are links to it: one descriptor serves them all.
Result<void> Publisher::lead_here(const std::string& path) {
    for (const auto& [name, entry] : names_) {
        if (file_id(entry.path) != socket_) continue;  // somebody has removed it
        if (::link(entry.path.c_str(), path.c_str()) == 0) return {};
        return driver::system_error(
            errno, "a socket cannot be given one more name", path,
            "SIDESTEP_PEER_FOLDER may name a folder whose file system has hard links");
    }
    SIDESTEP_TRY(listener_, driver::LocalListener::bind(path));
    socket_ = file_id(path);
    waker_->wake();
    return {};
}

void Publisher::withdraw(std::uint64_t id) noexcept {
    if (owner_.forked()) return;
    std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(names_.begin(), names_.end(), [&](const auto& name) { return name.second.id == id; });
    if (found == names_.end()) return;
    remove(found->second);
    names_.erase(found);
    const std::string end = to_message({Word::withdrawn, id, {}});
    for (Caller& caller : callers_)
        // One that has not taken so many messages hears of its connection's end instead.
        if (caller.told.erase(id) > 0 && !caller.socket.send(end)) caller.socket.shut_down();
}

void Publisher::remove(const Entry& entry) const noexcept {
    if (file_id(entry.path) == socket_) ::unlink(entry.path.c_str());
}

void Publisher::serve() {
    std::vector<pollfd> polled;
    std::unique_lock lock(mutex_);
    while (!stop_) {
        polled.assign(1, {waker_->number(), POLLIN, 0});
        polled.push_back({listener_ ? listener_->number() : -1, POLLIN, 0});
        for (const Caller& caller : callers_) polled.push_back({caller.socket.number(), POLLIN, 0});
        lock.unlock();
        ::poll(polled.data(), polled.size(), -1);
        lock.lock();
        if (polled[0].revents != 0) waker_->clear();
        // Only this thread takes importers in and away: they are those that were polled.
        for (std::size_t i = 0; i < callers_.size(); ++i)
            callers_[i].gone = polled[2 + i].revents != 0 && !attend(callers_[i]);
        std::erase_if(callers_, [](const Caller& caller) { return caller.gone; });
        if (polled[1].revents == 0 || admit()) continue;
        lock.unlock();
        std::this_thread::sleep_for(pause_when_full);
        lock.lock();
    }
}

// Answers false where this process has no descriptor left to take anybody in, or to say that it does not.
bool Publisher::admit() {
    for (int taken = 0; taken < most_taken_at_once; ++taken) {
        // Where the one before has cost it, its place is free; any other may be the program's last.
        if (!spare_ && (taken > 0 || can_open(reserved_descriptors))) spare_ = make_spare();
        auto accepted = listener_->accept();
        if (!accepted) {
            spare_ = driver::Fd();
            accepted = listener_->accept();
        }
        if (!accepted) return false;
        if (!*accepted) return true;
        Caller caller{std::move(**accepted)};
        const auto peer = caller.socket.peer();
        if (!peer || peer->user != ::geteuid()) {
            base::log(base::LogLevel::warn, "refused another user's process at published memory");
            continue;
        }
        const std::string why = lack();
        const Message first{why.empty() ? Word::welcome : Word::refused, 0, why.empty() ? socket_ : why};
        if (caller.socket.send(to_message(first)) && why.empty()) callers_.push_back(std::move(caller));
    }
    return true;
}

// What this process lacks to take one more importer in; empty: nothing.
std::string Publisher::lack() const {
    constexpr const char* full = "the process that publishes has no room for more importers";
    if (callers_.size() >= max_importers_) return fmt::format("{}: {} are there", full, max_importers_);
    if (spare_ && can_open(reserved_descriptors)) return {};
    return fmt::format("{}: fewer than {} descriptors are left to it (ulimit -n)", full,
                       reserved_descriptors);
}

// False where the importer hung up, talks nonsense, or does not take its answer.
bool Publisher::attend(Caller& caller) const {
    const auto received = caller.socket.receive(longest_question, std::chrono::steady_clock::now(),
                                                driver::LocalSocket::Descriptor::none);
    if (!received) return received.error().code == ErrorCode::timed_out;
    const auto asked = parse_message(received->bytes);
    if (!asked || asked->word != Word::ask) return false;
    const auto found = names_.find(asked->text);
    if (found == names_.end()) return caller.socket.send(to_message({Word::absent, asked->number, {}})).ok();
    const Entry& entry = found->second;
    const auto sent =
        caller.socket.send(to_message({Word::offered, asked->number, entry.offer}), entry.descriptor);
    if (sent) caller.told.insert(entry.id);
    return sent ||
           caller.socket.send(to_message({Word::refused, asked->number, sent.error().to_string()})).ok();
}

}  // namespace sidestep::peer
