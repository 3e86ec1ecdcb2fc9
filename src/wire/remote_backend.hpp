// The backend that reaches other machines, over one engine.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "wire/etcd.hpp"
#include "wire/own_memory.hpp"
#include "wire/peers.hpp"

namespace sidestep::wire {

struct Far;
class RemoteMemory;

struct RemoteOptions {
    std::vector<NodeAddress> nodes;
    // Knows all others; nothing: the resolver does, at the default port.
    std::optional<EtcdPlace> etcd{};
    std::string key_file;  // as key_path(); read when the first node is asked for
    std::string node;      // what this machine calls itself
};

// Moves bytes between memory here and any place of a node: a piece is a push, or a question for one. Between two nodes
// the one that has them pushes them to the other. Nodes are connected when they are first asked for, and again after they
// were lost.
class RemoteBackend final : public backend::Backend, public backend::Allocator, public backend::Batcher {
public:
    RemoteBackend(std::unique_ptr<Engines> engines, RemoteOptions options);
    ~RemoteBackend() override { peers_.close(); }

    // What moves memory of GPUs of this machine; to be called before the first copy, and to go between the engine, which it
    // outlives, and the backends.
    std::unique_ptr<OwnMemory> own_memory(const backend::Registry& registry, transfer::Engine& engine);

    // The node, connected.
    Result<std::shared_ptr<Peer>> peer(const std::string& node);
    // Where a node of that name is from now on; connects to it. Answers what it calls itself.
    Result<std::string> connect(const NodeAddress& address);

    // Names in a folder of the node, sorted; those that begin with a dot are left out.
    Result<std::vector<std::string>> names_in(const std::string& node, const std::string& folder);
    Result<void> notify(const std::string& node, std::string_view text);
    // What a copy of that many bytes goes over, which connects what it needs: "verbs (mlx5_0, mlx5_1)". Empty where there is no
    // choice, or the node is not reached.
    std::string link_words(const std::string& node, Bytes bytes);

    // This machine's engines, the best first.
    std::vector<std::string> engine_names() const { return peers_.engines().names(); }

    // "tcp"; where there are several engines "verbs or tcp": which one it was says a note of the receipt.
    std::string_view name() const override { return name_; }
    backend::Support probe(const Topology& topology) override;
    std::vector<backend::Capability> capabilities() const override;
    backend::Allocator* allocator() override { return this; }
    backend::Batcher* batcher() override { return this; }
    bool reaches_nodes() const override { return true; }
    // Whether the node that has them reaches the other, or memory of a GPU here goes to or from the node as it is.
    backend::Support reaches(const Buffer& from, const Buffer& to) override;
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override;
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override;
    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override;
    Result<backend::Progress> start_batch(std::span<const backend::Piece> pieces,
                                          backend::Flight& flight) override;
    bool look() override;

    // Memory of nodes alone.
    backend::MemorySet allocates(PlaceKind) const override { return {}; }
    Result<Allocation> allocate(const Place& place, Bytes bytes, MemoryKind kind) override;

private:
    backend::Support reaches_own(const Place& gpu, const std::string& node);
    Result<std::unique_ptr<backend::Registration>> attach_own(const Buffer& buffer,
                                                              const backend::AttachOptions& options);
    Result<std::shared_ptr<const Far>> reach_far(const Buffer& buffer, const backend::AttachOptions& options,
                                                 Bytes bytes);
    // Asks the node, and once more where its connection was over without anybody here knowing: a node that was started again
    // is asked anew.
    Result<std::string> ask_node(const std::string& node,
                                 const std::function<Result<std::string>(Peer&)>& question);
    // Asks etcd, where that knows it, unless the node is connected.
    Result<NodeAddress> address_of(const std::string& node);
    std::size_t useful_sockets() const;

    // What was found of a pair of nodes that are connected.
    struct Tried {
        std::weak_ptr<Peer> from;
        std::weak_ptr<Peer> to;
        backend::Support answer;
        std::chrono::steady_clock::time_point at;
        unsigned failures = 0;  // until then
    };
    const RemoteOptions options_;
    const std::shared_ptr<RemoteMemory> memory_;
    const std::unique_ptr<Etcd> etcd_;  // may be null
    // Of what one node was to send to another: what was found of them is asked anew then.
    const std::shared_ptr<std::atomic<unsigned>> failures_ = std::make_shared<std::atomic<unsigned>>(0);
    const Topology* topology_ = nullptr;  // constant from probe() on
    mutable std::mutex mutex_;            // guards what follows
    std::map<std::string, NodeAddress> named_;
    std::map<std::pair<std::string, std::string>, Tried> tried_;
    OwnMemory* own_ = nullptr;  // constant from own_memory() on; null: none
    Peers peers_;
    const std::string name_;
};

}  // namespace sidestep::wire
