#include "driver/verbs.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/try.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

// Some drivers leave nothing in errno.
Error failed(int number, std::string message, const char* call, std::string hint = {}) {
    if (number > 0) return system_error(number, std::move(message), call, std::move(hint));
    return Error{ErrorCode::device_error, message + ", and the driver does not say why", call,
                 std::move(hint)};
}

Error not_registered(int number, std::size_t size, const char* call) {
    std::string hint;
    if (number == ENOMEM || number == EAGAIN || number == EPERM)
        hint = "raise the limit of locked memory (ulimit -l; LimitMEMLOCK= of a service)";
    else if (number == EFAULT)
        hint = "the memory is not there, or not of a kind that the card can reach";
    Error error =
        failed(number, fmt::format("{} bytes cannot be registered with the network card", size), call, hint);
    if (number == EFAULT) error.code = ErrorCode::invalid_argument;
    if (number == EAGAIN || number == EPERM) error.code = ErrorCode::out_of_memory;
    return error;
}

void wait_never(int descriptor) {
    const int flags = ::fcntl(descriptor, F_GETFL);
    if (flags >= 0) ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
}

}  // namespace

Result<std::shared_ptr<const Verbs>> Verbs::load(const std::string& name) {
    auto library = DynamicLibrary::open(name);
    if (!library) {
        Error error = library.error();
        error.hint = "install libibverbs1 and ibverbs-providers (Debian), or rdma-core";
        return error;
    }
    std::shared_ptr<Verbs> verbs(new Verbs(std::move(*library)));
    SIDESTEP_CHECK(verbs->bind());
    return std::shared_ptr<const Verbs>(std::move(verbs));
}

Result<void> Verbs::bind() {
#define SIDESTEP_BIND(name) SIDESTEP_CHECK(library_.bind(name, "ibv_" #name))
    SIDESTEP_BIND(get_device_list);
    SIDESTEP_BIND(free_device_list);
    SIDESTEP_BIND(get_device_name);
    SIDESTEP_BIND(open_device);
    SIDESTEP_BIND(close_device);
    SIDESTEP_BIND(query_device);
    SIDESTEP_BIND(query_port);
    SIDESTEP_BIND(query_gid);
    SIDESTEP_BIND(get_async_event);
    SIDESTEP_BIND(ack_async_event);
    SIDESTEP_BIND(alloc_pd);
    SIDESTEP_BIND(dealloc_pd);
    SIDESTEP_BIND(reg_mr);
    SIDESTEP_BIND(dereg_mr);
    SIDESTEP_BIND(create_comp_channel);
    SIDESTEP_BIND(destroy_comp_channel);
    SIDESTEP_BIND(create_cq);
    SIDESTEP_BIND(destroy_cq);
    SIDESTEP_BIND(get_cq_event);
    SIDESTEP_BIND(ack_cq_events);
    SIDESTEP_BIND(create_qp);
    SIDESTEP_BIND(modify_qp);
    SIDESTEP_BIND(destroy_qp);
    SIDESTEP_BIND(wc_status_str);
#undef SIDESTEP_BIND
    library_.bind_optional(reg_mr_iova2, "ibv_reg_mr_iova2");
    library_.bind_optional(reg_dmabuf_mr, "ibv_reg_dmabuf_mr");
    return {};
}

Result<std::vector<std::string>> VerbsContext::names(const Verbs& verbs) {
    int count = 0;
    errno = 0;
    const std::unique_ptr<ibv_device*[], void (*)(ibv_device**)> list(verbs.get_device_list(&count),
                                                                      verbs.free_device_list);
    if (list == nullptr)
        return Error{ErrorCode::unsupported,
                     fmt::format("the kernel tells of no RDMA cards: {}", system_words(errno)),
                     "ibv_get_device_list", "load the card's driver and ib_uverbs (modprobe ib_uverbs)"};
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i)
        names.emplace_back(verbs.get_device_name(list[static_cast<std::size_t>(i)]));
    return names;
}

Result<std::shared_ptr<const VerbsContext>> VerbsContext::open(SharedVerbs verbs, const std::string& name) {
    int count = 0;
    const std::unique_ptr<ibv_device*[], void (*)(ibv_device**)> list(verbs->get_device_list(&count),
                                                                      verbs->free_device_list);
    ibv_device* found = nullptr;
    for (int i = 0; list != nullptr && i < count; ++i)
        if (name == verbs->get_device_name(list[static_cast<std::size_t>(i)]))
            found = list[static_cast<std::size_t>(i)];
    if (found == nullptr)
        return Error{
            ErrorCode::not_found, fmt::format("there is no RDMA card {}", name), "ibv_get_device_list", {}};
    std::shared_ptr<VerbsContext> opened(new VerbsContext(std::move(verbs), name));
    errno = 0;
    opened->context_ = opened->verbs_->open_device(found);
    if (opened->context_ == nullptr)
        return failed(errno, fmt::format("the RDMA card {} cannot be opened", name), "ibv_open_device",
                      "let this user read and write /dev/infiniband/uverbs*");
    wait_never(opened->context_->async_fd);
    errno = 0;
    opened->domain_ = opened->verbs_->alloc_pd(opened->context_);
    if (opened->domain_ == nullptr)
        return failed(errno, fmt::format("the RDMA card {} has no protection domain left", name),
                      "ibv_alloc_pd");
    return std::shared_ptr<const VerbsContext>(std::move(opened));
}

VerbsContext::~VerbsContext() {
    if (domain_ != nullptr) verbs_->dealloc_pd(domain_);
    if (context_ != nullptr) verbs_->close_device(context_);
}

// An older library fills in the first part only.
Result<ibv_port_attr> VerbsContext::port(std::uint8_t number) const {
    ibv_port_attr attributes;
    std::memset(&attributes, 0, sizeof attributes);
    const int status =
        verbs_->query_port(context_, number, reinterpret_cast<struct _compat_ibv_port_attr*>(&attributes));
    if (status != 0)
        return failed(status, fmt::format("port {} of {} says nothing", number, name_), "ibv_query_port");
    return attributes;
}

Result<ibv_device_attr> VerbsContext::limits() const {
    ibv_device_attr attributes{};
    const int status = verbs_->query_device(context_, &attributes);
    if (status != 0)
        return failed(status, fmt::format("{} does not tell its limits", name_), "ibv_query_device");
    return attributes;
}

bool VerbsContext::take_event(ibv_event_type& type) const {
    ibv_async_event event{};
    if (verbs_->get_async_event(context_, &event) != 0) return false;
    type = event.event_type;
    verbs_->ack_async_event(&event);
    return true;
}

Result<VerbsRegion> VerbsRegion::host(SharedVerbsContext context, void* address, std::size_t size,
                                      unsigned access) {
    const Verbs& verbs = context->verbs();
    const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(address));
    errno = 0;
    // The newer call leaves out what a driver does not know of the optional flags.
    ibv_mr* const region =
        verbs.reg_mr_iova2 != nullptr
            ? verbs.reg_mr_iova2(context->domain(), address, size, at, access)
            : verbs.reg_mr(context->domain(), address, size, static_cast<int>(access & 0xfffffu));
    if (region == nullptr) return not_registered(errno, size, "ibv_reg_mr");
    return VerbsRegion(std::move(context), region);
}

Result<VerbsRegion> VerbsRegion::dma_buf(SharedVerbsContext context, int fd, std::uint64_t offset,
                                         std::size_t size, std::uint64_t iova, unsigned access) {
    const Verbs& verbs = context->verbs();
    if (verbs.reg_dmabuf_mr == nullptr)
        return Error{ErrorCode::unsupported, "libibverbs has no function ibv_reg_dmabuf_mr", context->name(),
                     "install rdma-core 34 or newer"};
    errno = 0;
    ibv_mr* const region =
        verbs.reg_dmabuf_mr(context->domain(), offset, size, iova, fd, static_cast<int>(access));
    if (region != nullptr) return VerbsRegion(std::move(context), region);
    const int number = errno;
    if (number == EOPNOTSUPP || number == EPROTONOSUPPORT)
        return Error{ErrorCode::unsupported,
                     fmt::format("the driver of {} takes no dma-buf memory ({})", context->name(),
                                 system_words(number)),
                     "ibv_reg_dmabuf_mr", "sidestep doctor says what it would take"};
    return not_registered(number, size, "ibv_reg_dmabuf_mr");
}

VerbsRegion::VerbsRegion(VerbsRegion&& other) noexcept
    : context_(std::move(other.context_)), region_(std::exchange(other.region_, nullptr)) {}

VerbsRegion::~VerbsRegion() {
    if (region_ != nullptr) context_->verbs().dereg_mr(region_);
}

Result<std::unique_ptr<VerbsCompletions>> VerbsCompletions::create(SharedVerbsContext context, int entries) {
    std::unique_ptr<VerbsCompletions> made(new VerbsCompletions(std::move(context)));
    const VerbsContext& card = *made->context_;
    errno = 0;
    made->channel_ = card.verbs().create_comp_channel(card.get());
    if (made->channel_ == nullptr)
        return failed(errno, "no channel for completions can be had", "ibv_create_comp_channel");
    wait_never(made->channel_->fd);
    errno = 0;
    made->queue_ = card.verbs().create_cq(card.get(), entries, nullptr, made->channel_, 0);
    if (made->queue_ == nullptr)
        return failed(errno, fmt::format("no queue for {} completions can be had", entries), "ibv_create_cq");
    return made;
}

VerbsCompletions::~VerbsCompletions() {
    const Verbs& verbs = context_->verbs();
    // It would wait for events that no thread takes.
    if (queue_ != nullptr) take_events();
    if (queue_ != nullptr) verbs.destroy_cq(queue_);
    if (channel_ != nullptr) verbs.destroy_comp_channel(channel_);
}

void VerbsCompletions::take_events() {
    const Verbs& verbs = context_->verbs();
    unsigned count = 0;
    ibv_cq* queue = nullptr;
    void* mine = nullptr;
    while (verbs.get_cq_event(channel_, &queue, &mine) == 0) ++count;
    if (count > 0) verbs.ack_cq_events(queue_, count);
}

Result<void> VerbsCompletions::arm(bool solicited) const {
    const int status = ibv_req_notify_cq(queue_, solicited ? 1 : 0);
    if (status != 0) return failed(status, "completions cannot be waited for", "ibv_req_notify_cq");
    return {};
}

Result<std::size_t> VerbsCompletions::poll(ibv_wc* entries, int count) const {
    const int found = ibv_poll_cq(queue_, count, entries);
    if (found < 0) return failed(-found, "completions cannot be read", "ibv_poll_cq");
    return static_cast<std::size_t>(found);
}

Result<std::unique_ptr<VerbsQueuePair>> VerbsQueuePair::create(SharedVerbsContext context,
                                                               ibv_cq* completions,
                                                               const ibv_qp_cap& wanted) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = completions;
    attributes.recv_cq = completions;
    attributes.cap = wanted;
    attributes.qp_type = IBV_QPT_RC;
    attributes.sq_sig_all = 1;
    errno = 0;
    ibv_qp* pair = context->verbs().create_qp(context->domain(), &attributes);
    if (pair == nullptr) {
        // Not every card takes so much inside a request.
        attributes.cap = wanted;
        attributes.cap.max_inline_data = 0;
        errno = 0;
        pair = context->verbs().create_qp(context->domain(), &attributes);
    }
    if (pair == nullptr) {
        Error error =
            failed(errno, fmt::format("{} has no queue pair for this", context->name()), "ibv_create_qp");
        if (errno == ENOMEM)
            error.hint = "raise the limit of locked memory (ulimit -l; LimitMEMLOCK= of a service)";
        return error;
    }
    return std::unique_ptr<VerbsQueuePair>(
        new VerbsQueuePair(std::move(context), pair, attributes.cap.max_inline_data));
}

VerbsQueuePair::~VerbsQueuePair() {
    context_->verbs().destroy_qp(pair_);
}

Result<void> VerbsQueuePair::modify(ibv_qp_attr attributes, int mask, const char* to) const {
    const int status = context_->verbs().modify_qp(pair_, &attributes, mask);
    if (status != 0)
        return failed(status, fmt::format("a queue pair of {} does not become {}", context_->name(), to),
                      "ibv_modify_qp");
    return {};
}

void VerbsQueuePair::fail() const {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    context_->verbs().modify_qp(pair_, &attributes, IBV_QP_STATE);
}

Result<void> VerbsQueuePair::send(ibv_send_wr& request) const {
    ibv_send_wr* bad = nullptr;
    const int status = ibv_post_send(pair_, &request, &bad);
    if (status != 0) return failed(status, "the card takes nothing to send", "ibv_post_send");
    return {};
}

Result<void> VerbsQueuePair::receive(ibv_recv_wr& request) const {
    ibv_recv_wr* bad = nullptr;
    const int status = ibv_post_recv(pair_, &request, &bad);
    if (status != 0) return failed(status, "the card takes no memory to receive into", "ibv_post_recv");
    return {};
}

}  // namespace sidestep::driver
