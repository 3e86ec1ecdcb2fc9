#include "backends/cuda/cuda_backend.hpp"

#include <mutex>

#include <fmt/format.h>

#include "backends/cuda/allocate.hpp"
#include "backends/cuda/batch.hpp"
#include "backends/cuda/collective/seats.hpp"
#include "backends/cuda/dma_buf.hpp"
#include "backends/cuda/gate.hpp"
#include "backends/cuda/gpus.hpp"
#include "backends/cuda/ipc.hpp"
#include "backends/cuda/offers.hpp"
#include "backends/cuda/pin.hpp"
#include "backends/cuda/pointer.hpp"
#include "backends/cuda/reach.hpp"
#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

using backend::Piece;
using backend::Progress;
using backend::Support;

class CudaRegistration : public backend::Registration {
public:
    CudaRegistration(Buffer buffer, Pointer pointer, Gpu* gpu)
        : Registration(std::move(buffer)), pointer_(pointer), gpu_(gpu) {}

    const Pointer& pointer() const { return pointer_; }
    Gpu* gpu() const { return gpu_; }  // null: host memory
    CUdeviceptr at(Bytes offset) const { return reinterpret_cast<CUdeviceptr>(buffer().address()) + offset; }
    bool holds(Bytes offset, Bytes size) const {
        return offset <= buffer().size() && size <= buffer().size() - offset;
    }

    std::vector<std::string> notes() const override {
        const char* note = note_.load(std::memory_order_acquire);
        return note ? std::vector<std::string>{note} : std::vector<std::string>{};
    }
    void set_note(const char* constant) { note_.store(constant, std::memory_order_release); }

    // Whether grant() was done for that GPU, for the first 64 of them.
    bool granted(const Gpu& gpu) const { return (granted_.load(std::memory_order_acquire) & bit(gpu)) != 0; }
    // Only its own GPU reaches it, found by grant().
    bool only_its_own() const { return only_its_own_.load(std::memory_order_acquire); }
    void set_only_its_own() { only_its_own_.store(true, std::memory_order_release); }
    void set_granted(const Gpu& gpu) { granted_.fetch_or(bit(gpu), std::memory_order_release); }

private:
    static std::uint64_t bit(const Gpu& gpu) { return gpu.index() < 64 ? 1ull << gpu.index() : 0; }
    Pointer pointer_;
    Gpu* gpu_;
    std::atomic<std::uint64_t> granted_{0};
    std::atomic<bool> only_its_own_{false};
    std::atomic<const char*> note_{nullptr};
};

// A piece with everything decided: which GPU carries it out and with which kind of stream.
struct Work {
    CudaRegistration* from = nullptr;
    CudaRegistration* to = nullptr;
    CUdeviceptr source = 0;
    CUdeviceptr target = 0;
    Bytes size = 0;
    Gpu* gpu = nullptr;
    bool only_there = false;   // no other GPU could carry it out
    Mark small = Mark::later;  // of a small one
    Traffic traffic = Traffic::local;
    std::span<const BatchPart> parts = {};  // of a batch: instead of source, target and size
    bool capturing = false;                 // the stream is
};

class CudaBackend final : public backend::Backend,
                          public backend::Allocator,
                          public backend::Batcher,
                          public backend::Sharer,
                          public backend::GpuAddresses,
                          public backend::Streams,
                          public backend::DmaBufs {
public:
    std::string_view name() const override { return "cuda"; }
    Support probe(const Topology& topology) override;
    std::vector<backend::Capability> capabilities() const override {
        return cuda::capabilities(!cuda_ || cuda_->has_batch_copy());
    }
    backend::Allocator* allocator() override { return this; }
    backend::Batcher* batcher() override { return this; }
    backend::Sharer* sharer() override { return this; }
    backend::GpuAddresses* gpu_addresses() override { return this; }
    backend::Seats* seats() override { return seats_.get(); }
    backend::Streams* streams() override { return this; }
    backend::MemorySet allocates(PlaceKind kind) const override;
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override;
    Result<backend::Description> locate(const void* address, Bytes bytes) override {
        return cuda::locate(*gpus_, address, bytes);
    }
    Result<Allocation> allocate(const Place& place, Bytes bytes, MemoryKind kind) override;
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override;
    Result<Progress> start(const Piece& piece, backend::Flight& flight) override;
    Result<Progress> start_batch(std::span<const Piece> pieces, backend::Flight& flight) override;
    bool look() override;
    Result<std::shared_ptr<void>> pin(const Buffer& buffer) override { return pin_host(*gpus_, buffer); }
    Result<std::unique_ptr<backend::Gate>> gate(void* stream) override;
    std::optional<std::uint64_t> stream_key(void* stream) override;
    Result<std::optional<backend::Exported>> share(const Buffer& buffer) override;
    Result<std::optional<Allocation>> open(const backend::Exported& exported) override {
        return ipc_->open(exported);
    }
    Result<backend::DmaBuf> dma_buf(const Buffer& memory) override;
    Result<void> see_writes(const Place& gpu) override { return see_card_writes(*gpus_, gpu); }
    Result<Allocation> scratch(const Place& gpu, Bytes bytes) override {
        return allocate(gpu, bytes, MemoryKind::device);
    }
    Result<void> copy_in(const Buffer& scratch, const void* from) override {
        return copy_to_gpu(*gpus_, scratch, from);
    }
    Result<void> copy_out(const Buffer& scratch, void* to) override {
        return copy_from_gpu(*gpus_, scratch, to);
    }

private:
    Result<Work> plan(const Piece& piece) const;
    Result<void> make_reachable(Work& work);
    Result<void> enqueue(const Work& work, CUstream stream) const;
    Result<void> enqueue_parts(const Work& work, CUstream stream) const;
    Result<void> capture(Work work, const CallersStream& stream) const;
    Result<Progress> launch(const Work& work, backend::Flight& flight) const;
    Result<Progress> launch(const Work& work, CUstream stream, Mark mark, backend::Flight& flight) const;
    Result<Progress> launch_on_callers_stream(Work work, void* stream, backend::Flight& flight);
    Result<Progress> launch_beside(const Work& work, const CallersStream& stream,
                                   backend::Flight& flight) const;
    Result<Enqueued*> launch(const Work& work, CUstream stream, Mark mark) const;

    std::shared_ptr<const driver::Cuda> cuda_;
    std::unique_ptr<Gpus> gpus_;
    std::unique_ptr<Peers> peers_;
    std::mutex grants_;  // held while the access of a mapping or pool is changed
    std::shared_ptr<GateWords> gate_words_;
    std::unique_ptr<Ipc> ipc_;
    std::unique_ptr<Seats> seats_;
};

Support CudaBackend::probe(const Topology& topology) {
    if (topology.emulated())
        return Support::no("the machine is a model: its GPUs are not in this computer",
                           "use the live machine for real GPUs");
    auto cuda = driver::Cuda::load();
    if (!cuda) return Support::no(cuda.error().message, cuda.error().hint);
    auto gpus = Gpus::find(*cuda, topology);
    if (!gpus) return Support::no(gpus.error().message, gpus.error().hint);
    cuda_ = *cuda;
    gpus_ = std::move(*gpus);
    peers_ = std::make_unique<Peers>(gpus_->end());
    gate_words_ = std::make_shared<GateWords>(cuda_);
    ipc_ = std::make_unique<Ipc>(*gpus_);
    seats_ = std::make_unique<Seats>(*gpus_, *peers_, grants_, *ipc_, topology);
    return Support::yes(gpus_->summary());
}

backend::MemorySet CudaBackend::allocates(PlaceKind kind) const {
    if (kind == PlaceKind::host) return {MemoryKind::pinned};
    if (kind == PlaceKind::gpu)
        return {MemoryKind::device, MemoryKind::pool, MemoryKind::vmm, MemoryKind::managed};
    return {};
}

Result<std::optional<backend::Description>> CudaBackend::describe(const Buffer& buffer) {
    if (buffer.place().is_file()) return std::optional<backend::Description>();
    SIDESTEP_TRY(const auto pointer, look_up(*gpus_, buffer));
    if (!pointer) return std::optional<backend::Description>();
    backend::Description description;
    description.place = buffer.place();
    description.memory = pointer->kind;
    description.size = buffer.size();
    description.identity = pointer->identity;
    return std::optional(std::move(description));
}

Result<Allocation> CudaBackend::allocate(const Place& place, Bytes bytes, MemoryKind kind) {
    if (bytes == 0)
        return Error{ErrorCode::invalid_argument, "0 bytes cannot be allocated", place.to_string(), {}};
    if (!allocates(place.kind()).has(kind))
        return Error{ErrorCode::unsupported,
                     fmt::format("the cuda backend allocates no {} memory there", to_string(kind)),
                     place.to_string(),
                     {}};
    if (place.is_host()) return allocate_pinned(*gpus_, place.index(), bytes);
    SIDESTEP_TRY(Gpu * gpu, gpus_->open(place.index()));
    return allocate_on_gpu(*gpu, bytes, kind);
}

Result<std::unique_ptr<backend::Registration>> CudaBackend::attach(const Buffer& buffer,
                                                                   const backend::AttachOptions&) {
    if (buffer.place().is_file())
        return Error{ErrorCode::unsupported, "the cuda backend reads no files", buffer.to_string(), {}};
    SIDESTEP_TRY(const auto pointer, look_up(*gpus_, buffer));
    if (!pointer)
        return Error{ErrorCode::unsupported, "a GPU's copy engine cannot reach pageable host memory",
                     buffer.to_string(), "stage it through pinned memory, or pin it (cudaHostRegister)"};
    Gpu* gpu = nullptr;
    if (buffer.place().is_gpu()) {
        SIDESTEP_TRY(gpu, gpus_->open(buffer.place().index()));
    }
    std::unique_ptr<backend::Registration> registration =
        std::make_unique<CudaRegistration>(buffer, *pointer, gpu);
    return registration;
}

CUstream stream_of(const Work& work) {
    if (work.traffic == Traffic::to_gpu) return work.gpu->link_stream(work.traffic, work.from, work.size);
    if (work.traffic == Traffic::to_host) return work.gpu->link_stream(work.traffic, work.to, work.size);
    return work.gpu->stream(work.traffic);
}

Error out_of_reach(const Piece& piece, std::string_view engine) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("the {} does not go from {} to {}", engine, piece.from->buffer().place().to_string(),
                    piece.to->buffer().place().to_string()),
        "cuda",
        {}};
}

// Which GPU carries a piece out. Copy engines write to a peer (396 GB/s against 394 when they read), the
// kernel reads from it (376 against 370; nvbandwidth 0.8 on H200).
Result<Work> CudaBackend::plan(const Piece& piece) const {
    Work work;
    work.from = static_cast<CudaRegistration*>(piece.from);
    work.to = static_cast<CudaRegistration*>(piece.to);
    work.size = piece.size;
    if (piece.awaited) work.small = Mark::awaited;
    if (!work.from->holds(piece.from_offset, piece.size) || !work.to->holds(piece.to_offset, piece.size))
        return Error{ErrorCode::internal, "a piece reaches past its buffer", "cuda", {}};
    work.source = work.from->at(piece.from_offset);
    work.target = work.to->at(piece.to_offset);
    Gpu* const source = work.from->gpu();
    Gpu* const target = work.to->gpu();
    bool reached = false;
    switch (piece.capability) {
        case host_to_gpu:
            reached = !source && target;
            work.gpu = target;
            work.traffic = Traffic::to_gpu;
            break;
        case gpu_to_host:
            reached = source && !target;
            work.gpu = source;
            work.traffic = Traffic::to_host;
            break;
        case peer_copy:
        case peer_kernel:
            reached = source && target && source != target;
            work.gpu = piece.capability == peer_copy ? source : target;
            work.traffic = piece.capability == peer_copy ? Traffic::to_peer : Traffic::kernel;
            break;
        case local_copy:
        case local_kernel:
            reached = source && source == target;
            work.gpu = source;
            work.traffic = piece.capability == local_copy ? Traffic::local : Traffic::kernel;
            break;
        default:
            break;
    }
    if (!reached) return out_of_reach(piece, is_kernel(piece.capability) ? "kernel" : "copy engine");
    return work;
}

// Lets the GPU of one end carry the work out.
Result<void> carry_out_at(Work& work, const CudaRegistration& end) {
    if (work.only_there && work.gpu != end.gpu())
        return Error{ErrorCode::unsupported,
                     "both ends are memory of other processes, which only the GPU they lie on can reach",
                     fmt::format("{} to {}", work.from->buffer().to_string(), work.to->buffer().to_string()),
                     "copy through memory of this process"};
    work.gpu = end.gpu();
    work.only_there = true;
    return {};
}

// Peer access for cuMemAlloc memory; pools and mappings have access lists of their own.
Result<void> CudaBackend::make_reachable(Work& work) {
    Gpu* const source = work.from->gpu();
    Gpu* const target = work.to->gpu();
    if (!source || !target || source == target) return {};
    SIDESTEP_CHECK(peers_->enable(*source, *target));
    for (auto [end, other] : {std::pair{work.from, target}, std::pair{work.to, source}}) {
        if (end->granted(*other)) continue;
        if (end->only_its_own()) {
            SIDESTEP_CHECK(carry_out_at(work, *end));
            continue;
        }
        // Two threads that set the access of one mapping at a time disturb each other: one gets
        // CUDA_ERROR_ALREADY_MAPPED, the other faults (seen on H200, driver 580.159.04).
        std::lock_guard lock(grants_);
        SIDESTEP_TRY(const bool granted, grant(*other, *end->gpu(), end->buffer(), end->pointer()));
        if (granted) {
            end->set_granted(*other);
        } else {
            end->set_only_its_own();
            SIDESTEP_CHECK(carry_out_at(work, *end));
        }
    }
    return {};
}

// The context of work.gpu is current.
Result<void> CudaBackend::enqueue(const Work& work, CUstream stream) const {
    if (!work.parts.empty()) return enqueue_parts(work, stream);
    if (work.traffic != Traffic::kernel)
        return cuda_->check(cuda_->cuMemcpyAsync(work.target, work.source, work.size, stream),
                            "cuMemcpyAsync");
    const auto& kernel = work.gpu->kernel();
    if (!kernel) return kernel.error();
    return kernel->launch(work.target, work.source, work.size, stream);
}

Result<void> CudaBackend::enqueue_parts(const Work& work, CUstream stream) const {
    const bool by_kernel = work.traffic == Traffic::kernel;
    SIDESTEP_TRY(const BatchWay way, enqueue_batch(*work.gpu, work.parts, by_kernel, stream, work.capturing));
    if (by_kernel || way == BatchWay::batch_call) return {};
    const char* how = way == BatchWay::kernel
                          ? "a kernel carried copies meant for the copy engine, which takes "
                            "longer over many small ones"
                          : "copies went to the copy engine one by one: "
                            "the driver's batch call is not available here";
    work.to->set_note(how);
    return {};
}

Error at_ends(const Work& work, Error error) {
    error.where = fmt::format("{} to {}", work.from->buffer().to_string(), work.to->buffer().to_string());
    return error;
}

// Enqueues the work and, unless that can wait, the event that ends it on a stream of work.gpu's context. What fails when a
// part of it is enqueued, which may be long before that part runs, is told at its end.
Result<Enqueued*> CudaBackend::launch(const Work& work, CUstream stream, Mark mark) const {
    driver::ScopedCudaContext current(*work.gpu->context());
    SIDESTEP_TRY(Enqueued * made, work.gpu->in_flight().take(stream, mark));
    const auto enqueued = enqueue(work, stream);
    if (!enqueued) {
        const Error error = at_ends(work, enqueued.error());
        if (work.parts.empty()) {  // a single piece is enqueued whole or not at all
            work.gpu->in_flight().give_back(made);
            return error;
        }
        made->failure.reset(new Failure{error});
    }
    const CUresult status = work.gpu->in_flight().mark(*made, mark);
    if (status != CUDA_SUCCESS && !made->failure)
        made->failure.reset(new Failure{at_ends(work, cuda_->error(status, "cuEventRecord"))});
    return made;
}

Result<Progress> CudaBackend::launch(const Work& work, CUstream stream, Mark mark,
                                     backend::Flight& flight) const {
    SIDESTEP_TRY(Enqueued * made, launch(work, stream, mark));
    made->flight = &flight;
    work.gpu->in_flight().add(made);
    return Progress::pending;
}

// On a stream of the GPU's.
Result<Progress> CudaBackend::launch(const Work& work, backend::Flight& flight) const {
    const bool is_small = work.parts.empty() && work.size <= Gpu::small;
    return launch(work, stream_of(work), is_small ? work.small : Mark::now, flight);
}

// A stream of another context than the one that carries the piece out: the piece goes on a stream of its
// own, which waits for the caller's, and the caller's waits for the piece.
Result<Progress> CudaBackend::launch_beside(const Work& work, const CallersStream& callers,
                                            backend::Flight& flight) const {
    SIDESTEP_TRY(auto own, driver::CudaStream::create(work.gpu->context()));
    {
        driver::ScopedCudaContext current(*cuda_, callers.context);
        SIDESTEP_TRY(auto before, driver::CudaEvent::create(cuda_));
        CUresult status = cuda_->cuEventRecord(before.get(), callers.stream);
        SIDESTEP_CHECK(cuda_->check(status, "cuEventRecord"));
        driver::ScopedCudaContext mine(*work.gpu->context());
        status = cuda_->cuStreamWaitEvent(own.get(), before.get(), CU_EVENT_WAIT_DEFAULT);
        SIDESTEP_CHECK(cuda_->check(status, "cuStreamWaitEvent"));
    }
    SIDESTEP_TRY(Enqueued * made, launch(work, own.get(), Mark::now));
    made->flight = &flight;
    if (made->told == Told::by_stream) {
        made->failure->stream.emplace(std::move(own));
    } else {
        driver::ScopedCudaContext current(*cuda_, callers.context);
        const CUresult status = cuda_->cuStreamWaitEvent(callers.stream, made->event, CU_EVENT_WAIT_DEFAULT);
        if (status != CUDA_SUCCESS && !made->failure)
            made->failure.reset(new Failure{cuda_->error(status, "cuStreamWaitEvent", "caller's stream")});
    }
    work.gpu->in_flight().add(made);
    return Progress::pending;
}

Result<Progress> CudaBackend::launch_on_callers_stream(Work work, void* stream, backend::Flight& flight) {
    SIDESTEP_TRY(const auto callers, callers_stream(*cuda_, stream, work.gpu->context()->get()));
    // Either end of a peer copy can carry it out; better the one whose stream it is.
    for (Gpu* end : {work.from->gpu(), work.to->gpu()})
        if (end && end->context()->get() == callers.context && !work.only_there) work.gpu = end;
    if (callers.capturing) {
        SIDESTEP_CHECK(capture(work, callers));
        return Progress::done;
    }
    if (work.gpu->context()->get() == callers.context) return launch(work, callers.stream, Mark::now, flight);
    return launch_beside(work, callers, flight);
}

// The work becomes a node of a graph. There is no end to look for: nobody can ask after an event that is recorded in a
// capture.
Result<void> CudaBackend::capture(Work work, const CallersStream& callers) const {
    if (work.gpu->context()->get() != callers.context)
        return Error{
            ErrorCode::unsupported,
            "the stream that is captured into a graph belongs to a GPU that takes no part in the copy",
            fmt::format("{} to {}", work.from->buffer().to_string(), work.to->buffer().to_string()),
            "capture a stream of one of the copy's GPUs"};
    work.capturing = true;
    driver::ScopedCudaContext current(*work.gpu->context());
    return enqueue(work, callers.stream);
}

Result<Progress> CudaBackend::start(const Piece& piece, backend::Flight& flight) {
    SIDESTEP_TRY(Work work, plan(piece));
    SIDESTEP_CHECK(make_reachable(work));
    if (piece.stream) return launch_on_callers_stream(work, piece.stream, flight);
    return launch(work, flight);
}

// The pieces share an engine, and the GPU that it belongs to.
Result<Progress> CudaBackend::start_batch(std::span<const Piece> pieces, backend::Flight& flight) {
    Work work;
    std::vector<BatchPart> parts;
    parts.reserve(pieces.size());
    for (const Piece& piece : pieces) {
        SIDESTEP_TRY(Work one, plan(piece));
        SIDESTEP_CHECK(make_reachable(one));
        if (work.gpu != nullptr && one.gpu != work.gpu && one.only_there == work.only_there)
            return Error{ErrorCode::unsupported, "no GPU reaches all memory of the batch", "cuda", {}};
        parts.push_back({one.target, one.source, one.size});
        // Either GPU reaches both ends of the other pieces.
        if (work.gpu == nullptr || (one.only_there && !work.only_there)) work = one;
    }
    if (parts.empty()) return Progress::done;
    work.parts = parts;
    if (pieces[0].stream) return launch_on_callers_stream(work, pieces[0].stream, flight);
    return launch(work, flight);
}

bool CudaBackend::look() {
    return gpus_->look();
}

Result<std::unique_ptr<backend::Gate>> CudaBackend::gate(void* stream) {
    SIDESTEP_TRY(const auto callers, callers_stream(*cuda_, stream, nullptr));
    return gate_words_->put(*gpus_, callers);
}

std::optional<std::uint64_t> CudaBackend::stream_key(void* stream) {
    const auto callers = callers_stream(*cuda_, stream, nullptr);
    if (!callers || callers->capturing) return std::nullopt;
    driver::ScopedCudaContext current(*cuda_, callers->context);
    unsigned long long number = 0;  // no other stream of the process ever has it
    if (cuda_->cuStreamGetId(callers->stream, &number) != CUDA_SUCCESS) return std::nullopt;
    return number;
}

Result<std::optional<backend::Exported>> CudaBackend::share(const Buffer& buffer) {
    if (!buffer.place().is_host() && !buffer.place().is_gpu()) return std::optional<backend::Exported>();
    SIDESTEP_TRY(const auto pointer, look_up(*gpus_, buffer));
    if (!pointer) return std::optional<backend::Exported>();
    auto exported = ipc_->share(buffer, *pointer);
    if (exported) return std::optional(std::move(*exported));
    Error error = exported.error();
    if (error.where.empty()) error.where = buffer.to_string();
    return error;
}

Result<backend::DmaBuf> CudaBackend::dma_buf(const Buffer& memory) {
    SIDESTEP_TRY(const auto pointer, look_up(*gpus_, memory));
    if (pointer && memory.place().is_gpu()) return export_dma_buf(*gpus_, memory, *pointer);
    return Error{ErrorCode::unsupported, "it is no memory of a GPU", memory.to_string(), {}};
}

}  // namespace

std::unique_ptr<backend::Backend> create() {
    return std::make_unique<CudaBackend>();
}

}  // namespace sidestep::backends::cuda
