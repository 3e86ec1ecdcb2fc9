// Whether the kernel and the RDMA library are new enough for GPU memory to be handed to other devices.
#include <fmt/format.h>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/nvme_drives.hpp"
#include "diagnose/checks/p2pdma_mode.hpp"
#include "diagnose/checks/rdma_cards.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

const std::vector<int> dma_buf_kernel = {5, 12};  // RDMA drivers register dma-buf memory
const std::vector<int> p2pdma_kernel = {6, 2};    // programs map peer memory

}  // namespace

Outcome look_kernel(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    const topology::Fact release = topology::kernel_release(evidence.files);
    const auto numbers = version_numbers(release.value);
    if (numbers.empty()) {
        Outcome outcome = unknown("the kernel's version cannot be read");
        outcome.saw(release.source, release.known() ? release.value : "does not exist");
        outcome.remedy = "Look at it yourself.";
        outcome.command = "uname -r";
        return outcome;
    }
    const bool has_cards = !rdma_cards(evidence).empty();
    const bool has_drives = !nvme_drives(evidence.files).empty();
    Outcome outcome;
    if (has_cards && numbers < dma_buf_kernel && !cards_take_dma_buf(evidence).value_or(false)) {
        outcome = warn(
            fmt::format("kernel {} hands no dma-buf memory to network cards (5.12 does)", release.value));
    } else if (has_drives && numbers < p2pdma_kernel && !read_nvidia_fs(evidence).loaded &&
               !read_p2pdma_mode(evidence).kernel.met.value_or(false)) {
        outcome =
            warn(fmt::format("kernel {} lets no drive reach GPU memory by itself (6.2 does)", release.value));
    } else {
        outcome = pass(fmt::format("kernel {} is new enough for what this machine has", release.value));
    }
    outcome.saw(release.source, release.value);
    return outcome;
}

Outcome look_dma_buf_gpu(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    const auto has = every_gpu_has(evidence, "DMA_BUF_SUPPORTED");
    Outcome outcome;
    if (has.value_or(false)) {
        outcome = pass("every GPU can hand its memory out as dma-buf");
    } else if (!has) {
        outcome = unknown("whether the GPUs hand their memory out as dma-buf is not told");
        outcome.remedy = "Run the doctor where CUDA works, with a driver of CUDA 11.7 or newer.";
        if (!evidence.cuda.loaded) outcome.saw("libcuda.so.1", evidence.cuda.reason);
    } else if (rdma_cards(evidence).empty()) {
        return does_not_apply("a GPU hands out no dma-buf, and there is no RDMA card that would take it");
    } else {
        outcome = warn("a GPU does not hand its memory out as dma-buf");
    }
    for (const driver::CudaGpuFacts& gpu : evidence.cuda.gpus) {
        const auto found = gpu.attributes.find("DMA_BUF_SUPPORTED");
        outcome.saw(fmt::format("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED({})", gpu.bus_id),
                    found == gpu.attributes.end() ? "is not told" : fmt::format("{}", found->second));
    }
    if (outcome.verdict != Verdict::warn) return outcome;
    for (const topology::Fact& fact :
         {topology::nvidia_driver_kind(evidence.files), topology::kernel_release(evidence.files)})
        outcome.saw(fact.source, fact.known() ? fact.value : "is not shown");
    return outcome;
}

Outcome look_libibverbs(const Evidence& evidence) {
    if (const auto reason = no_gpu_and_card(evidence)) return does_not_apply(*reason);
    if (!evidence.verbs.loaded) return does_not_apply("libibverbs was not found (see no-uverbs)");
    bool opened = false;
    for (const driver::VerbsDevice& device : evidence.verbs.devices) {
        opened = opened || device.opens;
        // What read_verbs_facts() says where the library lacks the function.
        if (device.dma_buf_words.find("has no function ibv_reg_dmabuf_mr") == std::string::npos) continue;
        Outcome outcome = warn("libibverbs is too old to register dma-buf memory");
        outcome.saw("libibverbs.so.1", device.dma_buf_words);
        return outcome;
    }
    if (!opened) {
        Outcome outcome = unknown("libibverbs opened no card, so what it can do was not tried");
        outcome.saw("libibverbs.so.1",
                    evidence.verbs.reason.empty() ? "opens no card" : evidence.verbs.reason);
        outcome.remedy = "See no-uverbs.";
        return outcome;
    }
    return pass("libibverbs can register dma-buf memory").saw("libibverbs.so.1", "has ibv_reg_dmabuf_mr");
}

}  // namespace sidestep::diagnose
