// Memory that other processes published, mapped here.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/registry.hpp"
#include "base/try.hpp"
#include "peer/importer.hpp"

namespace sidestep::transfer {

// Published memory as memory of this process, which it is for as long as the lease lives.
struct Import {
    Buffer buffer;  // at a host or gpu place, with an address
    std::shared_ptr<const void> lease;
};

// Keeps what was imported, because mapping takes long. A known name costs a look-up and one look at the connection to its
// process. The connection says when the memory is withdrawn or the process dies; then the name is imported anew. An
// allocation of a publisher is mapped once, whichever of its parts and names are imported. Any thread may call. One thread,
// started with the first import, unmaps what is withdrawn.
class SharedMemory {
public:
    // How long the process that publishes a name may take to answer.
    static constexpr std::chrono::milliseconds answer_limit{5000};

    // `folder` as ContextOptions::peer_folder, looked at with the first import.
    SharedMemory(const backend::Registry& registry, std::string folder)
        : registry_(registry), folder_(std::move(folder)), importer_([this] { forget(ended); }) {}

    // The memory that a buffer names, whose place is a shared one. `limit` (zero: answer_limit, which bounds it in any
    // case) bounds the wait for the publisher. not_found where nothing is published under the name,
    // invalid_argument where the buffer reaches past it.
    Result<Import> import(const Buffer& shared, std::chrono::milliseconds limit = {}) {
        if (limit.count() <= 0 || limit > answer_limit) limit = answer_limit;
        SIDESTEP_TRY(Import whole, find(shared.place().path(), limit));
        const Bytes all = whole.buffer.size();
        const Bytes size =
            shared.size() == Buffer::whole && shared.offset() <= all ? all - shared.offset() : shared.size();
        if (shared.offset() > all || size > all - shared.offset())
            return Error{ErrorCode::invalid_argument,
                         fmt::format("the buffer reaches past what is published, which has {} bytes", all),
                         shared.to_string(), "sizes must agree; name a range of what is published"};
        whole.buffer = whole.buffer.slice(shared.offset(), size);
        return whole;
    }

private:
    // What names one allocation of one publisher.
    struct Key {
        peer::PublisherId publisher;
        std::string scheme;
        std::string handle;
        std::uint64_t identity;
        auto operator<=>(const Key&) const = default;
        bool same_handle(const Key& other) const {
            return publisher == other.publisher && scheme == other.scheme && handle == other.handle;
        }
    };
    struct Entry {
        std::shared_ptr<peer::Connection> connection;
        std::uint64_t publication = 0;
        Key key;
        std::shared_ptr<const Allocation> mapping;  // empty where this process published it
        Buffer buffer;
        std::uint64_t used = 0;
    };
    // More than any program needs at a time; the one that was not used for longest goes.
    static constexpr std::size_t max_names = 1024;

    // All that is published under a name.
    Result<Import> find(const std::string& name, std::chrono::milliseconds limit) {
        bool known = false;
        {
            std::lock_guard lock(mutex_);
            const auto found = entries_.find(name);
            known = found != entries_.end();
            if (known) found->second.connection->listen();
            if (known && !ended(found->second)) {
                found->second.used = ++clock_;
                return Import{found->second.buffer, found->second.mapping};
            }
        }
        if (known) forget(ended);
        return connect(name, limit);
    }
    Result<Import> connect(const std::string& name, std::chrono::milliseconds limit) {
        auto folder = peer::Folder::open(folder_, false);
        if (!folder && folder.error().code == ErrorCode::not_found)
            return Error{ErrorCode::not_found, fmt::format("nothing is published as {}", name),
                         folder.error().where,
                         "is its process running, and does it use the same folder (SIDESTEP_PEER_FOLDER)?"};
        if (!folder) return folder.error();
        SIDESTEP_TRY(const peer::Offered offered,
                     importer_.find(*folder, name, std::chrono::steady_clock::now() + limit));
        const peer::MemoryOffer& offer = offered.offer;
        Entry entry;
        entry.connection = offered.connection;
        entry.publication = offer.publication;
        entry.key = {offer.publisher, offer.scheme, offer.handle, offer.identity};
        const bool ours = offered.connection->same_process();
        const Result<bool> as_it_is = ours ? use_own_address(offer, entry) : false;
        if (!as_it_is || !*as_it_is) {
            if (const auto mapped = map(offered, entry); !mapped) {
                Error error = mapped.error();
                if (!as_it_is)
                    error.message += "; as memory of this process: " + as_it_is.error().to_string();
                return error;
            }
        }
        keep(name, entry);
        return Import{std::move(entry.buffer), std::move(entry.mapping)};
    }
    Result<void> map(const peer::Offered& offered, Entry& entry) {
        std::lock_guard opening(opening_);
        {
            std::lock_guard lock(mutex_);
            if (const auto found = mappings_.find(entry.key); found != mappings_.end())
                entry.mapping = found->second.lock();
        }
        if (!entry.mapping) {
            SIDESTEP_TRY(entry.mapping, open(offered, entry.key));
            std::lock_guard lock(mutex_);
            std::erase_if(mappings_, [](const auto& mapping) { return mapping.second.expired(); });
            mappings_[entry.key] = entry.mapping;
        }
        const peer::MemoryOffer& offer = offered.offer;
        const Buffer& all = entry.mapping->buffer();
        if (offer.size > all.size() || offer.offset > all.size() - offer.size)
            return Error{
                ErrorCode::io_error,
                fmt::format("published memory has {} bytes where the publisher promises {} from {} on",
                            all.size(), offer.size, offer.offset),
                "published memory"};
        entry.buffer = all.slice(offer.offset, offer.size);
        return {};
    }
    Result<std::shared_ptr<const Allocation>> open(const peer::Offered& offered, const Key& key) {
        // The same handle with another identity: that memory was freed and its address given out again. What is
        // kept of it goes first, or the driver may answer with the old mapping.
        forget([&](const Entry& entry) { return entry.key.same_handle(key); });

        const peer::MemoryOffer& offer = offered.offer;
        const backend::Exported exported{.scheme = offer.scheme,
                                         .handle = offer.handle,
                                         .descriptor = offered.descriptor.get(),
                                         .place = offer.place,
                                         .memory = offer.memory,
                                         .size = offer.size,
                                         .offset = offer.offset,
                                         .identity = offer.identity};
        for (backend::Sharer* sharer : registry_.with(&backend::Backend::sharer)) {
            SIDESTEP_TRY(auto opened, sharer->open(exported));
            if (!opened) continue;
            return std::make_shared<const Allocation>(std::move(*opened));
        }
        Error error{ErrorCode::unsupported,
                    fmt::format("no backend here opens the {} memory ({}) of {}", to_string(exported.memory),
                                exported.scheme, exported.place.to_string()),
                    "published memory"};
        for (const backend::Offer& known : registry_.offers())
            if (!known.support.usable && error.hint.empty() && exported.scheme.starts_with(known.name))
                error.hint = fmt::format("{}: {}", known.name, known.support.reason);
        return error;
    }
    // In the process that published it memory is used as it is; CUDA even refuses to map it there. Another
    // Context's emulated memory is mapped all the same, since only that Context knows the address: to the others it is an error.
    Result<bool> use_own_address(const peer::MemoryOffer& offer, Entry& entry) const {
        const Buffer buffer = Buffer::memory(offer.place, reinterpret_cast<void*>(offer.address), offer.size);
        bool known = offer.place.is_host() && offer.memory == MemoryKind::pageable;
        for (backend::Backend* backend : registry_.usable()) {
            SIDESTEP_TRY(const auto description, backend->describe(buffer));
            if (description) known = description->memory == offer.memory;
        }
        if (!known) return false;
        entry.buffer = buffer;
        entry.mapping = std::make_shared<const Allocation>();
        return true;
    }
    void keep(const std::string& name, Entry& entry) {
        std::map<std::string, Entry, std::less<>>::node_type gone;  // goes after the lock
        {
            std::lock_guard lock(mutex_);
            entry.used = ++clock_;
            gone = entries_.extract(name);  // another thread was quicker: its copies keep their leases
            if (!gone && entries_.size() >= max_names)
                gone = entries_.extract(
                    std::ranges::min_element(entries_, {}, [](const auto& one) { return one.second.used; }));
            entries_.emplace(name, entry);
        }
        gone = {};
        importer_.tidy();
    }
    // As far as its connection has been listened to.
    static bool ended(const Entry& entry) { return !entry.connection->lasts(entry.publication); }
    template <typename Condition>
    void forget(Condition condition) {
        std::vector<Entry> gone;  // go after the lock, since unmapping may take long
        {
            std::lock_guard lock(mutex_);
            std::erase_if(entries_, [&](auto& one) {
                const bool meant = condition(one.second);
                if (meant) gone.push_back(std::move(one.second));
                return meant;
            });
        }
        gone.clear();
        importer_.tidy();
    }

    const backend::Registry& registry_;
    const std::string folder_;
    std::mutex opening_;  // held while something is mapped, so that nothing is mapped twice
    std::mutex mutex_;    // guards the three below; never held while anything is waited for
    std::map<std::string, Entry, std::less<>> entries_;  // by name
    std::map<Key, std::weak_ptr<const Allocation>> mappings_;
    std::uint64_t clock_ = 0;
    peer::Importer importer_;  // last, so that it stops first
};

}  // namespace sidestep::transfer
