// libibverbs, which is loaded while the program runs, and owners of what it makes. Built only where its headers are.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>
#include <vector>

#include <sidestep/result.hpp>

#include "driver/dynamic_library.hpp"
#include "driver/fd.hpp"

namespace sidestep::driver {

// The functions of the library; those that a driver provides itself (ibv_post_send and the like) are inline.
class Verbs {
public:
    // unsupported, not_found: with what to install.
    static Result<std::shared_ptr<const Verbs>> load(const std::string& name = "libibverbs.so.1");

    decltype(&ibv_get_device_list) get_device_list = nullptr;
    decltype(&ibv_free_device_list) free_device_list = nullptr;
    decltype(&ibv_get_device_name) get_device_name = nullptr;
    decltype(&ibv_open_device) open_device = nullptr;
    decltype(&ibv_close_device) close_device = nullptr;
    decltype(&ibv_query_device) query_device = nullptr;
    decltype(&ibv_query_port) query_port = nullptr;
    decltype(&ibv_query_gid) query_gid = nullptr;
    decltype(&ibv_get_async_event) get_async_event = nullptr;
    decltype(&ibv_ack_async_event) ack_async_event = nullptr;
    decltype(&ibv_alloc_pd) alloc_pd = nullptr;
    decltype(&ibv_dealloc_pd) dealloc_pd = nullptr;
    decltype(&ibv_reg_mr) reg_mr = nullptr;
    decltype(&ibv_dereg_mr) dereg_mr = nullptr;
    decltype(&ibv_create_comp_channel) create_comp_channel = nullptr;
    decltype(&ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
    decltype(&ibv_create_cq) create_cq = nullptr;
    decltype(&ibv_destroy_cq) destroy_cq = nullptr;
    decltype(&ibv_get_cq_event) get_cq_event = nullptr;
    decltype(&ibv_ack_cq_events) ack_cq_events = nullptr;
    decltype(&ibv_create_qp) create_qp = nullptr;
    decltype(&ibv_modify_qp) modify_qp = nullptr;
    decltype(&ibv_destroy_qp) destroy_qp = nullptr;
    decltype(&ibv_wc_status_str) wc_status_str = nullptr;
    // Null before rdma-core 28 and 34.
    ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, size_t, uint64_t, unsigned) = nullptr;
    ibv_mr* (*reg_dmabuf_mr)(ibv_pd*, uint64_t, size_t, uint64_t, int, int) = nullptr;

private:
    explicit Verbs(DynamicLibrary library) : library_(std::move(library)) {}
    Result<void> bind();
    DynamicLibrary library_;
};

using SharedVerbs = std::shared_ptr<const Verbs>;

// An opened card with a protection domain. What is made of it keeps it.
class VerbsContext {
public:
    static Result<std::vector<std::string>> names(const Verbs& verbs);
    static Result<std::shared_ptr<const VerbsContext>> open(SharedVerbs verbs, const std::string& name);
    ~VerbsContext();
    VerbsContext(const VerbsContext&) = delete;
    VerbsContext& operator=(const VerbsContext&) = delete;

    const Verbs& verbs() const { return *verbs_; }
    ibv_context* get() const { return context_; }
    ibv_pd* domain() const { return domain_; }
    const std::string& name() const { return name_; }
    // "/sys/class/infiniband/mlx5_0"
    std::string folder() const { return context_->device->ibdev_path; }
    Result<ibv_port_attr> port(std::uint8_t number) const;
    Result<ibv_device_attr> limits() const;
    // Says what has happened to the card, one event for each time that the descriptor is readable; nothing: none.
    int events() const { return context_->async_fd; }
    bool take_event(ibv_event_type& type) const;

private:
    VerbsContext(SharedVerbs verbs, std::string name) : verbs_(std::move(verbs)), name_(std::move(name)) {}
    const SharedVerbs verbs_;
    const std::string name_;
    ibv_context* context_ = nullptr;
    ibv_pd* domain_ = nullptr;
};

using SharedVerbsContext = std::shared_ptr<const VerbsContext>;

// Memory that the card may read and write, and the other end of a queue pair with its key.
class VerbsRegion {
public:
    // Host memory. out_of_memory with a hint where the limit of locked memory is met.
    static Result<VerbsRegion> host(SharedVerbsContext context, void* address, std::size_t size,
                                    unsigned access);
    // `size` bytes from `offset` on of a dma-buf, which are called `iova` from then on.
    static Result<VerbsRegion> dma_buf(SharedVerbsContext context, int fd, std::uint64_t offset,
                                       std::size_t size, std::uint64_t iova, unsigned access);
    VerbsRegion(VerbsRegion&& other) noexcept;
    VerbsRegion& operator=(VerbsRegion&&) = delete;
    ~VerbsRegion();

    std::uint32_t local_key() const { return region_->lkey; }
    std::uint32_t remote_key() const { return region_->rkey; }

private:
    VerbsRegion(SharedVerbsContext context, ibv_mr* region) : context_(std::move(context)), region_(region) {}
    SharedVerbsContext context_;
    ibv_mr* region_;
};

// Where completions come, and a descriptor that is readable when one has come since it was armed.
class VerbsCompletions {
public:
    static Result<std::unique_ptr<VerbsCompletions>> create(SharedVerbsContext context, int entries);
    ~VerbsCompletions();
    VerbsCompletions(const VerbsCompletions&) = delete;
    VerbsCompletions& operator=(const VerbsCompletions&) = delete;

    ibv_cq* get() const { return queue_; }
    int number() const { return channel_->fd; }
    // Takes the events off the descriptor. One thread at a time.
    void take_events();
    // `solicited`: only what the other end marked so, or an error, makes the descriptor readable.
    Result<void> arm(bool solicited) const;
    // How many were put into `entries`, at most `count`.
    Result<std::size_t> poll(ibv_wc* entries, int count) const;

private:
    explicit VerbsCompletions(SharedVerbsContext context) : context_(std::move(context)) {}
    const SharedVerbsContext context_;
    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* queue_ = nullptr;
};

// A reliable, connected queue pair. Once it is destroyed the card touches no memory for it any more.
class VerbsQueuePair {
public:
    static Result<std::unique_ptr<VerbsQueuePair>> create(SharedVerbsContext context, ibv_cq* completions,
                                                          const ibv_qp_cap& wanted);
    ~VerbsQueuePair();
    VerbsQueuePair(const VerbsQueuePair&) = delete;
    VerbsQueuePair& operator=(const VerbsQueuePair&) = delete;

    std::uint32_t number() const { return pair_->qp_num; }
    std::uint32_t max_inline() const { return max_inline_; }
    Result<void> modify(ibv_qp_attr attributes, int mask, const char* to) const;
    // Everything that was posted comes back with an error.
    void fail() const;
    Result<void> send(ibv_send_wr& request) const;
    Result<void> receive(ibv_recv_wr& request) const;

private:
    VerbsQueuePair(SharedVerbsContext context, ibv_qp* pair, std::uint32_t max_inline)
        : context_(std::move(context)), pair_(pair), max_inline_(max_inline) {}
    const SharedVerbsContext context_;
    ibv_qp* const pair_;
    const std::uint32_t max_inline_;
};

}  // namespace sidestep::driver
