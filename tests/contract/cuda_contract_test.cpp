// The CUDA backend on the GPUs of the machine the test runs on.
#include "backend_contract.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "driver/cuda_handles.hpp"

namespace sidestep::contract {
namespace {

Result<Topology> live() {
    return Topology::live();
}

// Why the contract cannot be tested here; empty if it can.
std::string reason_to_skip() {
    const auto topology = live();
    if (!topology) return topology.error().to_string();
    const auto support = backends::cuda::create()->probe(*topology);
    return support.usable ? "" : support.reason;
}

// Why no bytes are moved from one GPU to another here; empty if they are.
std::string reason_for_one_gpu() {
    const auto topology = live();
    if (!topology) return topology.error().to_string();
    if (topology->gpu_count() < 2) return "copies between GPUs need two GPUs, this machine has one";
    const PeerAccess access = topology->peer_access(0, 1);
    return access.allowed ? "" : "gpu:0 may not reach gpu:1: " + access.reason;
}

// Runs `call` with the context current whose memory lies at the address.
template <typename Call>
void in_context_of(const void* address, Call call) {
    const auto cuda = driver::Cuda::load().value();
    int ordinal = 0;
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    void* value = &ordinal;
    ASSERT_EQ(cuda->cuPointerGetAttributes(1, &name, &value, reinterpret_cast<CUdeviceptr>(address)),
              CUDA_SUCCESS);
    const auto context = driver::CudaContext::retain(cuda, ordinal).value();
    const driver::ScopedCudaContext current(*context);
    ASSERT_EQ(call(*cuda), CUDA_SUCCESS);
    ASSERT_EQ(cuda->cuCtxSynchronize(), CUDA_SUCCESS);
}

void poke(void* gpu_address, const void* from, Bytes bytes) {
    in_context_of(gpu_address, [&](const driver::Cuda& cuda) {
        return cuda.cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(gpu_address), from, bytes);
    });
}

void peek(void* to, const void* gpu_address, Bytes bytes) {
    in_context_of(gpu_address, [&](const driver::Cuda& cuda) {
        return cuda.cuMemcpyDtoH(to, reinterpret_cast<CUdeviceptr>(gpu_address), bytes);
    });
}

const End pageable{Place::host(), MemoryKind::pageable};
const End pinned{Place::host(), MemoryKind::pinned};
const End pinned_on_node{Place::host(0), MemoryKind::pinned};

End gpu(int index, MemoryKind kind = MemoryKind::device) {
    return {Place::gpu(index), kind};
}

// With one GPU, both ends lie on it.
const std::string one_gpu = reason_for_one_gpu();
const int other = one_gpu.empty() ? 1 : 0;

INSTANTIATE_TEST_SUITE_P(Contract, BackendContract,
                         testing::Values(BackendUnderTest{
                             .name = "Cuda",
                             .make = backends::cuda::create,
                             .topology = live,
                             .pairs = {{pinned, gpu(0)},
                                       {pinned_on_node, gpu(other)},
                                       {gpu(other), pinned},
                                       {gpu(0), gpu(0)},
                                       {gpu(0), gpu(other)},
                                       {gpu(other, MemoryKind::pool), gpu(0, MemoryKind::vmm)},
                                       {gpu(other, MemoryKind::vmm), gpu(0, MemoryKind::pool)},
                                       {gpu(0, MemoryKind::managed), gpu(other)},
                                       {pageable, gpu(0)},
                                       {pinned, pinned}},
                             .poke_gpu = poke,
                             .peek_gpu = peek,
                             .skip = reason_to_skip(),
                             .without_peers = one_gpu,
                         }),
                         NameOfBackend());

}  // namespace
}  // namespace sidestep::contract
