#include "driver/nccl_net.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/random.hpp"

namespace sidestep::driver {

namespace nccl_net {
namespace {

// Plugins also report much that is no problem.
void log_line(int level, unsigned long, const char*, int, const char* format, ...) {
    const auto weight = level == log_warn ? base::LogLevel::warn : base::LogLevel::debug;
    if (!base::logs(weight)) return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    base::log(weight, std::string("network plugin: ") + text);
}

// Some plugins call it without looking whether there is one.
Status profile_nothing(void**, int, void*, std::int64_t, void*) {
    return success;
}

const char* words_of(Status status) {
    switch (status) {
        case cuda_error:
            return "an error of CUDA";
        case system_error:
            return "an error of the system or the network";
        case internal_error:
            return "an error in the plugin";
        case invalid_argument:
            return "an argument that it does not take";
        case invalid_usage:
            return "a use that it does not take";
        case remote_error:
            return "an error of the other machine";
        default:
            return "an error";
    }
}

template <typename Function>
Function as(Differs function) {
    return reinterpret_cast<Function>(function);
}

template <typename Properties>
NcclNetDevice to_device(const Properties& found, int number) {
    NcclNetDevice device;
    device.name = found.name != nullptr ? found.name : "";
    device.pci_path = found.pci_path != nullptr ? found.pci_path : "";
    device.number = number;
    device.memory = found.memory;
    device.speed = found.speed;
    device.most_comms = found.most_comms;
    if constexpr (requires { found.most_bytes; })
        device.most = found.most_bytes;
    else
        device.most = Bytes{1} << 30;  // sizes are an int there
    return device;
}

}  // namespace
}  // namespace nccl_net

std::vector<std::string> nccl_net_libraries(const std::string& name) {
    if (name.empty()) return {"libnccl-net.so"};
    const bool is_file =
        name.find('/') != std::string::npos || (name.starts_with("lib") && name.ends_with(".so"));
    if (is_file) return {name};
    return {name, "libnccl-net-" + name + ".so"};
}

Result<std::shared_ptr<NcclNet>> NcclNet::load(const std::vector<std::string>& libraries) {
    std::optional<Error> why;
    for (const std::string& name : libraries) {
        auto library = DynamicLibrary::open(name);
        if (library) {
            std::shared_ptr<NcclNet> net(new NcclNet(std::move(*library)));
            SIDESTEP_CHECK(net->find_version());
            return net;
        }
        // A plugin that exists but cannot be loaded says more than one that is missing.
        if (!why || why->code == ErrorCode::not_found) why = library.error();
    }
    if (!why) why = Error{ErrorCode::invalid_argument, "no network plugin is named", "dlopen", {}};
    why->hint = "let SIDESTEP_NCCL_NET name the plugin's path, or LD_LIBRARY_PATH its folder";
    return *why;
}

Result<void> NcclNet::find_version() {
    for (version_ = nccl_net::newest_version; version_ >= nccl_net::oldest_version; --version_) {
        const std::string symbol = fmt::format("ncclNetPlugin_v{}", version_);
        plugin_ = static_cast<const nccl_net::Plugin*>(library_.address(symbol.c_str()));
        if (plugin_ != nullptr) break;
    }
    if (plugin_ == nullptr)
        return Error{ErrorCode::unsupported,
                     fmt::format("{} is no network plugin of NCCL of version {} to {}", library_.name(),
                                 nccl_net::oldest_version, nccl_net::newest_version),
                     "dlsym", "use a plugin that was made for NCCL 2.19 or newer"};
    name_ = plugin_->name != nullptr ? plugin_->name : library_.name();
    const bool whole = plugin_->init && plugin_->devices && plugin_->get_properties && plugin_->listen &&
                       plugin_->connect && plugin_->accept && plugin_->reg_mr && plugin_->dereg_mr &&
                       plugin_->isend && plugin_->irecv && plugin_->test && plugin_->close_send &&
                       plugin_->close_recv && plugin_->close_listen;
    if (whole) return {};
    return Error{ErrorCode::unsupported, fmt::format("the network plugin {} lacks functions", name_),
                 library_.name(), "use a newer version of it"};
}

Result<void> NcclNet::check(nccl_net::Status status, const char* call) const {
    if (status == nccl_net::success) return {};
    return Error{ErrorCode::io_error,
                 fmt::format("the network plugin {} failed in {}: {} ({})", name_, call,
                             nccl_net::words_of(status), status),
                 library_.name(), "SIDESTEP_LOG=debug shows what the plugin itself says"};
}

Result<void> NcclNet::init() {
    if (version_ <= 9)
        return check(nccl_net::as<nccl_net::InitV8>(plugin_->init)(&nccl_net::log_line), "init");
    if (version_ == 10)
        return check(
            nccl_net::as<nccl_net::InitV10>(plugin_->init)(&nccl_net::log_line, &nccl_net::profile_nothing),
            "init");
    return check(nccl_net::as<nccl_net::InitV11>(plugin_->init)(
                     &context_, random_number(), &config_, &nccl_net::log_line, &nccl_net::profile_nothing),
                 "init");
}

Result<std::vector<NcclNetDevice>> NcclNet::devices() const {
    int count = 0;
    SIDESTEP_CHECK(check(plugin_->devices(&count), "devices"));
    std::vector<NcclNetDevice> all;
    for (int number = 0; number < count; ++number) {
        SIDESTEP_TRY(auto one, device(number));
        all.push_back(std::move(one));
    }
    return all;
}

Result<NcclNetDevice> NcclNet::device(int number) const {
    // A plugin may know of more than stands here.
    union {
        nccl_net::PropertiesV8 v8;
        nccl_net::PropertiesV9 v9;
        nccl_net::PropertiesV12 v12;
        unsigned char room[1024] = {};
    } found;
    SIDESTEP_CHECK(check(plugin_->get_properties(number, &found), "getProperties"));
    if (version_ == 8) return nccl_net::to_device(found.v8, number);
    return version_ < 12 ? nccl_net::to_device(found.v9, number) : nccl_net::to_device(found.v12, number);
}

Result<NcclNet::Comm> NcclNet::listen(int device, NcclNetHandle& handle) const {
    Comm made = nullptr;
    const nccl_net::Status status =
        version_ < 11
            ? nccl_net::as<nccl_net::ListenV8>(plugin_->listen)(device, handle.data(), &made)
            : nccl_net::as<nccl_net::ListenV11>(plugin_->listen)(context_, device, handle.data(), &made);
    SIDESTEP_CHECK(check(status, "listen"));
    if (made == nullptr) SIDESTEP_CHECK(check(nccl_net::internal_error, "listen"));
    return made;
}

Result<NcclNet::Comm> NcclNet::connect(int device, NcclNetHandle& handle) const {
    Comm made = nullptr;
    void* offload = nullptr;  // none is asked for
    nccl_net::Config config;
    nccl_net::Status status = nccl_net::success;
    if (version_ <= 9)
        status = nccl_net::as<nccl_net::ConnectV8>(plugin_->connect)(device, handle.data(), &made, &offload);
    else if (version_ == 10)
        status = nccl_net::as<nccl_net::ConnectV10>(plugin_->connect)(device, &config, handle.data(), &made,
                                                                      &offload);
    else
        status = nccl_net::as<nccl_net::ConnectV11>(plugin_->connect)(context_, device, handle.data(), &made,
                                                                      &offload);
    SIDESTEP_CHECK(check(status, "connect"));
    return made;
}

Result<NcclNet::Comm> NcclNet::accept(Comm listening) const {
    Comm made = nullptr;
    void* offload = nullptr;
    SIDESTEP_CHECK(check(plugin_->accept(listening, &made, &offload), "accept"));
    return made;
}

Result<NcclNet::Region> NcclNet::register_memory(Comm comm, void* address, Bytes size, int kind) const {
    Region region = nullptr;
    SIDESTEP_CHECK(check(plugin_->reg_mr(comm, address, size, kind, &region), "regMr"));
    return region;
}

Result<NcclNet::Region> NcclNet::register_dma_buf(Comm comm, void* address, Bytes size, int kind,
                                                  Bytes offset, int fd) const {
    if (plugin_->reg_mr_dma_buf == nullptr)
        return Error{ErrorCode::unsupported,
                     fmt::format("the network plugin {} takes no dma-buf", name_),
                     library_.name(),
                     {}};
    Region region = nullptr;
    SIDESTEP_CHECK(
        check(plugin_->reg_mr_dma_buf(comm, address, size, kind, offset, fd, &region), "regMrDmaBuf"));
    return region;
}

Result<void> NcclNet::deregister(Comm comm, Region region) const {
    return check(plugin_->dereg_mr(comm, region), "deregMr");
}

// All messages have one tag: they are told apart by their order.
Result<NcclNet::Request> NcclNet::send(Comm sending, const void* data, Bytes size, Region region) const {
    void* const from = const_cast<void*>(data);
    Request request = nullptr;
    nccl_net::Status status = nccl_net::success;
    if (version_ == 8)
        status = nccl_net::as<nccl_net::SendV8>(plugin_->isend)(sending, from, static_cast<int>(size), 0,
                                                                region, &request);
    else if (version_ == 9)
        status = nccl_net::as<nccl_net::SendV9>(plugin_->isend)(sending, from, size, 0, region, &request);
    else
        status = nccl_net::as<nccl_net::SendV10>(plugin_->isend)(sending, from, size, 0, region, nullptr,
                                                                 &request);
    SIDESTEP_CHECK(check(status, "isend"));
    return request;
}

Result<NcclNet::Request> NcclNet::receive(Comm receiving, void* data, Bytes size, Region region) const {
    Request request = nullptr;
    int tag = 0;
    int few = static_cast<int>(size);
    std::size_t many = size;
    void* event = nullptr;
    nccl_net::Status status = nccl_net::success;
    if (version_ == 8)
        status = nccl_net::as<nccl_net::ReceiveV8>(plugin_->irecv)(receiving, 1, &data, &few, &tag, &region,
                                                                   &request);
    else if (version_ == 9)
        status = nccl_net::as<nccl_net::ReceiveV9>(plugin_->irecv)(receiving, 1, &data, &many, &tag, &region,
                                                                   &request);
    else
        status = nccl_net::as<nccl_net::ReceiveV10>(plugin_->irecv)(receiving, 1, &data, &many, &tag, &region,
                                                                    &event, &request);
    SIDESTEP_CHECK(check(status, "irecv"));
    return request;
}

Result<NcclNet::Request> NcclNet::flush(Comm receiving, void* data, Bytes size, Region region) const {
    Request request = nullptr;
    if (plugin_->iflush == nullptr) return request;
    int few = static_cast<int>(size);
    SIDESTEP_CHECK(check(plugin_->iflush(receiving, 1, &data, &few, &region, &request), "iflush"));
    return request;
}

Result<std::optional<Bytes>> NcclNet::test(Request request) const {
    int done = 0;
    int size = 0;
    SIDESTEP_CHECK(check(plugin_->test(request, &done, &size), "test"));
    if (done == 0) return std::optional<Bytes>();
    return std::optional<Bytes>(static_cast<Bytes>(std::max(size, 0)));
}

Result<void> NcclNet::close_send(Comm sending) const {
    return check(plugin_->close_send(sending), "closeSend");
}

Result<void> NcclNet::close_receive(Comm receiving) const {
    return check(plugin_->close_recv(receiving), "closeRecv");
}

Result<void> NcclNet::close_listen(Comm listening) const {
    return check(plugin_->close_listen(listening), "closeListen");
}

}  // namespace sidestep::driver
