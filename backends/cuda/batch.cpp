#include "backends/cuda/batch.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "backends/cuda/batch_table.hpp"
#include "backends/cuda/gpus.hpp"
#include "backends/cuda/kernel_image.hpp"
#include "base/try.hpp"

namespace sidestep::backends::cuda {

// The fat binary of batch_kernel.cu, made at build time.
extern const unsigned char batch_kernel_image[];

namespace {

constexpr unsigned batch_blocks_a_multiprocessor = 4;
// 10,000 x 4 KiB from pinned memory: kernel 0.85 ms, batch call 14.3 ms; 1000 x 64 KiB: 1.30 and 1.92; 400 x
// 256 KiB: 2.07 and 2.21; 100 x 1 MiB: 2.29 and 2.12 (gpu_tests Batches.WhatEachWayCosts, H200, driver
// 580.159.04).
constexpr Bytes kernel_mean = Bytes{256} << 10;
// An entry's size has 32 bits.
constexpr Bytes largest_entry = Bytes{1} << 30;

}  // namespace

Result<BatchKernel> BatchKernel::load(std::shared_ptr<const driver::CudaContext> context) {
    const driver::Cuda& cuda = context->cuda();
    BatchKernel kernel(std::move(context));
    driver::ScopedCudaContext current(*kernel.context_);
    SIDESTEP_TRY(kernel.module_, load_kernels(cuda, batch_kernel_image, "the batch kernel"));
    for (auto [function, name] : {std::pair{&kernel.small_, "sidestep_batch_small"},
                                  std::pair{&kernel.large_, "sidestep_batch_large"}}) {
        const CUresult found = cuda.cuModuleGetFunction(function, kernel.module_, name);
        SIDESTEP_CHECK(cuda.check(found, "cuModuleGetFunction"));
        // Lazy loading would make the first launch wait for the GPU, which may itself be waiting for us.
        SIDESTEP_CHECK(cuda.check(cuda.cuFuncLoad(*function), "cuFuncLoad"));
    }
    int multiprocessors = 0;
    const CUresult status = cuda.cuDeviceGetAttribute(
        &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, kernel.context_->device());
    SIDESTEP_CHECK(cuda.check(status, "cuDeviceGetAttribute"));
    kernel.max_blocks_ = static_cast<unsigned>(multiprocessors) * batch_blocks_a_multiprocessor;
    return kernel;
}

BatchKernel::BatchKernel(BatchKernel&& other) noexcept
    : context_(std::move(other.context_)),
      module_(std::exchange(other.module_, nullptr)),
      small_(other.small_),
      large_(other.large_),
      max_blocks_(other.max_blocks_) {}

BatchKernel::~BatchKernel() {
    if (!context_ || !module_) return;
    driver::ScopedCudaContext current(*context_);
    context_->cuda().cuModuleUnload(module_);
}

Result<void> BatchKernel::launch(std::span<const BatchPart> parts, CUstream stream) const {
    Bytes done = 0;  // of the first part
    while (!parts.empty()) {
        const bool few = parts.size() <= small_batch;
        SIDESTEP_TRY(const std::size_t taken, few ? launch_some<small_batch>(small_, parts, done, stream)
                                                  : launch_some<large_batch>(large_, parts, done, stream));
        parts = parts.subspan(taken);
    }
    return {};
}

// As many parts as one table holds; answers how many of them are through. `done`: bytes of the first part
// that went before, and then of the first part that is left.
template <unsigned Entries>
Result<std::size_t> BatchKernel::launch_some(CUfunction function, std::span<const BatchPart> parts,
                                             Bytes& done, CUstream stream) const {
    const auto table = std::make_unique<BatchTable<Entries>>();
    unsigned tiles = 0;
    std::size_t part = 0;
    for (; part < parts.size() && table->count < Entries;) {
        const Bytes bytes = std::min(parts[part].bytes - done, largest_entry);
        tiles += static_cast<unsigned>((bytes + batch_tile - 1) / batch_tile);
        table->entries[table->count++] = {parts[part].to + done, parts[part].from + done,
                                          static_cast<unsigned>(bytes), tiles};
        done += bytes;
        if (done < parts[part].bytes) continue;
        done = 0;
        ++part;
    }
    table->tiles = tiles;
    const unsigned blocks = std::min((tiles + batch_warps - 1) / batch_warps, max_blocks_);
    void* arguments[] = {table.get()};
    const driver::Cuda& cuda = context_->cuda();
    SIDESTEP_CHECK(cuda.check(
        cuda.cuLaunchKernel(function, blocks, 1, 1, batch_threads, 1, 1, 0, stream, arguments, nullptr),
        "cuLaunchKernel"));
    return part;
}

namespace {

Result<void> batch_call(const driver::Cuda& cuda, std::span<const BatchPart> parts, CUstream stream) {
    std::vector<CUdeviceptr> to(parts.size()), from(parts.size());
    std::vector<std::size_t> sizes(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
        to[i] = parts[i].to;
        from[i] = parts[i].from;
        sizes[i] = parts[i].bytes;
    }
    return cuda.check(cuda.batch_copy(to.data(), from.data(), sizes.data(), parts.size(), stream),
                      "cuMemcpyBatchAsync");
}

}  // namespace

Result<BatchWay> enqueue_batch(const Gpu& gpu, std::span<const BatchPart> parts, bool by_kernel,
                               CUstream stream, bool capturing) {
    const driver::Cuda& cuda = gpu.context()->cuda();
    const auto& kernel = gpu.batch_kernel();
    if (by_kernel) {
        if (!kernel) return kernel.error();
        SIDESTEP_CHECK(kernel->launch(parts, stream));
        return BatchWay::kernel;
    }
    Bytes bytes = 0;
    for (const BatchPart& part : parts) bytes += part.bytes;
    if (kernel && bytes / parts.size() < kernel_mean) {
        SIDESTEP_CHECK(kernel->launch(parts, stream));
        return BatchWay::kernel;
    }
    const bool legacy = stream == nullptr || stream == CU_STREAM_LEGACY;
    if (cuda.has_batch_copy() && !capturing && !legacy) {
        SIDESTEP_CHECK(batch_call(cuda, parts, stream));
        return BatchWay::batch_call;
    }
    for (const BatchPart& part : parts)
        SIDESTEP_CHECK(
            cuda.check(cuda.cuMemcpyAsync(part.to, part.from, part.bytes, stream), "cuMemcpyAsync"));
    return BatchWay::one_by_one;
}

}  // namespace sidestep::backends::cuda
