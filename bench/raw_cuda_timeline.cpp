#include "bench/raw_cuda_timeline.hpp"

#include <dlfcn.h>

#include <chrono>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/raw_cuda_session.hpp"

namespace sidestep::bench::raw {
namespace {

using Graph = void*;
using ExecutableGraph = void*;
constexpr int thread_local_capture = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr std::chrono::minutes max_wait{2};

struct GraphCalls {
    Status (*begin)(Stream, int) = nullptr;
    Status (*end)(Stream, Graph*) = nullptr;
    Status (*instantiate)(ExecutableGraph*, Graph, unsigned long long) = nullptr;
    Status (*launch)(ExecutableGraph, Stream) = nullptr;
    Status (*drop)(Graph) = nullptr;
    Status (*drop_executable)(ExecutableGraph) = nullptr;
};

Result<GraphCalls> graph_calls() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    GraphCalls found;
    std::string missing = library ? "" : "everything";
    const auto find = [&](auto& function, const char* name) {
        if (library)
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        if (library && !function) missing = name;
    };
    find(found.begin, "cuStreamBeginCapture_v2");
    find(found.end, "cuStreamEndCapture");
    find(found.instantiate, "cuGraphInstantiateWithFlags");
    find(found.launch, "cuGraphLaunch");
    find(found.drop, "cuGraphDestroy");
    find(found.drop_executable, "cuGraphExecDestroy");
    if (missing.empty()) return found;
    return Error{
        ErrorCode::unsupported, fmt::format("the NVIDIA driver lacks {}", missing), "libcuda.so.1", {}};
}

}  // namespace

struct Timeline::State {
    State(const Driver& opened, GraphCalls found, int number) : session(opened), calls(found), gpu(number) {}

    Session session;
    GraphCalls calls;
    int gpu = 0;
    Stream stream = nullptr;
    Event begin = nullptr;
    Event end = nullptr;
    ExecutableGraph graph = nullptr;

    void drop_graph() {
        if (graph) calls.drop_executable(std::exchange(graph, nullptr));
    }
};

Result<std::unique_ptr<Timeline>> Timeline::open(int gpu) {
    const auto& opened = driver();
    if (!opened) return opened.error();
    SIDESTEP_TRY(const auto found, graph_calls());
    auto state = std::make_unique<State>(*opened, found, gpu);
    state->stream = state->session.stream(gpu);
    state->begin = state->session.event(gpu);
    state->end = state->session.event(gpu);
    SIDESTEP_CHECK(state->session.failed());
    return std::unique_ptr<Timeline>(new Timeline(std::move(state)));
}

Timeline::Timeline(std::unique_ptr<State> state) : state_(std::move(state)) {}

Timeline::~Timeline() {
    (void)wait().ok();
    state_->drop_graph();
}

void* Timeline::stream() const {
    return state_->stream;
}

Result<void> Timeline::use() {
    state_->session.use(state_->gpu);
    return state_->session.failed();
}

Result<double> Timeline::us(const std::function<Result<void>()>& before,
                            const std::function<Result<void>()>& work) {
    Session& session = state_->session;
    session.use(state_->gpu);
    SIDESTEP_CHECK(before());
    session.record(state_->begin, state_->stream);
    SIDESTEP_CHECK(work());
    session.record(state_->end, state_->stream);
    SIDESTEP_CHECK(wait());
    const double ms = session.ms_between(state_->begin, state_->end);
    SIDESTEP_CHECK(session.failed());
    return ms * 1000;
}

void Timeline::forget() {
    if (auto used = use(); used) state_->drop_graph();
}

Result<void> Timeline::capture(const std::function<Result<void>()>& work) {
    Session& session = state_->session;
    session.use(state_->gpu);
    state_->drop_graph();
    session.check(state_->calls.begin(state_->stream, thread_local_capture), "cuStreamBeginCapture");
    SIDESTEP_CHECK(session.failed());
    const Result<void> worked = work();
    Graph graph = nullptr;
    const Status ended = state_->calls.end(state_->stream, &graph);
    // Why the work failed says more than that the capture was spoilt by it.
    if (worked) session.check(ended, "cuStreamEndCapture");
    if (worked && session.good())
        session.check(state_->calls.instantiate(&state_->graph, graph, 0), "cuGraphInstantiateWithFlags");
    if (graph) state_->calls.drop(graph);
    if (!worked) return worked;
    return session.failed();
}

Result<void> Timeline::launch() {
    Session& session = state_->session;
    session.use(state_->gpu);
    if (session.good()) session.check(state_->calls.launch(state_->graph, state_->stream), "cuGraphLaunch");
    return session.failed();
}

Result<void> Timeline::wait() {
    Session& session = state_->session;
    const auto until = std::chrono::steady_clock::now() + max_wait;
    while (session.good() && !session.done(state_->stream))
        if (std::chrono::steady_clock::now() > until)
            return Error{ErrorCode::timed_out,
                         "a GPU did not end its work within two minutes",
                         fmt::format("gpu:{}", state_->gpu),
                         {}};
    return session.failed();
}

}  // namespace sidestep::bench::raw
