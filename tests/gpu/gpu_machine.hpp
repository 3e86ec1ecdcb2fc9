// What the GPU tests stand on: the live machine, the backend under test, and the driver to check it with.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <sidestep/context.hpp>
#include <sidestep/topology.hpp>
#include "backend/backend.hpp"
#include "backends/cuda/offers.hpp"
#include "driver/cuda_handles.hpp"
#include "tests/started_piece.hpp"

namespace sidestep::gpu_tests {

// One a process, made at the first use.
class Machine {
public:
    static Machine& get();

    // Why the tests cannot run here; empty if they can.
    const std::string& missing() const { return missing_; }
    const Topology& topology() const { return *topology_; }
    backend::Backend& backend() const { return *backend_; }
    const driver::Cuda& cuda() const { return *cuda_; }
    int gpus() const { return static_cast<int>(contexts_.size()); }
    // The primary context of a GPU, opened at the first use.
    const driver::CudaContext& context(int gpu);
    const std::string& found() const { return found_; }

private:
    Machine();
    std::string missing_;
    std::string found_;
    std::optional<Topology> topology_;
    std::unique_ptr<backend::Backend> backend_;
    std::shared_ptr<const driver::Cuda> cuda_;
    std::vector<std::shared_ptr<const driver::CudaContext>> contexts_;
};

class GpuTest : public ::testing::Test {
protected:
    void SetUp() override {
        if (!machine().missing().empty()) GTEST_SKIP() << machine().missing();
    }
    static Machine& machine() { return Machine::get(); }
    static backend::Backend& backend() { return machine().backend(); }
    static const driver::Cuda& cuda() { return machine().cuda(); }
};

// With the public interface over the live machine.
class ContextTest : public GpuTest {
protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        auto opened = Context::open({"live"});
        ASSERT_TRUE(opened) << opened.error().to_string();
        context_.emplace(std::move(*opened));
    }
    std::optional<Context> context_;
};

// GpuTest for tests that need two GPUs with peer access, 0 and 1.
class TwoGpuTest : public GpuTest {
protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        if (machine().gpus() < 2) GTEST_SKIP() << "needs two GPUs, this machine has one";
        const PeerAccess access = machine().topology().peer_access(0, 1);
        if (!access.allowed) GTEST_SKIP() << "gpu:0 may not reach gpu:1: " << access.reason;
    }
};

// Fails the test with the driver's words.
void expect_success(CUresult status, const char* call);

// Moves `size` bytes between two attached buffers with one engine and waits, for at most 60 s.
Result<void> move(backend::Backend& backend, backend::Registration& from, Bytes from_offset,
                  backend::Registration& to, Bytes to_offset, Bytes size, std::size_t engine,
                  void* stream = nullptr);

// The same from the start of one buffer to the start of another, attached for this piece.
Result<void> move(backend::Backend& backend, const Buffer& from, const Buffer& to, std::size_t engine,
                  void* stream = nullptr);

}  // namespace sidestep::gpu_tests
