// The exported functions that move bytes.
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "shims/nccl/calls.hpp"
#include "shims/nccl/exported.hpp"
#include "shims/nccl/failure.hpp"
#include "shims/nccl/handles.hpp"

using namespace sidestep;
using namespace sidestep::nccl;

namespace {

constexpr std::array dtypes = {Dtype::i8,  Dtype::u8,   Dtype::i32,     Dtype::u32,
                               Dtype::i64, Dtype::u64,  Dtype::f16,     Dtype::f32,
                               Dtype::f64, Dtype::bf16, Dtype::f8_e4m3, Dtype::f8_e5m2};
static_assert(dtypes.size() == ncclNumTypes);

Result<Dtype> dtype_of(ncclDataType_t type) {
    if (type < 0 || type >= ncclNumTypes) return bad_argument(fmt::format("unknown data type {}", type));
    return dtypes[static_cast<std::size_t>(type)];
}

struct Request {
    ncclComm_t comm;
    ncclDataType_t type;
    std::optional<ncclRedOp_t> op = {};        // of a call that combines
    const ncclCollConfig_t* config = nullptr;  // of the functions that take one
};

// More than any address space has. Group refuses them too, but only once it is run: too late for what else
// is in the group.
constexpr std::uint64_t max_bytes = std::uint64_t{1} << 47;

Result<void> check_count(const Call& call, int ranks) {
    const auto blocks = static_cast<std::uint64_t>(call.is_pair() ? 1 : ranks);
    const std::uint64_t element_bytes = static_cast<std::uint64_t>(bits_of(call.dtype)) / 8;
    if (call.count <= max_bytes / (blocks * element_bytes)) return {};
    const std::string words = fmt::format("{} elements of {}", call.count, to_string(call.dtype));
    return bad_argument(words + (call.is_pair() ? "" : fmt::format(" for {} ranks", ranks)) +
                        " are more bytes than an address space has");
}

Result<void> check_buffers(const Call& call, int rank) {
    if (call.count == 0) return {};
    const bool at_root = rank == call.root;
    bool sends = true, receives = true;
    if (call.what == Collective::broadcast || call.what == Collective::scatter) sends = at_root;
    if (call.what == Collective::reduce || call.what == Collective::gather) receives = at_root;
    if (call.is_pair()) {
        sends = call.sends;
        receives = !call.sends;
    }
    if (sends && call.send == nullptr) return bad_argument("the send buffer is NULL");
    if (receives && call.recv == nullptr) return bad_argument("the receive buffer is NULL");
    return {};
}

// What makes no sense is refused here: where it is part of a group, nothing of the group runs then.
Result<ncclResult_t> checked(const Request& request, Call& call) {
    auto communicator = find(request.comm);
    if (!communicator.ok()) return communicator.error();
    if (auto usable = (*communicator)->usable(); !usable.ok()) return usable.error();
    if (auto good = check_config(request.config); !good.ok()) return good.error();
    const auto dtype = dtype_of(request.type);
    if (!dtype.ok()) return dtype.error();
    call.dtype = *dtype;
    if (request.op) {
        auto reduction = (*communicator)->reduction(*request.op, *dtype);
        if (!reduction.ok()) return reduction.error();
        call.reduction = *reduction;
    }
    if (call.root < 0 || call.root >= (*communicator)->ranks())
        return bad_argument(fmt::format("{} {} is out of range: there are {} ranks",
                                        call.is_pair() ? "peer" : "root", call.root,
                                        (*communicator)->ranks()));
    if (auto good = check_count(call, (*communicator)->ranks()); !good.ok()) return good.error();
    if (auto good = check_buffers(call, (*communicator)->rank()); !good.ok()) return good.error();
    // Nobody waits for what moves nothing, so it is over: a send or receive too.
    if (call.count == 0) {
        if (auto good = (*communicator)->status(); !good.ok()) return good.error();
        return ncclSuccess;
    }
    return submit(std::move(*communicator), call);
}

ncclResult_t run(const char* name, const Request& request, Call call) noexcept {
    return answer(name, [&] { return noted(checked(request, call)); });
}

Call call_of(Collective what, const void* send, void* recv, size_t count, cudaStream_t stream, int root = 0) {
    return {.what = what, .send = send, .recv = recv, .count = count, .root = root, .stream = stream};
}

}  // namespace

extern "C" {

ncclResult_t pncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream) {
    return run("ncclAllReduce", {comm, type, op}, call_of(Collective::all_reduce, send, recv, count, stream));
}
SIDESTEP_NCCL_ALSO(AllReduce);

ncclResult_t pncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                            ncclComm_t comm, cudaStream_t stream) {
    return run("ncclBroadcast", {comm, type},
               call_of(Collective::broadcast, send, recv, count, stream, root));
}
SIDESTEP_NCCL_ALSO(Broadcast);

ncclResult_t pncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
    return run("ncclBcast", {comm, type}, call_of(Collective::broadcast, data, data, count, stream, root));
}
SIDESTEP_NCCL_ALSO(Bcast);

ncclResult_t pncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream) {
    return run("ncclReduce", {comm, type, op}, call_of(Collective::reduce, send, recv, count, stream, root));
}
SIDESTEP_NCCL_ALSO(Reduce);

ncclResult_t pncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
    return run("ncclAllGather", {comm, type}, call_of(Collective::all_gather, send, recv, count, stream));
}
SIDESTEP_NCCL_ALSO(AllGather);

ncclResult_t pncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return run("ncclReduceScatter", {comm, type, op},
               call_of(Collective::reduce_scatter, send, recv, count, stream));
}
SIDESTEP_NCCL_ALSO(ReduceScatter);

ncclResult_t pncclAlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return run("ncclAlltoAll", {comm, type}, call_of(Collective::all_to_all, send, recv, count, stream));
}
SIDESTEP_NCCL_ALSO(AlltoAll);

ncclResult_t pncclGather(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
    return run("ncclGather", {comm, type}, call_of(Collective::gather, send, recv, count, stream, root));
}
SIDESTEP_NCCL_ALSO(Gather);

ncclResult_t pncclScatter(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                          ncclComm_t comm, cudaStream_t stream) {
    return run("ncclScatter", {comm, type}, call_of(Collective::scatter, send, recv, count, stream, root));
}
SIDESTEP_NCCL_ALSO(Scatter);

ncclResult_t pncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
    Call call = call_of(Collective::send_recv, send, nullptr, count, stream, peer);
    call.sends = true;
    return run("ncclSend", {comm, type}, call);
}
SIDESTEP_NCCL_ALSO(Send);

ncclResult_t pncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
    return run("ncclRecv", {comm, type}, call_of(Collective::send_recv, nullptr, recv, count, stream, peer));
}
SIDESTEP_NCCL_ALSO(Recv);

// With a configuration for the one call.

ncclResult_t pncclAllReduceConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t* config) {
    return run("ncclAllReduceConfig", {comm, type, op, config},
               call_of(Collective::all_reduce, send, recv, count, stream));
}
SIDESTEP_NCCL_ALSO(AllReduceConfig);

ncclResult_t pncclBroadcastConfig(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
    return run("ncclBroadcastConfig", {comm, type, {}, config},
               call_of(Collective::broadcast, send, recv, count, stream, root));
}
SIDESTEP_NCCL_ALSO(BroadcastConfig);

ncclResult_t pncclReduceConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                               const ncclCollConfig_t* config) {
    return run("ncclReduceConfig", {comm, type, op, config},
               call_of(Collective::reduce, send, recv, count, stream, root));
}
SIDESTEP_NCCL_ALSO(ReduceConfig);

ncclResult_t pncclAllGatherConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
    return run("ncclAllGatherConfig", {comm, type, {}, config},
               call_of(Collective::all_gather, send, recv, count, stream));
}
SIDESTEP_NCCL_ALSO(AllGatherConfig);

ncclResult_t pncclReduceScatterConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                      const ncclCollConfig_t* config) {
    return run("ncclReduceScatterConfig", {comm, type, op, config},
               call_of(Collective::reduce_scatter, send, recv, count, stream));
}
SIDESTEP_NCCL_ALSO(ReduceScatterConfig);

ncclResult_t pncclAlltoAllConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
    return run("ncclAlltoAllConfig", {comm, type, {}, config},
               call_of(Collective::all_to_all, send, recv, count, stream));
}
SIDESTEP_NCCL_ALSO(AlltoAllConfig);

ncclResult_t pncclGatherConfig(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
    return run("ncclGatherConfig", {comm, type, {}, config},
               call_of(Collective::gather, send, recv, count, stream, root));
}
SIDESTEP_NCCL_ALSO(GatherConfig);

ncclResult_t pncclScatterConfig(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
    return run("ncclScatterConfig", {comm, type, {}, config},
               call_of(Collective::scatter, send, recv, count, stream, root));
}
SIDESTEP_NCCL_ALSO(ScatterConfig);

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                       ncclScalarResidence_t residence, ncclComm_t comm) {
    return answer("ncclRedOpCreatePreMulSum", [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        const auto dtype = dtype_of(type);
        if (!dtype.ok()) return dtype.error();
        if (op == nullptr || scalar == nullptr) return bad_argument("op or scalar is NULL");
        Reduction reduction = Reduction::of(ReduceOp::scaled_sum);
        if (residence == ncclScalarDevice) {
            reduction.device_scale = scalar;
        } else if (residence == ncclScalarHostImmediate) {
            std::memcpy(reduction.scale.data(), scalar, static_cast<std::size_t>(bits_of(*dtype)) / 8);
        } else {
            return bad_argument(fmt::format("unknown scalar residence {}", residence));
        }
        *op = (*communicator)->add_reduction(reduction, *dtype);
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(RedOpCreatePreMulSum);

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    return answer("ncclRedOpDestroy", [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        if (auto removed = (*communicator)->remove_reduction(op); !removed.ok()) return removed.error();
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(RedOpDestroy);
}
