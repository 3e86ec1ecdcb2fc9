// Streams and events.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <utility>

#include "tests/fake_cuda/machine.hpp"

using namespace sidestep::fake_cuda;

namespace {

constexpr std::chrono::microseconds between_looks{20};

thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// The machine's mutex is held. Null for an event that was destroyed.
Event* find_event(CUevent event) {
    const auto found = Machine::get().events.find(event);
    return found == Machine::get().events.end() ? nullptr : found->second.get();
}

void wait_for(const Flag& reached) {
    while (!reached->load(std::memory_order_acquire)) std::this_thread::sleep_for(between_looks);
}

bool is_word(const Stream& stream, CUdeviceptr address, std::size_t bytes) {
    std::lock_guard lock(Machine::get().mutex);
    return address % bytes == 0 && Machine::get().reaches(stream.context()->device, address, bytes);
}

// Counts a stream as held from the call on that will hold it: what is enqueued before the wait may be over at
// any time.
void hold(int by) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    machine.held_streams += by;
    if (machine.held_streams == 0) machine.none_held.notify_all();
}

}  // namespace

bool sidestep::fake_cuda::capture_forbids() {
    std::lock_guard lock(Machine::get().mutex);
    return Machine::get().global_captures > 0 && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

// A stream that waits for the default stream, and is waited for, is not made up here. While FAKE_CUDA_OWN_QUEUE is set
// a stream that waits holds up no other.
CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_NOT_SUPPORTED;
    std::lock_guard lock(Machine::get().mutex);
    const bool own = std::getenv("FAKE_CUDA_OWN_QUEUE") != nullptr;
    const std::shared_ptr<Stream> made =
        Stream::make(current_context(), own ? nullptr : &current_context()->queues);
    *stream = reinterpret_cast<CUstream>(made.get());
    Machine::get().streams[*stream] = made;
    return CUDA_SUCCESS;
}

// Streams of all priorities share the queues.
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
    return cuStreamCreate(stream, flags);
}

// Returns at once; the work on the stream goes on.
CUresult cuStreamDestroy(CUstream stream) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    {
        std::lock_guard lock(Machine::get().mutex);
        if (Machine::get().streams.erase(stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
    }
    found->finish();
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    if (found->captured()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (fails_now("cuStreamSynchronize")) return CUDA_ERROR_OUT_OF_MEMORY;
    found->wait_until_idle();
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    if (found->captured()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return found->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

// Never the same twice. Refused while the stream is captured (seen on H100, driver 580.159.04).
CUresult cuStreamGetId(CUstream stream, unsigned long long* number) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    if (found->captured()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    *number = found->number();
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    *context = reinterpret_cast<CUcontext>(found->context());
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    *status = found->captured() != nullptr ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    std::swap(*mode, capture_mode);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    std::lock_guard lock(Machine::get().mutex);
    found->begin_capture();
    if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) ++Machine::get().global_captures;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    auto captured = found->end_capture();
    if (!captured) return CUDA_ERROR_ILLEGAL_STATE;
    *graph = reinterpret_cast<CUgraph>(captured.get());
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    machine.graphs[*graph] = std::move(captured);
    machine.global_captures = 0;  // one at a time is enough here
    return CUDA_SUCCESS;
}

// Its node is told by the number of those before it.
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   const CUgraphEdgeData** edges, std::size_t* count) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    Graph* const captured = found->captured();
    *status = captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    if (!captured) return CUDA_SUCCESS;
    thread_local CUgraphNode last;
    last = reinterpret_cast<CUgraphNode>(captured->work.size());
    *id = found->capture_number();
    *graph = reinterpret_cast<CUgraph>(captured);
    *dependencies = &last;
    *edges = nullptr;
    *count = captured->work.empty() ? 0 : 1;
    return CUDA_SUCCESS;
}

// A capture has one stream here, so what it depends on it depends on already.
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode*, const CUgraphEdgeData*,
                                              std::size_t, unsigned) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    return found && found->captured() ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

// While the graph is being captured.
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t,
                                   CUevent event) {
    std::lock_guard lock(Machine::get().mutex);
    if (!find_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    auto& records = reinterpret_cast<Graph*>(graph)->records;
    records.push_back(event);
    *node = reinterpret_cast<CUgraphNode>(&records.back());
    return CUDA_SUCCESS;
}
// What is recorded comes last in any case.
CUresult cuGraphAddDependencies_v2(CUgraph, const CUgraphNode*, const CUgraphNode*, const CUgraphEdgeData*,
                                   std::size_t) {
    return CUDA_SUCCESS;
}
CUresult cuGraphRemoveDependencies_v2(CUgraph, const CUgraphNode*, const CUgraphNode*, const CUgraphEdgeData*,
                                      std::size_t) {
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    std::lock_guard lock(Machine::get().mutex);
    return Machine::get().graphs.erase(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = machine.graphs.find(graph);
    if (found == machine.graphs.end()) return CUDA_ERROR_INVALID_HANDLE;
    auto made = std::make_unique<Graph>(*found->second);
    *executable = reinterpret_cast<CUgraphExec>(made.get());
    machine.executable_graphs[*executable] = std::move(made);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
    std::lock_guard lock(Machine::get().mutex);
    return Machine::get().executable_graphs.erase(executable) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Events are taken, and count as recorded anew, when the graph is launched.
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    std::vector<Work> work;
    std::vector<Flag> waits, records;
    {
        std::lock_guard lock(Machine::get().mutex);
        const auto found = Machine::get().executable_graphs.find(executable);
        if (found == Machine::get().executable_graphs.end()) return CUDA_ERROR_INVALID_HANDLE;
        work = found->second->work;
        for (CUevent event : found->second->waits)
            if (const Event* waited = find_event(event); waited && waited->reached)
                waits.push_back(waited->reached);
        for (CUevent event : found->second->records)
            if (Event* recorded = find_event(event))
                records.push_back(recorded->reached = std::make_shared<std::atomic<bool>>(false));
    }
    return enqueue(stream, [work = std::move(work), waits = std::move(waits), records = std::move(records)] {
        for (const Flag& reached : waits) wait_for(reached);
        for (const Work& node : work) node();
        for (const Flag& reached : records) reached->store(true, std::memory_order_release);
    });
}

// For the recording that the event holds now, even if it is recorded anew or destroyed before the stream
// comes there. The event may be of another context.
// An external wait of a capture becomes a node.
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    if (fails_now("cuStreamWaitEvent")) return CUDA_ERROR_OUT_OF_MEMORY;
    const std::shared_ptr<Stream> waiting = find_stream(stream);
    if (!waiting) return CUDA_ERROR_INVALID_HANDLE;
    Flag reached;
    {
        std::lock_guard lock(Machine::get().mutex);
        const Event* found = find_event(event);
        if (!found) return CUDA_ERROR_INVALID_HANDLE;
        reached = found->reached;
        if (Graph* const graph = waiting->captured(); graph && flags == CU_EVENT_WAIT_EXTERNAL) {
            graph->waits.push_back(event);
            return CUDA_SUCCESS;
        }
    }
    if (!reached) return CUDA_SUCCESS;
    return waiting->push([reached] { wait_for(reached); }, false, Carrier::last);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
    {
        std::lock_guard lock(Machine::get().mutex);
        const bool known = Machine::get().reaches(found->context()->device, address, sizeof value);
        if (address % sizeof value != 0 || !known) return CUDA_ERROR_INVALID_VALUE;
    }
    hold(1);
    const CUresult status = found->push(
        [address, value] {
            const std::atomic_ref word(*reinterpret_cast<cuuint32_t*>(address));
            while (word.load(std::memory_order_acquire) < value) std::this_thread::sleep_for(between_looks);
            hold(-1);
        },
        false, Carrier::last);
    if (status != CUDA_SUCCESS) hold(-1);
    return status;
}

// Into graphs as well.
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
    if (!is_word(*found, address, sizeof value)) return CUDA_ERROR_INVALID_VALUE;
    if (fails_now("cuStreamWaitValue64")) return CUDA_ERROR_OUT_OF_MEMORY;
    return found->push(
        [address, value] {
            hold(1);
            const std::atomic_ref word(*reinterpret_cast<cuuint64_t*>(address));
            while (static_cast<std::int64_t>(word.load(std::memory_order_acquire) - value) < 0)
                std::this_thread::sleep_for(between_looks);
            hold(-1);
        },
        true, Carrier::last);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || std::getenv("FAKE_CUDA_NO_STREAM_WORDS") != nullptr)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!is_word(*found, address, sizeof value)) return CUDA_ERROR_INVALID_VALUE;
    if (fails_now("cuStreamWriteValue64")) return CUDA_ERROR_OUT_OF_MEMORY;
    return found->push(
        [address, value] {
            std::atomic_ref(*reinterpret_cast<cuuint64_t*>(address)).store(value, std::memory_order_release);
        },
        true, Carrier::last);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return enqueue(
        stream, [function, data] { function(data); }, true, Carrier::last);
}

CUresult cuEventCreate(CUevent* event, unsigned) {
    if (std::getenv("FAKE_CUDA_NO_EVENTS") != nullptr) return CUDA_ERROR_TOO_MANY_PEERS;
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    auto made = std::make_unique<Event>();
    made->context = current_context();
    *event = reinterpret_cast<CUevent>(made.get());
    std::lock_guard lock(Machine::get().mutex);
    Machine::get().events[*event] = std::move(made);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    std::lock_guard lock(Machine::get().mutex);
    return Machine::get().events.erase(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// On a stream of the event's own context only.
CUresult cuEventRecord(CUevent event, CUstream stream) {
    if (fails_now("cuEventRecord")) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    const auto reached = std::make_shared<std::atomic<bool>>(false);
    const auto reached_ns = std::make_shared<std::atomic<long long>>(0);
    {
        std::lock_guard lock(Machine::get().mutex);
        Event* const recorded = find_event(event);
        if (!recorded || recorded->context != found->context()) return CUDA_ERROR_INVALID_HANDLE;
        recorded->reached = reached;
        recorded->reached_ns = reached_ns;
    }
    return found->push(
        [reached, reached_ns] {
            *reached_ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
            reached->store(true, std::memory_order_release);
        },
        false, Carrier::last);
}

CUresult cuEventElapsedTime(float* ms, CUevent begin, CUevent end) {
    std::lock_guard lock(Machine::get().mutex);
    const Event* from = find_event(begin);
    const Event* to = find_event(end);
    if (!from || !to || !from->reached || !to->reached) return CUDA_ERROR_INVALID_HANDLE;
    if (!*from->reached || !*to->reached) return CUDA_ERROR_NOT_READY;
    *ms = static_cast<float>(*to->reached_ns - *from->reached_ns) / 1e6f;
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
    if (capture_forbids()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (fails_now("cuEventQuery")) return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard lock(Machine::get().mutex);
    const Event* found = find_event(event);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    const bool over = !found->reached || found->reached->load(std::memory_order_acquire);
    return over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
