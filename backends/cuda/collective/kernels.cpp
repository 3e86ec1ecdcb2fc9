#include "backends/cuda/collective/kernels.hpp"

#include "backends/cuda/kernel_image.hpp"
#include "base/try.hpp"
#include "protocol/pair_blocks.hpp"

namespace sidestep::backends::cuda {

// The fat binaries, made at build time.
extern const unsigned char combine_i8_image[];
extern const unsigned char combine_u8_image[];
extern const unsigned char combine_i32_image[];
extern const unsigned char combine_u32_image[];
extern const unsigned char combine_i64_image[];
extern const unsigned char combine_u64_image[];
extern const unsigned char combine_f16_image[];
extern const unsigned char combine_f32_image[];
extern const unsigned char combine_f64_image[];
extern const unsigned char combine_bf16_image[];
extern const unsigned char combine_f8_e4m3_image[];
extern const unsigned char combine_f8_e5m2_image[];
extern const unsigned char move_image[];
extern const unsigned char ring_image[];

namespace {

using protocol::Combine;
using protocol::Element;
using protocol::Shape;

// In the order of protocol::Element.
const std::array<const unsigned char*, protocol::elements> combine_images{
    combine_i8_image,  combine_u8_image,   combine_i32_image,     combine_u32_image,
    combine_i64_image, combine_u64_image,  combine_f16_image,     combine_f32_image,
    combine_f64_image, combine_bf16_image, combine_f8_e4m3_image, combine_f8_e5m2_image};

constexpr std::array<const char*, protocol::elements> ring_names{
    "sidestep_ring_i8",  "sidestep_ring_u8",   "sidestep_ring_i32",     "sidestep_ring_u32",
    "sidestep_ring_i64", "sidestep_ring_u64",  "sidestep_ring_f16",     "sidestep_ring_f32",
    "sidestep_ring_f64", "sidestep_ring_bf16", "sidestep_ring_f8_e4m3", "sidestep_ring_f8_e5m2"};

}  // namespace

Result<std::shared_ptr<const CollectiveKernels>> CollectiveKernels::load(
    std::shared_ptr<const driver::CudaContext> context) {
    std::shared_ptr<CollectiveKernels> kernels(new CollectiveKernels(std::move(context)));
    driver::ScopedCudaContext current(*kernels->context_);
    SIDESTEP_CHECK(kernels->load_all());
    return std::shared_ptr<const CollectiveKernels>(std::move(kernels));
}

Result<void> CollectiveKernels::load_all() {
    int major = 0;
    const CUresult status = context_->cuda().cuDeviceGetAttribute(
        &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, context_->device());
    SIDESTEP_CHECK(context_->cuda().check(status, "cuDeviceGetAttribute"));
    overlaps_ = major >= 9;
    for (unsigned e = 0; e < protocol::elements; ++e) {
        SIDESTEP_CHECK(load_module(combine_images[e]));
        SIDESTEP_CHECK(find(combining_[e].packets[0], "sidestep_packets_4"));
        SIDESTEP_CHECK(find(combining_[e].packets[1], "sidestep_packets_16"));
        SIDESTEP_CHECK(find(combining_[e].coalesced[0], "sidestep_coalesced_4"));
        SIDESTEP_CHECK(find(combining_[e].coalesced[1], "sidestep_coalesced_16"));
        if (protocol::has_lamport(static_cast<Element>(e))) {
            SIDESTEP_CHECK(find(combining_[e].lamport[0], "sidestep_lamport_4"));
            SIDESTEP_CHECK(find(combining_[e].lamport[1], "sidestep_lamport_16"));
            SIDESTEP_CHECK(find(combining_[e].some_lamport[0], "sidestep_some_lamport_4"));
            SIDESTEP_CHECK(find(combining_[e].some_lamport[1], "sidestep_some_lamport_16"));
        }
        SIDESTEP_CHECK(find(combining_[e].lines[0], "sidestep_lines_4"));
        SIDESTEP_CHECK(find(combining_[e].lines[1], "sidestep_lines_16"));
        SIDESTEP_CHECK(find(combining_[e].some_lines[0], "sidestep_some_lines_4"));
        SIDESTEP_CHECK(find(combining_[e].some_lines[1], "sidestep_some_lines_16"));
        SIDESTEP_CHECK(find(combining_[e].slices[0], "sidestep_slices_4"));
        SIDESTEP_CHECK(find(combining_[e].slices[1], "sidestep_slices_16"));
    }
    SIDESTEP_CHECK(load_module(move_image));
    SIDESTEP_CHECK(find(lines_copy_[0], "sidestep_lines_copy_4"));
    SIDESTEP_CHECK(find(lines_copy_[1], "sidestep_lines_copy_16"));
    SIDESTEP_CHECK(find(slices_copy_, "sidestep_slices_copy"));
    SIDESTEP_CHECK(find(pairs_, "sidestep_pairs"));
    SIDESTEP_CHECK(find(many_pairs_, "sidestep_many_pairs"));
    SIDESTEP_CHECK(find(eager_pairs_, "sidestep_eager_pairs"));
    SIDESTEP_CHECK(load_module(ring_image));
    for (unsigned e = 0; e < protocol::elements; ++e) SIDESTEP_CHECK(find(rings_[e], ring_names[e]));
    return find(ring_move_, "sidestep_ring_move");
}

Result<void> CollectiveKernels::load_module(const unsigned char* image) {
    SIDESTEP_TRY(modules_[loaded_], load_kernels(context_->cuda(), image, "a group"));
    ++loaded_;
    return {};
}

// In the module that was loaded last.
Result<void> CollectiveKernels::find(CUfunction& function, const char* name) {
    const driver::Cuda& cuda = context_->cuda();
    CUresult status = cuda.cuModuleGetFunction(&function, modules_[loaded_ - 1], name);
    SIDESTEP_CHECK(cuda.check(status, "cuModuleGetFunction"));
    return cuda.check(cuda.cuFuncLoad(function), "cuFuncLoad");
}

CollectiveKernels::~CollectiveKernels() {
    driver::ScopedCudaContext current(*context_);
    for (unsigned i = 0; i < loaded_; ++i) context_->cuda().cuModuleUnload(modules_[i]);
}

CUfunction CollectiveKernels::kernel(const protocol::CollectiveTask& task, unsigned ranks, bool plain,
                                     unsigned blocks) const {
    const unsigned size = ranks <= 4 ? 0 : 1;
    // What combines nothing moves bytes, whatever they are.
    const bool combines = task.combine != Combine::none;
    const Element element = combines ? task.element : Element::u8;
    const Combining& of_element = combining_[static_cast<unsigned>(element)];
    switch (task.shape) {
        case Shape::slices:
        case Shape::pushed_slices:
            return combines ? of_element.slices[size] : slices_copy_;
        case Shape::lamport:
            return plain ? of_element.lamport[size] : of_element.some_lamport[size];
        case Shape::lines:
            if (!combines) return lines_copy_[size];
            return plain ? of_element.lines[size] : of_element.some_lines[size];
        case Shape::pairs:
            return plain                                                     ? eager_pairs_
                   : protocol::are_many(blocks, ranks, task.pair_blocks_max) ? many_pairs_
                                                                             : pairs_;
        case Shape::ring:
            return combines ? rings_[static_cast<unsigned>(element)] : ring_move_;
        case Shape::coalesced:
            return of_element.coalesced[size];
        default:
            return of_element.packets[size];
    }
}

bool CollectiveKernels::may_come_early(const protocol::CollectiveTask& task, unsigned blocks) const {
    constexpr unsigned max_early_blocks = 32;
    return overlaps_ && blocks <= max_early_blocks && task.shape != Shape::ring;
}

}  // namespace sidestep::backends::cuda
