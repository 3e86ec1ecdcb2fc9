#include "backends/cuda/collective/copies.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

using backend::CollectiveTask;
using backend::CopyStep;

constexpr std::size_t most_graphs = 256;
// Steps that wait in a stream. Its queue has some 1020 entries; who finds it full waits within the driver until one is
// done, and a graph takes as many as it has nodes (seen on H200, driver 580.159.04).
constexpr std::size_t most_waiting_steps = 900;

CUdeviceptr address(const void* pointer) {
    return reinterpret_cast<CUdeviceptr>(pointer);
}

bool same_blocks(const backend::Block* a, const backend::Block* b, unsigned ranks) {
    return std::equal(a, a + ranks, b, [](const backend::Block& x, const backend::Block& y) {
        return x.bytes == y.bytes && (x.bytes == 0 || x.offset == y.offset);
    });
}

}  // namespace

Result<std::unique_ptr<Copies>> Copies::create(Seats& seats, Gpu& gpu, const CopyPost& post,
                                               HostWords& words) {
    SIDESTEP_TRY(auto watch, CopyWatch::create(seats, gpu, post, words));
    SIDESTEP_TRY(auto capturing, driver::CudaStream::create(gpu.context()));
    return std::unique_ptr<Copies>(new Copies(gpu, post, std::move(watch), std::move(capturing)));
}

Copies::~Copies() {
    driver::ScopedCudaContext current(*gpu_.context());
    for (const Graph& graph : graphs_) cuda().cuGraphExecDestroy(graph.executable);
    for (const Waiting& waiting : waiting_) gpu_.give_back(waiting.end);
}

Result<void> Copies::put_copy(CUdeviceptr to, CUdeviceptr from, std::uint64_t bytes, CUstream stream) {
    if (to == from || bytes == 0) return {};
    return cuda().check(cuda().cuMemcpyAsync(to, from, bytes, stream), "cuMemcpyAsync");
}

// A word that a stream writes (CU_STREAM_WRITE_VALUE_DEFAULT) is seen after all that came before it on the
// stream, by whole system: so is what the copies before a `begin` step moved, before the words are raised
// that come behind it.
Result<void> Copies::put(const CopyStep& step, const CollectiveTask& task, const CopyTags& tags,
                         const Arenas& arenas, CUstream stream) {
    const std::uint64_t row = backend::ArenaLayout{post_.ranks}.copy_words(step.row);
    const auto word = [&](char* arena, unsigned rank) {
        return address(arena + row + rank * sizeof(std::uint64_t));
    };
    switch (step.kind) {
        case CopyStep::Kind::begin:
        case CopyStep::Kind::end: {
            const CUresult status =
                cuda().cuStreamWriteValue64(stream, watch_->progress(), CopyWatch::code_of(step, tags.index),
                                            CU_STREAM_WRITE_VALUE_DEFAULT);
            return cuda().check(status, "cuStreamWriteValue64");
        }
        case CopyStep::Kind::raise: {
            // By way of this GPU, in the word of the row that belongs to no peer: a copy from the host straight to a
            // peer also waits for the peer's own queue, and there for streams that wait for this very word (seen on
            // two H200, driver 580.159.04).
            const std::uint64_t* const tag = backend::is_arrived(step.row) ? tags.arrived : tags.ready;
            const CUdeviceptr own = word(post_.arena, post_.rank);
            SIDESTEP_CHECK(put_copy(own, watch_->on_gpu(tag + step.peer), sizeof(*tag), stream));
            return put_copy(word(arenas[step.peer], post_.rank), own, sizeof(*tag), stream);
        }
        case CopyStep::Kind::await: {
            const std::uint64_t tag =
                backend::tag_of(task, post_.rank, step.peer, !backend::is_arrived(step.row));
            const CUresult status = cuda().cuStreamWaitValue64(stream, word(post_.arena, step.peer), tag,
                                                               CU_STREAM_WAIT_VALUE_GEQ);
            return cuda().check(status, "cuStreamWaitValue64");
        }
        case CopyStep::Kind::clear:
            return put_copy(word(post_.arena, step.peer), watch_->rest(), step.words * sizeof(std::uint64_t),
                            stream);
        case CopyStep::Kind::push:
            return put_copy(address(arenas[step.peer] + step.stage), address(task.send) + step.at, step.bytes,
                            stream);
        case CopyStep::Kind::pull:
            return put_copy(address(task.recv) + step.at, address(post_.arena + step.stage), step.bytes,
                            stream);
        case CopyStep::Kind::local:
            return put_copy(address(task.recv) + step.stage, address(task.send) + step.at, step.bytes,
                            stream);
    }
    return {};
}

Result<void> Copies::put_all(const CollectiveTask& task, const Arenas& arenas, CUstream stream) {
    SIDESTEP_TRY(const CopyTags* const tags, watch_->tags_of(task));
    for (const CopyStep& step : backend::copy_steps(task, post_.rank, post_.ranks))
        SIDESTEP_CHECK(put(step, task, *tags, arenas, stream));
    return {};
}

bool Copies::is(const Graph& graph, const CollectiveTask& task, const Arenas& arenas) const {
    return graph.task.signature == task.signature && graph.task.send == task.send &&
           graph.task.recv == task.recv && same_blocks(graph.task.to, task.to, post_.ranks) &&
           same_blocks(graph.task.from, task.from, post_.ranks) && graph.arenas == arenas;
}

// Of those that no stream needs any more, the one that was used longest ago.
Result<void> Copies::make_room() {
    if (graphs_.size() < most_graphs) return {};
    for (auto at = graphs_.end(); at != graphs_.begin();) {
        --at;
        if (!watch_->began_after(at->launched)) continue;
        cuda().cuGraphExecDestroy(at->executable);
        graphs_.erase(at);
        return {};
    }
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{} different operations wait for the other ranks", most_graphs),
                 fmt::format("gpu:{}", gpu_.index()), "wait for some of them before more are enqueued"};
}

void Copies::forget_ended() {
    while (!waiting_.empty() && cuda().cuEventQuery(waiting_.front().end->event) != CUDA_ERROR_NOT_READY) {
        gpu_.give_back(waiting_.front().end);
        waiting_steps_ -= waiting_.front().steps;
        waiting_.pop_front();
    }
}

// Here and not within the driver, where no other thread could let the tasks go meanwhile.
Result<void> Copies::wait_for_room(std::size_t steps) {
    const auto start = std::chrono::steady_clock::now();
    const auto most = watch_->deadline();
    for (;;) {
        forget_ended();
        if (waiting_.empty() || waiting_steps_ + steps <= most_waiting_steps || watch_->stopped()) return {};
        if (most.count() > 0 && std::chrono::steady_clock::now() - start > most) break;
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return Error{ErrorCode::timed_out,
                 fmt::format("{} operations wait for the other ranks, more than a stream holds", waiting_.size()),
                 fmt::format("gpu:{}", gpu_.index()), "let the other ranks call before more are enqueued"};
}

Result<CUgraphExec> Copies::capture(const CollectiveTask& task, const Arenas& arenas) {
    CUresult status = cuda().cuStreamBeginCapture(capturing_.get(), CU_STREAM_CAPTURE_MODE_RELAXED);
    SIDESTEP_CHECK(cuda().check(status, "cuStreamBeginCapture"));
    const auto put = put_all(task, arenas, capturing_.get());
    CUgraph graph = nullptr;
    status = cuda().cuStreamEndCapture(capturing_.get(), &graph);
    CUgraphExec executable = nullptr;
    const char* call = "cuStreamEndCapture";
    if (put && status == CUDA_SUCCESS) {
        call = "cuGraphInstantiate";
        status = cuda().cuGraphInstantiateWithFlags(&executable, graph, 0);
    }
    if (graph) cuda().cuGraphDestroy(graph);
    if (!put) return put.error();
    SIDESTEP_CHECK(cuda().check(status, call));
    return executable;
}

Result<Copies::Graph*> Copies::graph_of(const CollectiveTask& task, const Arenas& arenas) {
    const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                    [&](const Graph& graph) { return is(graph, task, arenas); });
    if (found != graphs_.end()) {
        graphs_.splice(graphs_.begin(), graphs_, found);
        return &graphs_.front();
    }
    SIDESTEP_CHECK(make_room());
    Graph graph{task, arenas, nullptr, 0, backend::copy_steps(task, post_.rank, post_.ranks).size()};
    SIDESTEP_TRY(graph.executable, capture(task, arenas));
    graphs_.push_front(std::move(graph));
    return &graphs_.front();
}

Result<void> Copies::write_number(std::uint64_t code, CUstream stream) {
    const CUresult status =
        cuda().cuStreamWriteValue64(stream, watch_->number(), code, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (status == CUDA_ERROR_INVALID_HANDLE)
        return Error{ErrorCode::invalid_argument, "the stream does not belong to the rank's GPU",
                     fmt::format("gpu:{}", gpu_.index()), "give a stream of that GPU"};
    return cuda().check(status, "cuStreamWriteValue64");
}

Result<void> Copies::run(const CollectiveTask& task, const Arenas& arenas, CUstream stream, bool captures) {
    if (watch_->stopped()) return {};
    if (captures) {
        SIDESTEP_CHECK(write_number(watch_->number_in_graph(task.number), stream));
        return put_all(task, arenas, stream);
    }
    SIDESTEP_TRY(Graph* const graph, graph_of(task, arenas));
    SIDESTEP_CHECK(wait_for_room(graph->steps));
    if (watch_->stopped()) return {};
    SIDESTEP_TRY(Flight* const end, gpu_.take_flight());
    waiting_.push_back({end, graph->steps});
    waiting_steps_ += graph->steps;
    SIDESTEP_CHECK(write_number(watch_->next_number(task.number, graph->launched), stream));
    SIDESTEP_CHECK(cuda().check(cuda().cuGraphLaunch(graph->executable, stream), "cuGraphLaunch"));
    return cuda().check(cuda().cuEventRecord(end->event, stream), "cuEventRecord");
}

}  // namespace sidestep::backends::cuda
