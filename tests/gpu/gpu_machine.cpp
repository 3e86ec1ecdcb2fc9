#include "tests/gpu/gpu_machine.hpp"

#include <algorithm>
#include <cctype>
#include <chrono>

#include <fmt/format.h>

#include "backends/cuda/cuda_backend.hpp"
#include "base/try.hpp"
#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests {
namespace {

// ":1b:00.0" of "0000:1B:00.0" and of "00000000:1b:00.0": the domain is written in several ways.
std::string bus_and_device(std::string address) {
    std::transform(address.begin(), address.end(), address.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    return address.substr(std::min(address.find(':'), address.size()));
}

// Says at the end, in one line, what the run was worth.
class Summary : public ::testing::Environment {
public:
    void TearDown() override {
        const auto& run = *::testing::UnitTest::GetInstance();
        const Machine& machine = Machine::get();
        fmt::print("gpu tests: {} passed, {} failed, {} skipped; {}; {} moved and compared\n",
                   run.successful_test_count(), run.failed_test_count(), run.skipped_test_count(),
                   machine.missing().empty() ? machine.found() : machine.missing(),
                   format_bytes(compared_bytes()));
    }
};

[[maybe_unused]] const auto* const summary = ::testing::AddGlobalTestEnvironment(new Summary);

}  // namespace

Machine& Machine::get() {
    static Machine machine;
    return machine;
}

Machine::Machine() {
    auto topology = Topology::live();
    if (!topology) {
        missing_ = topology.error().to_string();
        return;
    }
    topology_ = std::move(*topology);
    backend_ = backends::cuda::create();
    const backend::Support support = backend_->probe(*topology_);
    found_ = support.reason;
    if (!support.usable) {
        missing_ = support.reason;
        return;
    }
    auto cuda = driver::Cuda::load();
    if (!cuda) {
        missing_ = cuda.error().to_string();
        return;
    }
    cuda_ = std::move(*cuda);
    contexts_.resize(static_cast<std::size_t>(topology_->gpu_count()));
    int devices = 0;
    cuda_->cuDeviceGetCount(&devices);
    if (devices != topology_->gpu_count())
        missing_ = fmt::format("{} of {} GPUs are visible; the tests want them all", devices,
                               topology_->gpu_count());
}

const driver::CudaContext& Machine::context(int gpu) {
    auto& context = contexts_[static_cast<std::size_t>(gpu)];
    if (context) return *context;
    const std::string wanted =
        bus_and_device(topology_->device(*topology_->find(DeviceKind::gpu, gpu)).bus_id);
    for (int ordinal = 0; ordinal < gpus(); ++ordinal) {
        char address[32] = {};
        cuda_->cuDeviceGetPCIBusId(address, sizeof(address), ordinal);
        if (bus_and_device(address) != wanted) continue;
        context = driver::CudaContext::retain(cuda_, ordinal).value();
        return *context;
    }
    abort_on_error({ErrorCode::not_found, fmt::format("no CUDA device at {}", wanted), "gpu tests", {}});
}

void expect_success(CUresult status, const char* call) {
    if (status != CUDA_SUCCESS) ADD_FAILURE() << Machine::get().cuda().error(status, call).to_string();
}

Result<void> move(backend::Backend& backend, backend::Registration& from, Bytes from_offset,
                  backend::Registration& to, Bytes to_offset, Bytes size, std::size_t engine, void* stream) {
    backend::Piece piece;
    piece.from = &from;
    piece.from_offset = from_offset;
    piece.to = &to;
    piece.to_offset = to_offset;
    piece.size = size;
    piece.capability = engine;
    piece.stream = stream;
    return test::StartedPiece(backend, piece).wait();
}

Result<void> move(backend::Backend& backend, const Buffer& from, const Buffer& to, std::size_t engine,
                  void* stream) {
    backend::AttachOptions options;
    SIDESTEP_TRY(auto source, backend.attach(from, options));
    options.access = backend::Access::write;
    SIDESTEP_TRY(auto target, backend.attach(to, options));
    return move(backend, *source, 0, *target, 0, from.size(), engine, stream);
}

}  // namespace sidestep::gpu_tests
