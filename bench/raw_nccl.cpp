#include "bench/raw_nccl.hpp"

#include <dlfcn.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/collective/elements.hpp"

namespace sidestep::bench::raw {
namespace {

using Communicator = void*;
using Window = void*;
using Stream = void*;
struct Id {
    char bytes[Nccl::id_bytes];
};

constexpr int symmetric_window = 1;    // NCCL_WIN_COLL_SYMMETRIC
constexpr int no_multiprocessors = 2;  // NCCL_CTA_POLICY_ZERO
constexpr unsigned config_magic = 0xcafebeef;
constexpr int host_scalar = 1;  // ncclScalarHostImmediate
constexpr int undefined = INT_MIN;

// ncclConfig_t as 2.28 has it; NCCL reads as much of it as its own has, by `size`.
struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = config_magic;
    unsigned version = 0;
    int blocking = undefined, cga_cluster_size = undefined, min_ctas = undefined, max_ctas = undefined;
    const char* net_name = nullptr;
    int split_share = undefined, traffic_class = undefined;
    const char* name = nullptr;
    int collnet = undefined, cta_policy = undefined, shrink_share = undefined, nvls_ctas = undefined,
        channels_per_net_peer = undefined, nvlink_centric = undefined;
};

std::optional<int> number_of(Dtype type) {
    switch (type) {
        case Dtype::i8:
            return 0;
        case Dtype::u8:
            return 1;
        case Dtype::i32:
            return 2;
        case Dtype::u32:
            return 3;
        case Dtype::i64:
            return 4;
        case Dtype::u64:
            return 5;
        case Dtype::f16:
            return 6;
        case Dtype::f32:
            return 7;
        case Dtype::f64:
            return 8;
        case Dtype::bf16:
            return 9;
        case Dtype::f8_e4m3:
            return 10;
        case Dtype::f8_e5m2:
            return 11;
        default:
            return std::nullopt;
    }
}

int number_of(ReduceOp op) {
    switch (op) {
        case ReduceOp::prod:
            return 1;
        case ReduceOp::max:
            return 2;
        case ReduceOp::min:
            return 3;
        case ReduceOp::avg:
            return 4;
        default:
            return 0;
    }
}

}  // namespace

struct Nccl::Calls {
    int version = 0;
    std::string file;
    int (*get_version)(int*) = nullptr;
    const char* (*error_text)(int) = nullptr;
    const char* (*last_error)(Communicator) = nullptr;
    int (*unique_id)(Id*) = nullptr;
    int (*join)(Communicator*, int, Id, int, Config*) = nullptr;
    int (*leave)(Communicator) = nullptr;
    int (*allocate)(void**, std::size_t) = nullptr;
    int (*free)(void*) = nullptr;
    int (*begin)() = nullptr;
    int (*end)() = nullptr;
    int (*all_reduce)(const void*, void*, std::size_t, int, int, Communicator, Stream) = nullptr;
    int (*broadcast)(const void*, void*, std::size_t, int, int, Communicator, Stream) = nullptr;
    int (*reduce)(const void*, void*, std::size_t, int, int, int, Communicator, Stream) = nullptr;
    int (*all_gather)(const void*, void*, std::size_t, int, Communicator, Stream) = nullptr;
    int (*reduce_scatter)(const void*, void*, std::size_t, int, int, Communicator, Stream) = nullptr;
    int (*send)(const void*, std::size_t, int, int, Communicator, Stream) = nullptr;
    int (*recv)(void*, std::size_t, int, int, Communicator, Stream) = nullptr;
    int (*scaled)(int*, void*, int, int, Communicator) = nullptr;
    // Not in every version.
    int (*all_to_all)(const void*, void*, std::size_t, int, Communicator, Stream) = nullptr;
    int (*gather)(const void*, void*, std::size_t, int, int, Communicator, Stream) = nullptr;
    int (*scatter)(const void*, void*, std::size_t, int, int, Communicator, Stream) = nullptr;
    int (*add)(Communicator, void*, std::size_t, void**) = nullptr;
    int (*remove)(Communicator, void*) = nullptr;
    int (*add_window)(Communicator, void*, std::size_t, Window*, int) = nullptr;
    int (*remove_window)(Communicator, Window) = nullptr;

    Result<void> check(int status, const char* call, Communicator communicator = nullptr) const {
        if (status == 0) return {};
        return Error{ErrorCode::device_error,
                     fmt::format("{} failed: {}: {}", call, error_text(status), last_error(communicator)),
                     file,
                     {}};
    }
    std::string bind(void* library);
};

// The name of a function that is missing; empty: all are there.
std::string Nccl::Calls::bind(void* library) {
    std::string missing;
    const auto find = [&](auto& function, const char* name, bool needed = true) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        if (!function && needed) missing = name;
    };
    find(get_version, "ncclGetVersion");
    find(error_text, "ncclGetErrorString");
    find(last_error, "ncclGetLastError");
    find(unique_id, "ncclGetUniqueId");
    find(join, "ncclCommInitRankConfig");
    find(leave, "ncclCommDestroy");
    find(allocate, "ncclMemAlloc");
    find(free, "ncclMemFree");
    find(begin, "ncclGroupStart");
    find(end, "ncclGroupEnd");
    find(all_reduce, "ncclAllReduce");
    find(broadcast, "ncclBroadcast");
    find(reduce, "ncclReduce");
    find(all_gather, "ncclAllGather");
    find(reduce_scatter, "ncclReduceScatter");
    find(send, "ncclSend");
    find(recv, "ncclRecv");
    find(scaled, "ncclRedOpCreatePreMulSum");
    find(all_to_all, "ncclAlltoAll", false);
    find(gather, "ncclGather", false);
    find(scatter, "ncclScatter", false);
    find(add, "ncclCommRegister", false);
    find(remove, "ncclCommDeregister", false);
    find(add_window, "ncclCommWindowRegister", false);
    find(remove_window, "ncclCommWindowDeregister", false);
    return missing;
}

const char* to_string(NcclMode mode) {
    switch (mode) {
        case NcclMode::standard:
            return "default";
        case NcclMode::registered:
            return "registered";
        case NcclMode::symmetric:
            return "symmetric";
        case NcclMode::copy_engines:
            return "copy engines";
    }
    return "?";
}

Nccl::Nccl(std::unique_ptr<Calls> calls) : calls_(std::move(calls)) {}
Nccl::~Nccl() = default;

Result<std::shared_ptr<Nccl>> Nccl::open(const std::string& file) {
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);
    std::vector<std::string> places{file};
    if (file == "libnccl.so.2")
        for (const char* folder : {"/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"})
            places.push_back(folder + file);
    std::string tried;
    for (const std::string& place : places) {
        void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char* why = dlerror();
            tried += fmt::format("{}{}", tried.empty() ? "" : "; ", why ? why : "it cannot be loaded");
            continue;
        }
        auto calls = std::make_unique<Calls>();
        const std::string missing = calls->bind(library);
        Dl_info found{};
        if (missing.empty() && dladdr(reinterpret_cast<void*>(calls->get_version), &found) != 0)
            calls->file = found.dli_fname;
        if (!missing.empty()) {
            tried += fmt::format("{}{} lacks {}", tried.empty() ? "" : "; ", place, missing);
        } else if (dlsym(library, "sidestepNcclSetDevice")) {  // NCCL has no such call
            tried += fmt::format("{}{} is the library that stands in for NCCL", tried.empty() ? "" : "; ",
                                 calls->file);
        } else {
            calls->get_version(&calls->version);
            return std::shared_ptr<Nccl>(new Nccl(std::move(calls)));
        }
    }
    return Error{ErrorCode::not_found, fmt::format("NCCL was not found: {}", tried), file,
                 "name it: --nccl FILE"};
}

std::string Nccl::version() const {
    return fmt::format("{}.{}.{}", calls_->version / 10'000, calls_->version / 100 % 100,
                       calls_->version % 100);
}

std::string Nccl::file() const {
    return calls_->file;
}

Result<std::string> Nccl::unique_id() {
    Id id{};
    SIDESTEP_CHECK(calls_->check(calls_->unique_id(&id), "ncclGetUniqueId"));
    return std::string(id.bytes, sizeof id.bytes);
}

Result<void*> Nccl::allocate(std::size_t bytes) {
    void* memory = nullptr;
    SIDESTEP_CHECK(calls_->check(calls_->allocate(&memory, bytes), "ncclMemAlloc"));
    return memory;
}

void Nccl::free(void* memory) {
    calls_->free(memory);
}

std::string Nccl::lacks(NcclMode mode, Collective operation) const {
    const Calls& calls = *calls_;
    const bool by_engine = operation == Collective::all_gather || operation == Collective::all_to_all ||
                           operation == Collective::gather || operation == Collective::scatter;
    if (mode == NcclMode::registered && !calls.add) return "this version registers no memory";
    if ((mode == NcclMode::symmetric || mode == NcclMode::copy_engines) && !calls.add_window)
        return "this version has no symmetric windows";
    if (mode == NcclMode::copy_engines && (calls.version < 22800 || !by_engine))
        return "not carried by copy engines";
    if (operation == Collective::barrier) return "NCCL has no barrier";
    return {};
}

struct NcclRank::State {
    std::shared_ptr<Nccl> library;
    Communicator communicator = nullptr;
    int rank = 0;
    int ranks = 1;
    std::vector<void*> registered;
    std::vector<Window> windows;
    std::map<Dtype, int> scaled;

    Result<void> tell(NcclMode mode, void* memory, std::size_t bytes);
    Result<int> reduction(const NcclCall& call);
    Result<void> in_pairs(const NcclCall& call, int type);
    // Blocks of `count` elements each by sends and receives, for versions without a call for it.
    Result<void> in_even_pairs(const NcclCall& call, int type);
};

Result<void> NcclRank::State::tell(NcclMode mode, void* memory, std::size_t bytes) {
    const Nccl::Calls& calls = *library->calls_;
    if (mode == NcclMode::standard) return {};
    if (mode == NcclMode::registered) {
        void* handle = nullptr;
        auto done =
            calls.check(calls.add(communicator, memory, bytes, &handle), "ncclCommRegister", communicator);
        if (done) registered.push_back(handle);
        return done;
    }
    Window window = nullptr;
    auto done = calls.check(calls.add_window(communicator, memory, bytes, &window, symmetric_window),
                            "ncclCommWindowRegister", communicator);
    if (done && window) windows.push_back(window);
    return done;
}

NcclRank::NcclRank(std::unique_ptr<State> state) : state_(std::move(state)) {}

NcclRank::~NcclRank() {
    if (!state_->communicator) return;
    const Nccl::Calls& calls = *state_->library->calls_;
    for (void* handle : state_->registered) calls.remove(state_->communicator, handle);
    for (Window window : state_->windows) calls.remove_window(state_->communicator, window);
    calls.leave(state_->communicator);
}

Result<std::unique_ptr<NcclRank>> NcclRank::join(std::shared_ptr<Nccl> library, NcclMode mode,
                                                 const std::string& id, int rank, int ranks, void* send,
                                                 void* recv, std::size_t bytes) {
    auto state = std::make_unique<State>();
    state->library = std::move(library);
    state->rank = rank;
    state->ranks = ranks;
    const Nccl::Calls& calls = *state->library->calls_;
    Id number{};
    std::memcpy(number.bytes, id.data(), std::min(id.size(), sizeof number.bytes));
    Config config;
    config.version = static_cast<unsigned>(calls.version);
    if (mode == NcclMode::copy_engines) config.cta_policy = no_multiprocessors;
    SIDESTEP_CHECK(calls.check(calls.join(&state->communicator, ranks, number, rank, &config),
                               "ncclCommInitRankConfig"));
    std::unique_ptr<NcclRank> joined(new NcclRank(std::move(state)));
    for (void* memory : {send, recv}) SIDESTEP_CHECK(joined->state_->tell(mode, memory, bytes));
    return joined;
}

Result<int> NcclRank::State::reduction(const NcclCall& call) {
    if (call.reduction != ReduceOp::scaled_sum) return number_of(call.reduction);
    const auto known = scaled.find(call.type);
    if (known != scaled.end()) return known->second;
    std::byte scalar[8] = {};
    collective::encode(call.type, call.scale, scalar);
    int made = 0;
    const Nccl::Calls& calls = *library->calls_;
    const int status = calls.scaled(&made, scalar, *number_of(call.type), host_scalar, communicator);
    SIDESTEP_CHECK(calls.check(status, "ncclRedOpCreatePreMulSum", communicator));
    scaled.emplace(call.type, made);
    return made;
}

Result<void> NcclRank::State::in_pairs(const NcclCall& call, int type) {
    const Nccl::Calls& calls = *library->calls_;
    const auto* const from = static_cast<const char*>(call.send);
    auto* const into = static_cast<char*>(call.recv);
    const std::size_t element = static_cast<std::size_t>(bits_of(call.type)) / 8;
    int failed = calls.begin();
    if (call.operation == Collective::send_recv) {
        const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
        if (failed == 0) failed = calls.send(from, call.count, type, next, communicator, call.stream);
        if (failed == 0) failed = calls.recv(into, call.count, type, before, communicator, call.stream);
    } else {
        const BlockLists& lists = *call.blocks;
        for (int peer = 0; peer < ranks && failed == 0; ++peer) {
            const std::uint64_t out = lists.send_offsets[peer] * element,
                                in = lists.recv_offsets[peer] * element;
            failed = calls.send(from + out, lists.send_counts[peer], type, peer, communicator, call.stream);
            if (failed == 0)
                failed =
                    calls.recv(into + in, lists.recv_counts[peer], type, peer, communicator, call.stream);
        }
    }
    const int ended = calls.end();
    return calls.check(failed != 0 ? failed : ended, "ncclSend and ncclRecv", communicator);
}

Result<void> NcclRank::State::in_even_pairs(const NcclCall& call, int type) {
    const Nccl::Calls& calls = *library->calls_;
    const std::size_t block = call.count * static_cast<std::size_t>(bits_of(call.type)) / 8;
    const bool gathers = call.operation == Collective::gather,
               scatters = call.operation == Collective::scatter;
    int failed = calls.begin();
    for (int peer = 0; peer < ranks && failed == 0; ++peer) {
        const std::size_t at = static_cast<std::size_t>(peer) * block;
        const auto* const from = static_cast<const char*>(call.send) + (gathers ? 0 : at);
        auto* const into = static_cast<char*>(call.recv) + (scatters ? 0 : at);
        const bool sends = gathers ? peer == call.root : !scatters || rank == call.root;
        const bool receives = scatters ? peer == call.root : !gathers || rank == call.root;
        if (sends) failed = calls.send(from, call.count, type, peer, communicator, call.stream);
        if (receives && failed == 0)
            failed = calls.recv(into, call.count, type, peer, communicator, call.stream);
    }
    const int ended = calls.end();
    return calls.check(failed != 0 ? failed : ended, "ncclSend and ncclRecv", communicator);
}

Result<void> NcclRank::run(const NcclCall& call) {
    State& state = *state_;
    const Nccl::Calls& calls = *state.library->calls_;
    const auto number = number_of(call.type);
    if (!number)
        return Error{ErrorCode::unsupported, "NCCL has no such type", std::string(to_string(call.type)), {}};
    const int type = *number;
    SIDESTEP_TRY(const auto op, state.reduction(call));
    int status = 0;
    const auto of = state.communicator;
    switch (call.operation) {
        case Collective::all_reduce:
            status = calls.all_reduce(call.send, call.recv, call.count, type, op, of, call.stream);
            break;
        case Collective::broadcast:
            status = calls.broadcast(call.send, call.recv, call.count, type, call.root, of, call.stream);
            break;
        case Collective::reduce:
            status = calls.reduce(call.send, call.recv, call.count, type, op, call.root, of, call.stream);
            break;
        case Collective::all_gather:
            status = calls.all_gather(call.send, call.recv, call.count, type, of, call.stream);
            break;
        case Collective::reduce_scatter:
            status = calls.reduce_scatter(call.send, call.recv, call.count, type, op, of, call.stream);
            break;
        case Collective::all_to_all:
            if (!calls.all_to_all) return state.in_even_pairs(call, type);
            status = calls.all_to_all(call.send, call.recv, call.count, type, of, call.stream);
            break;
        case Collective::gather:
            if (!calls.gather) return state.in_even_pairs(call, type);
            status = calls.gather(call.send, call.recv, call.count, type, call.root, of, call.stream);
            break;
        case Collective::scatter:
            if (!calls.scatter) return state.in_even_pairs(call, type);
            status = calls.scatter(call.send, call.recv, call.count, type, call.root, of, call.stream);
            break;
        default:
            return state.in_pairs(call, type);
    }
    return calls.check(status, std::string(to_string(call.operation)).c_str(), of);
}

}  // namespace sidestep::bench::raw
