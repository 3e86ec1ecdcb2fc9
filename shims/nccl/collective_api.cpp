// The exported functions that move bytes.
#include <array>
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
    if (type < 0 || type >= ncclNumTypes) return bad_argument(fmt::format("{} is no data type", type));
    return dtypes[static_cast<std::size_t>(type)];
}

struct Request {
    ncclComm_t comm;
    ncclDataType_t type;
    std::optional<ncclRedOp_t> op = {};  // of a call that combines
};

Result<ncclResult_t> checked(const Request& request, Call& call) {
    auto communicator = find(request.comm);
    if (!communicator.ok()) return communicator.error();
    if (auto usable = (*communicator)->usable(); !usable.ok()) return usable.error();
    const auto dtype = dtype_of(request.type);
    if (!dtype.ok()) return dtype.error();
    call.dtype = *dtype;
    if (request.op) {
        auto reduction = (*communicator)->reduction(*request.op, *dtype);
        if (!reduction.ok()) return reduction.error();
        call.reduction = *reduction;
    }
    if (call.root < 0 || call.root >= (*communicator)->ranks())
        return bad_argument(fmt::format("{} {} is none of the {} ranks", call.is_pair() ? "peer" : "root",
                                        call.root, (*communicator)->ranks()));
    // A send of nothing still meets a receive; a collective of nothing is over.
    if (call.count == 0 && !call.is_pair()) return ncclSuccess;
    return submit(std::move(*communicator), call);
}

ncclResult_t run(const char* name, const Request& request, Call call) noexcept {
    return answer(name, [&] { return noted(checked(request, call)); });
}

}  // namespace

extern "C" {

ncclResult_t pncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream) {
    return run(
        "ncclAllReduce", {comm, type, op},
        {.what = Collective::all_reduce, .send = send, .recv = recv, .count = count, .stream = stream});
}
SIDESTEP_NCCL_ALSO(AllReduce);

ncclResult_t pncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                            ncclComm_t comm, cudaStream_t stream) {
    return run("ncclBroadcast", {comm, type},
               {.what = Collective::broadcast,
                .send = send,
                .recv = recv,
                .count = count,
                .root = root,
                .stream = stream});
}
SIDESTEP_NCCL_ALSO(Broadcast);

ncclResult_t pncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
    return run("ncclBcast", {comm, type},
               {.what = Collective::broadcast,
                .send = data,
                .recv = data,
                .count = count,
                .root = root,
                .stream = stream});
}
SIDESTEP_NCCL_ALSO(Bcast);

ncclResult_t pncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream) {
    return run("ncclReduce", {comm, type, op},
               {.what = Collective::reduce,
                .send = send,
                .recv = recv,
                .count = count,
                .root = root,
                .stream = stream});
}
SIDESTEP_NCCL_ALSO(Reduce);

ncclResult_t pncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
    return run(
        "ncclAllGather", {comm, type},
        {.what = Collective::all_gather, .send = send, .recv = recv, .count = count, .stream = stream});
}
SIDESTEP_NCCL_ALSO(AllGather);

ncclResult_t pncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return run(
        "ncclReduceScatter", {comm, type, op},
        {.what = Collective::reduce_scatter, .send = send, .recv = recv, .count = count, .stream = stream});
}
SIDESTEP_NCCL_ALSO(ReduceScatter);

ncclResult_t pncclAlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return run(
        "ncclAlltoAll", {comm, type},
        {.what = Collective::all_to_all, .send = send, .recv = recv, .count = count, .stream = stream});
}
SIDESTEP_NCCL_ALSO(AlltoAll);

ncclResult_t pncclGather(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
    return run("ncclGather", {comm, type},
               {.what = Collective::gather,
                .send = send,
                .recv = recv,
                .count = count,
                .root = root,
                .stream = stream});
}
SIDESTEP_NCCL_ALSO(Gather);

ncclResult_t pncclScatter(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                          ncclComm_t comm, cudaStream_t stream) {
    return run("ncclScatter", {comm, type},
               {.what = Collective::scatter,
                .send = send,
                .recv = recv,
                .count = count,
                .root = root,
                .stream = stream});
}
SIDESTEP_NCCL_ALSO(Scatter);

ncclResult_t pncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
    return run("ncclSend", {comm, type},
               {.what = Collective::send_recv,
                .send = send,
                .count = count,
                .root = peer,
                .sends = true,
                .stream = stream});
}
SIDESTEP_NCCL_ALSO(Send);

ncclResult_t pncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
    return run("ncclRecv", {comm, type},
               {.what = Collective::send_recv, .recv = recv, .count = count, .root = peer, .stream = stream});
}
SIDESTEP_NCCL_ALSO(Recv);

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
            return bad_argument(fmt::format("{} is no residence of a scalar", residence));
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
