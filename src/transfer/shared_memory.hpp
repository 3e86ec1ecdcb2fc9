// Memory that other processes published, mapped here.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backend/registry.hpp"
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
    SharedMemory(const backend::Registry& registry, std::string folder);

    // The memory that a buffer names, whose place is a shared one. `limit` (zero: answer_limit, which bounds it in any
    // case) bounds the wait for the publisher. not_found where nothing is published under the name,
    // invalid_argument where the buffer reaches past it.
    Result<Import> import(const Buffer& shared, std::chrono::milliseconds limit = {});

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
    Result<Import> find(const std::string& name, std::chrono::milliseconds limit);
    Result<Import> connect(const std::string& name, std::chrono::milliseconds limit);
    Result<void> map(const peer::Offered& offered, Entry& entry);
    Result<std::shared_ptr<const Allocation>> open(const peer::Offered& offered, const Key& key);
    Result<bool> use_own_address(const peer::MemoryOffer& offer, Entry& entry) const;
    void keep(const std::string& name, Entry& entry);
    // As far as its connection has been listened to.
    static bool ended(const Entry& entry) { return !entry.connection->lasts(entry.publication); }
    template <typename Condition>
    void forget(Condition condition);

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
