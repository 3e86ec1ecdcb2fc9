#include "tests/gpu/collective_rig.hpp"

#include <dlfcn.h>

#include <chrono>
#include <thread>

#include "backends/cuda/collective/collective_seat.hpp"

namespace sidestep::gpu_tests {
namespace {

Machine& machine() {
    return Machine::get();
}

// The context of the GPU whose memory it is: other GPUs may not reach it yet.
const driver::CudaContext& context_of(const void* gpu) {
    int ordinal = -1;
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    void* value = &ordinal;
    driver::ScopedCudaContext current(machine().context(0));
    expect_success(
        machine().cuda().cuPointerGetAttributes(1, &name, &value, reinterpret_cast<CUdeviceptr>(gpu)),
        "cuPointerGetAttributes");
    for (int index = 0; index < machine().gpus(); ++index)
        if (machine().context(index).device() == ordinal) return machine().context(index);
    return machine().context(0);
}

// Made before anything that tests keep until the program ends, so that it goes after them.
class MachineFirst : public ::testing::Environment {
public:
    void SetUp() override { machine(); }
};
[[maybe_unused]] const auto* const machine_first = ::testing::AddGlobalTestEnvironment(new MachineFirst);

class CudaRig : public collective_seat::Rig {
public:
    explicit CudaRig(unsigned ranks) {
        for (unsigned rank = 0; rank < ranks; ++rank) {
            driver::ScopedCudaContext current(machine().context(gpu_of(rank)));
            CUstream stream = nullptr;
            expect_success(machine().cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                           "cuStreamCreate");
            streams_.push_back(stream);
        }
    }
    ~CudaRig() override {
        for (unsigned rank = 0; rank < streams_.size(); ++rank) {
            driver::ScopedCudaContext current(machine().context(gpu_of(rank)));
            machine().cuda().cuStreamDestroy(streams_[rank]);
        }
    }

    backend::Backend& backend() override { return machine().backend(); }
    void write(void* gpu, const void* host, std::size_t bytes) override {
        if (bytes == 0) return;
        driver::ScopedCudaContext current(context_of(gpu));
        expect_success(machine().cuda().cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(gpu), host, bytes),
                       "cuMemcpyHtoD");
        expect_success(machine().cuda().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    }
    void read(void* host, const void* gpu, std::size_t bytes) override {
        if (bytes == 0) return;
        driver::ScopedCudaContext current(context_of(gpu));
        expect_success(machine().cuda().cuMemcpyDtoH(host, reinterpret_cast<CUdeviceptr>(gpu), bytes),
                       "cuMemcpyDtoH");
    }
    void poke(void* gpu, std::uint64_t value) override { write(gpu, &value, sizeof(value)); }
    bool start_counters_at(backend::Seat& seat, std::uint64_t count) override {
        return static_cast<backends::cuda::CollectiveSeat&>(seat).begin_at(count).ok();
    }
    Place place(unsigned rank) override { return Place::gpu(gpu_of(rank)); }
    void* stream(unsigned rank) override { return streams_[rank]; }
    bool opens_what_it_shares() override { return false; }

private:
    std::vector<CUstream> streams_;
};

// By entry points that the library has no use for.
template <typename Call>
Call* entry(const char* name) {
    static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<Call*>(::dlsym(library, name));
}

void remove_events(CUgraph graph) {
    const auto get_nodes = entry<CUresult(CUgraph, CUgraphNode*, std::size_t*)>("cuGraphGetNodes");
    const auto get_type = entry<CUresult(CUgraphNode, CUgraphNodeType*)>("cuGraphNodeGetType");
    const auto destroy = entry<CUresult(CUgraphNode)>("cuGraphDestroyNode");
    std::size_t count = 0;
    expect_success(get_nodes(graph, nullptr, &count), "cuGraphGetNodes");
    std::vector<CUgraphNode> nodes(count);
    expect_success(get_nodes(graph, nodes.data(), &count), "cuGraphGetNodes");
    for (CUgraphNode node : nodes) {
        CUgraphNodeType type{};
        expect_success(get_type(node, &type), "cuGraphNodeGetType");
        if (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
            expect_success(destroy(node), "cuGraphDestroyNode");
    }
}

}  // namespace

int gpu_of(unsigned rank) {
    return static_cast<int>(rank) % machine().gpus();
}

CapturedTasks::~CapturedTasks() {
    driver::ScopedCudaContext current(machine().context(gpu_of(rank_)));
    if (graph_) machine().cuda().cuGraphExecDestroy(graph_);
}

void CapturedTasks::begin() const {
    driver::ScopedCudaContext current(machine().context(gpu_of(rank_)));
    expect_success(machine().cuda().cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL),
                   "cuStreamBeginCapture");
}

void CapturedTasks::end(Events events) {
    driver::ScopedCudaContext current(machine().context(gpu_of(rank_)));
    CUgraph graph = nullptr;
    expect_success(machine().cuda().cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture");
    if (events == Events::removed) remove_events(graph);
    expect_success(machine().cuda().cuGraphInstantiateWithFlags(&graph_, graph, 0), "cuGraphInstantiate");
    machine().cuda().cuGraphDestroy(graph);
}

void CapturedTasks::launch() const {
    driver::ScopedCudaContext current(machine().context(gpu_of(rank_)));
    expect_success(machine().cuda().cuGraphLaunch(graph_, stream_), "cuGraphLaunch");
}

bool CapturedTasks::wait(int seconds) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    driver::ScopedCudaContext current(machine().context(gpu_of(rank_)));
    for (;;) {
        const CUresult status = machine().cuda().cuStreamQuery(stream_);
        if (status != CUDA_ERROR_NOT_READY) {
            expect_success(status, "cuStreamQuery");
            return true;
        }
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::yield();
    }
}

ForkedStream::ForkedStream(unsigned rank, void* from, void* to) : rank_(rank), from_(from), to_(to) {
    wait(to_, from_);
}

ForkedStream::~ForkedStream() {
    wait(from_, to_);
}

void ForkedStream::wait(void* stream, void* for_other) const {
    driver::ScopedCudaContext current(machine().context(gpu_of(rank_)));
    const auto event = driver::CudaEvent::create(
        std::shared_ptr<const driver::Cuda>(&machine().cuda(), [](const driver::Cuda*) {}));
    ASSERT_TRUE(event.ok());
    expect_success(machine().cuda().cuEventRecord(event->get(), static_cast<CUstream>(for_other)),
                   "cuEventRecord");
    expect_success(machine().cuda().cuStreamWaitEvent(static_cast<CUstream>(stream), event->get(), 0),
                   "cuStreamWaitEvent");
}

}  // namespace sidestep::gpu_tests

namespace sidestep::collective_seat {

std::unique_ptr<Rig> make_rig(unsigned gpus) {
    if (!gpu_tests::Machine::get().missing().empty()) return nullptr;
    return std::make_unique<gpu_tests::CudaRig>(gpus);
}

}  // namespace sidestep::collective_seat
