// Memory of GPUs over a network plugin of NCCL: handed out by the driver, registered, tried out with real bytes, and flushed. The
// plugin is a stand-in over loopback, which has the driver copy what no processor touches (tests/network/fake_nccl_net.cpp).
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sidestep/sidestep.hpp>

#include "backend/device_memory.hpp"
#include "tests/contents.hpp"
#include "tests/gpu/gpu_machine.hpp"
#include "tests/network/ncclnet_rig.hpp"

namespace sidestep::gpu_tests::network {
namespace {

namespace fs = std::filesystem;
constexpr Bytes size = 24_MiB + 12'345;

// Beside this program, as in a bundle, or where it was built; empty: neither.
std::string plugin_path() {
    for (const fs::path& path : {fs::read_symlink("/proc/self/exe").parent_path() / "libfake_nccl_net.so",
                                 fs::path(SIDESTEP_FAKE_NCCL_NET)})
        if (fs::exists(path)) return path.string();
    return {};
}

// A node and its client, both of this process and its GPUs.
class NetworkPlugin : public GpuTest {
protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        if (plugin_path().empty()) GTEST_SKIP() << "libfake_nccl_net.so is not beside this program";
        plugin_.emplace(plugin_path());
        ::setenv("SIDESTEP_NCCL_NET", plugin_->new_name().c_str(), 1);
        ::setenv("SIDESTEP_NETWORK", "ncclnet", 1);
        std::string name = (fs::temp_directory_path() / "sidestep-gpu-network-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
        auto machine = Context::open({"live"});
        ASSERT_TRUE(machine) << machine.error().to_string();
        node_.emplace(std::move(*machine));
        ServeOptions serve;
        serve.listen = "127.0.0.1:0";
        serve.allow = "gpu:*,host=256MiB";
        serve.key_file = (folder_ / "key").string();
        auto serving = node_->serve(serve);
        ASSERT_TRUE(serving) << serving.error().to_string();
        serving_.emplace(std::move(*serving));
        ContextOptions options{"live"};
        options.nodes = "n=" + serving_->addresses().front();
        options.key_file = serve.key_file;
        auto client = Context::open(std::move(options));
        ASSERT_TRUE(client) << client.error().to_string();
        here_.emplace(std::move(*client));
    }
    void TearDown() override {
        here_.reset();
        serving_.reset();
        node_.reset();
        for (const char* name : {"SIDESTEP_NCCL_NET", "SIDESTEP_NETWORK"}) ::unsetenv(name);
        if (!folder_.empty()) fs::remove_all(folder_);
    }
    Receipt copy(const Buffer& from, const Buffer& to) {
        const auto done = here_->copy(from, to).wait();
        EXPECT_TRUE(done) << done.error().to_string();
        return done ? *done : Receipt();
    }

    std::optional<wire::test::StandIn> plugin_;
    fs::path folder_;
    std::optional<Context> node_;
    std::optional<Serving> serving_;
    std::optional<Context> here_;
};

TEST_F(NetworkPlugin, CarriesMemoryOfGpusAsItIs) {
    const std::string text = test::text_of(size, 1), none(size, '.');
    const Allocation mine = *here_->allocate(Place::gpu(0), size);
    backend::DmaBufs* const exporter = backend::dma_bufs_of(backend());
    ASSERT_NE(exporter, nullptr);
    const auto handed = exporter->dma_buf(mine.buffer());
    const std::string by = handed ? "by dma-buf" : "by its address";
    if (!handed) fmt::print("no dma-buf: {}\n", handed.error().to_string());
    for (const std::string& place : {std::string("n/host"), fmt::format("n/gpu:{}", machine().gpus() - 1)}) {
        SCOPED_TRACE(place);
        const Allocation far = *here_->allocate(*Place::parse(place), size);
        for (const Bytes bytes : {size, Bytes{5'000}}) {
            const Buffer near = mine.buffer().slice(0, bytes), other = far.buffer().slice(0, bytes);
            copy(Buffer::host(text.data(), bytes), near);
            const int flushed = plugin_->flushes();
            const Receipt put = copy(near, other);
            copy(Buffer::host(none.data(), bytes), near);
            const Receipt get = copy(other, near);
            for (const Receipt* receipt : {&put, &get}) {
                ASSERT_EQ(receipt->route->lanes[0].hops.size(), 1u) << receipt->explain();
                const std::string notes = fmt::format("{}", fmt::join(receipt->notes, "; "));
                EXPECT_NE(notes.find("by the network plugin straight into gpu:0 and out of it, " + by),
                          std::string::npos)
                    << notes;
            }
            EXPECT_EQ(plugin_->flushes() > flushed, bytes == size) << "what came into a GPU is flushed";
            std::string came(bytes, '?');
            copy(near, Buffer::host(came.data(), bytes));
            EXPECT_TRUE(came == text.substr(0, bytes)) << bytes;
        }
    }
}

}  // namespace
}  // namespace sidestep::gpu_tests::network
