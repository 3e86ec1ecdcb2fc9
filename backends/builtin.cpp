#include "backends/builtin.hpp"

#include <filesystem>

#include <fmt/format.h>

#include "backends/file/file_backend.hpp"
#include "backends/host/host_backend.hpp"
#include "backends/ncclnet/ncclnet_engine.hpp"
#include "backends/p2pmem/p2pmem_backend.hpp"
#include "backends/s3/s3_backend.hpp"
#include "backends/tcp/tcp_engine.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "config.hpp"

#if SIDESTEP_HAVE_VERBS
#include "backends/verbs/verbs_engine.hpp"
#endif

#if SIDESTEP_HAVE_CUDA
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cufile/cufile_backend.hpp"
#endif

namespace sidestep::backends {
namespace {

#if !SIDESTEP_HAVE_CUDA
using backend::Capability;
using backend::Offer;
using backend::Reach;
using backend::Support;

Capability missing(PlaceKind from, PlaceKind to, Reach reach, const char* engine) {
    Capability capability;
    capability.from = from;
    capability.to = to;
    capability.reach = reach;
    capability.engine = engine;
    return capability;
}

// The direct path between files and GPU memory.
Offer without_cufile() {
    Offer offer;
    offer.name = "cufile";
    offer.support = Support::no("this build has no cufile backend (GPUDirect Storage)",
                                "build with the CUDA toolkit 12.4 or newer");
    offer.capabilities = {missing(PlaceKind::file, PlaceKind::gpu, Reach::storage_gpu, "direct storage"),
                          missing(PlaceKind::gpu, PlaceKind::file, Reach::storage_gpu, "direct storage")};
    return offer;
}

Offer without_cuda() {
    Offer offer;
    offer.name = "cuda";
    offer.support =
        Support::no("this build has no CUDA backend", "build with the CUDA toolkit 12.4 or newer");
    offer.capabilities = {missing(PlaceKind::host, PlaceKind::gpu, Reach::host_link, "copy engine"),
                          missing(PlaceKind::gpu, PlaceKind::host, Reach::host_link, "copy engine"),
                          missing(PlaceKind::gpu, PlaceKind::gpu, Reach::peer_access, "copy engine"),
                          missing(PlaceKind::gpu, PlaceKind::gpu, Reach::same_gpu, "copy engine")};
    return offer;
}
#endif

}  // namespace

void add_builtin(backend::Registry& registry, const Topology& topology,
                 const base::Environment& environment) {
    registry.add(host::create({environment.host_threads, environment.emulated_gpu_memory}), topology);
    registry.add(file::create({environment.file_io}), topology);
    registry.add(s3::create(), topology);
    if (!topology.emulated()) {
#if SIDESTEP_HAVE_CUDA
        registry.add(cuda::create(), topology);
#else
        registry.add_absent(without_cuda());
#endif
        registry.add(p2pmem::create({}), topology);
    }
#if SIDESTEP_HAVE_CUDA
    // On an emulated machine too: its routes show the path that a real one may have.
    registry.add(cufile::create({.off = environment.cufile == base::Cufile::off}), topology);
#else
    registry.add_absent(without_cufile());
#endif
}

namespace {

Result<std::unique_ptr<backend::NetworkEngine>> make_rdma_engine(const Topology* topology) {
#if SIDESTEP_HAVE_VERBS
    verbs::Options options;
    options.topology = topology;
    auto engine = verbs::Engine::create(options);
    if (!engine) return engine.error();
    return std::unique_ptr<backend::NetworkEngine>(std::move(*engine));
#else
    static_cast<void>(topology);
    return Error{ErrorCode::unsupported, "this build has no engine for RDMA cards", "verbs",
                 "install libibverbs-dev and build it again"};
#endif
}

Result<std::unique_ptr<backend::NetworkEngine>> make_plugin_engine(const std::string& plugin,
                                                                   const Topology* topology) {
    auto engine = ncclnet::Engine::create({.plugin = plugin, .patience = {}, .topology = topology});
    if (!engine) return engine.error();
    return std::unique_ptr<backend::NetworkEngine>(std::move(*engine));
}

// What the kernel knows. A look here is quicker than to load a library that finds none.
bool has_rdma_cards() {
    std::error_code none;
    return !std::filesystem::is_empty("/sys/class/infiniband", none) && !none;
}

}  // namespace

Result<Engines> make_network_engines(const base::Environment& environment, const Topology& topology) {
    using base::Network;
    using Made = Result<std::unique_ptr<backend::NetworkEngine>>;
    const Network which = environment.network;
    const bool automatic = which == Network::automatic;
    Engines engines;
    // A user who asks for one engine alone learns why it is not available.
    const auto add = [&](Made made, const char* what) {
        if (!made && !automatic) return Result<void>(made.error());
        if (made)
            engines.push_back(std::move(*made));
        else
            base::log(base::LogLevel::warn, fmt::format("{} not used: {}", what, made.error().to_string()));
        return Result<void>();
    };
    if (which == Network::verbs || (automatic && has_rdma_cards()))
        SIDESTEP_CHECK(add(make_rdma_engine(&topology), "RDMA cards are"));
    // A plugin can do anything in this process: none is loaded unless the user asks for it.
    if (which == Network::ncclnet || (automatic && !environment.nccl_net.empty()))
        SIDESTEP_CHECK(add(make_plugin_engine(environment.nccl_net, &topology), "the network plugin is"));
    if (which == Network::tcp || automatic) engines.push_back(std::make_unique<tcp::Engine>());
    return engines;
}

namespace {

EngineRefusal refusal_of(const Result<std::unique_ptr<backend::NetworkEngine>>& made) {
    if (!made) return {made.error().message, made.error().hint};
    return {"it could not be used when the program started, and can be now", "start the program again"};
}

}  // namespace

EngineRefusal why_no_engine(const base::Environment& environment, std::string_view name) {
    using base::Network;
    const bool automatic = environment.network == Network::automatic;
    const auto left_out = [&](Network one, std::string_view named) {
        return name == named && !automatic && environment.network != one;
    };
    if (left_out(Network::verbs, "verbs") || left_out(Network::ncclnet, "ncclnet") ||
        left_out(Network::tcp, "tcp"))
        return {"SIDESTEP_NETWORK leaves it out", "unset SIDESTEP_NETWORK"};
    if (name == "ncclnet") {
        if (automatic && environment.nccl_net.empty())
            return {"no network plugin is named", "name it in SIDESTEP_NCCL_NET"};
        return refusal_of(make_plugin_engine(environment.nccl_net, nullptr));
    }
    if (name != "verbs") return {"there is no such engine", ""};
    if (!has_rdma_cards())
        return {"the kernel shows no RDMA card (/sys/class/infiniband is empty or not there)",
                "put an RDMA card in, or load the driver of the one that is there"};
    return refusal_of(make_rdma_engine(nullptr));
}

}  // namespace sidestep::backends
