// Memory of devices and RDMA cards: what takes the place of a GPU's memory are buffers that the kernel itself exports
// (/dev/dma_heap, /dev/udmabuf). Soft-RoCE takes no dma-buf; a library that stands in for a card's that does is named by
// SIDESTEP_DMA_BUF_VERBS.
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include "backends/verbs/verbs_engine.hpp"
#include "driver/fd.hpp"
#include "tests/contents.hpp"
#include "tests/network/target.hpp"

namespace sidestep::wire {
namespace {

using backends::verbs::Engine;
using test::Frame;
using test::Landing;

using test::one_mib;
constexpr Bytes device_bytes = 4 * one_mib;
constexpr Bytes scratch_bytes = one_mib;  // behind them
constexpr Bytes all_bytes = device_bytes + scratch_bytes;

// What stands for memory of a GPU, and its exporter.
struct Device final : backend::DmaBufs {
    driver::Fd pages;     // that can be mapped
    driver::Fd exported;  // a dma-buf of them; none: `pages` is one
    char* memory = nullptr;
    Bytes astray = 0;  // so far beside where they belong go the bytes of a card, by dma-buf
    enum {
        nowhere,
        in,
        out
    } hurt = nowhere;  // what the GPU's own engine brings, as if the card had lost a byte
    int trials = 0;
    ~Device() override { ::munmap(memory, all_bytes); }
    bool map() {
        void* const at = ::mmap(nullptr, all_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pages.get(), 0);
        if (at == MAP_FAILED) return false;
        memory = static_cast<char*>(at);
        std::memset(memory, '#', all_bytes);
        return true;
    }
    Result<backend::DmaBuf> dma_buf(const Buffer& part) override {
        const auto offset = static_cast<Bytes>(static_cast<const char*>(part.address()) - memory);
        return backend::DmaBuf{exported ? exported.get() : pages.get(), offset + astray, nullptr};
    }
    Result<void> see_writes(const Place&) override { return {}; }
    Result<Allocation> scratch(const Place& gpu, Bytes bytes) override {
        ++trials;
        return Allocation(Buffer::memory(gpu, memory + device_bytes, bytes), MemoryKind::device, [] {});
    }
    Result<void> copy_in(const Buffer& to, const void* from) override {
        std::memcpy(to.address(), from, to.size());
        if (hurt == in) ++*static_cast<char*>(to.address());
        return {};
    }
    Result<void> copy_out(const Buffer& from, void* to) override {
        std::memcpy(to, from.address(), from.size());
        if (hurt == out) ++*static_cast<char*>(to);
        return {};
    }
    Buffer part(Bytes offset, Bytes bytes) const { return Buffer::gpu(0, memory + offset, bytes); }
};

std::unique_ptr<Device> heap() {
    auto device = std::make_unique<Device>();
    const driver::Fd heap(::open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC));
    dma_heap_allocation_data wanted{};
    wanted.len = all_bytes;
    wanted.fd_flags = O_RDWR | O_CLOEXEC;
    if (!heap || ::ioctl(heap.get(), DMA_HEAP_IOCTL_ALLOC, &wanted) != 0) return nullptr;
    device->pages = driver::Fd(static_cast<int>(wanted.fd));
    return device->map() ? std::move(device) : nullptr;
}

std::unique_ptr<Device> pages_alone() {
    auto device = std::make_unique<Device>();
    device->pages = driver::Fd(::memfd_create("device", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!device->pages || ::ftruncate(device->pages.get(), all_bytes) != 0) return nullptr;
    return device->map() ? std::move(device) : nullptr;
}

std::unique_ptr<Device> udmabuf() {
    auto device = pages_alone();
    const driver::Fd maker(::open("/dev/udmabuf", O_RDWR | O_CLOEXEC));
    if (!device || !maker || ::fcntl(device->pages.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) return nullptr;
    udmabuf_create wanted{};
    wanted.memfd = static_cast<__u32>(device->pages.get());
    wanted.flags = UDMABUF_FLAGS_CLOEXEC;
    wanted.size = all_bytes;
    device->exported = driver::Fd(::ioctl(maker.get(), UDMABUF_CREATE, &wanted));
    return device->exported ? std::move(device) : nullptr;
}

// Puts what comes into memory of a device, at the frame's offset.
class IntoDevice final : public backend::LinkOwner {
public:
    explicit IntoDevice(char* memory) : memory_(memory) {}
    Result<Landing> landing(const Frame& frame) override {
        return Landing{Landing::Kind::here, memory_ + frame.offset};
    }
    Result<void> arrived(const Frame&, Landing) override {
        ++came;
        return {};
    }
    void ended(Error) override {}
    std::atomic<int> came{0};

private:
    char* const memory_;
};

class VerbsDevices : public testing::Test {
protected:
    void SetUp() override {
        if (test::verbs_card() == nullptr) GTEST_SKIP() << "SIDESTEP_TEST_VERBS names no RDMA card";
    }
    static std::unique_ptr<Engine> engine(const char* library = nullptr) {
        backends::verbs::Options options;
        options.cards = {test::verbs_card()};
        if (library != nullptr) options.library = library;
        return Engine::create(options).value();
    }
    // Pushes into the part of the device's memory from that offset on, and answers how many frames came without a copy.
    static std::uint64_t push_into(Engine& engine, Device& device, Bytes offset, const std::string& bytes) {
        const auto owner = std::make_shared<IntoDevice>(device.memory);
        const auto sender = std::make_shared<test::Target>(1);
        const auto receiving = engine.link(owner), sending = engine.link(sender);
        test::Ends ends = test::connected();
        EXPECT_TRUE(receiving->add(test::number_of(std::move(ends.one))).ok());
        EXPECT_TRUE(sending->add(test::number_of(std::move(ends.other))).ok());
        EXPECT_EQ(sending->direct_above(), 4096u);
        const std::uint64_t before = engine.counts().direct_in;
        int frames = 0;
        for (Bytes at = 0; at < bytes.size(); at += one_mib, ++frames)
            sending->send({Frame::Kind::push, 1, 1, offset + at, std::min(one_mib, bytes.size() - at)},
                          bytes.data() + at, {});
        EXPECT_TRUE(test::comes([&] { return owner->came == frames; }));
        sending->end(test::some_error());
        receiving->end(test::some_error());
        return engine.counts().direct_in - before;
    }
};

// Whichever the step that works, the next is told with why the one before does not.
TEST_F(VerbsDevices, EachStepIsTold) {
    const char* const stand_in = std::getenv("SIDESTEP_DMA_BUF_VERBS");
    ASSERT_NE(stand_in, nullptr) << "SIDESTEP_DMA_BUF_VERBS names no library";
    struct Case {
        const char* what;
        std::unique_ptr<Device> (*make)();
        const char* library;
        bool reached;
        std::vector<const char*> words;
    };
    const std::vector<Case> cases = {
        {"neither",
         heap,
         nullptr,
         false,
         {"neither by dma-buf", "Operation not supported", "nvidia-peermem", "Bad address"}},
        {"by its address", udmabuf, nullptr, true, {"by its address (no dma-buf", "Operation not supported"}},
        {"by dma-buf", pages_alone, stand_in, true, {"by dma-buf and rxe0"}},
    };
    for (const auto& [what, make, library, reached, words] : cases) {
        const auto device = make();
        ASSERT_NE(device, nullptr) << what << ": the kernel has no such exporter";
        const auto one = engine(library);
        constexpr Bytes offset = 8192 + 100, bytes = 3 * one_mib + 5000;  // 100 bytes into a page
        auto ready = one->prepare_device(device->part(offset, bytes), *device);
        const std::string said = !ready ? ready.error().to_string() : (*ready)->words;
        fmt::print("{}: {}\n", what, said);
        ASSERT_EQ(ready.ok(), reached) << what << ": " << said;
        for (const char* word : words) EXPECT_NE(said.find(word), std::string::npos) << what << ": " << said;
        if (!reached) continue;
        const std::string text = sidestep::test::text_of(bytes, 1);
        EXPECT_EQ(push_into(*one, *device, offset, text), 4u) << what;
        EXPECT_TRUE(std::string(device->memory + offset, bytes) == text) << what;
        EXPECT_EQ(std::string(device->memory, offset), std::string(offset, '#')) << what;
        EXPECT_EQ(std::string(device->memory + offset + bytes, 4096), std::string(4096, '#')) << what;
    }
}

// A card that brings bytes elsewhere, which no registration tells, is found out with memory that is nobody's; the next step
// is taken, and each is tried once.
TEST_F(VerbsDevices, CardsThatBringOtherBytesAreNotTrusted) {
    const char* const stand_in = std::getenv("SIDESTEP_DMA_BUF_VERBS");
    ASSERT_NE(stand_in, nullptr) << "SIDESTEP_DMA_BUF_VERBS names no library";
    struct Case {
        Bytes astray;
        decltype(Device::hurt) hurt;
        bool reached;
        std::vector<const char*> words;
        int trials;
    };
    const std::vector<Case> cases = {
        {0, Device::nowhere, true, {"by dma-buf and rxe0"}, 1},
        {4096, Device::nowhere, true, {"by its address (no dma-buf: rxe0 brought to gpu:0 other bytes"}, 2},
        {0, Device::out, false, {"neither by dma-buf (rxe0 brought to gpu:0", "peermem (rxe0 brought to"}, 2},
        {0,
         Device::in,
         false,
         {"neither by dma-buf (rxe0 brought from gpu:0", "peermem (rxe0 brought from"},
         2},
    };
    for (const auto& [astray, hurt, reached, words, trials] : cases) {
        const auto device = pages_alone();
        ASSERT_NE(device, nullptr);
        device->astray = astray;
        device->hurt = hurt;
        const auto one = engine(stand_in);
        for (int time = 0; time < 2; ++time) {
            auto ready = one->prepare_device(device->part(0, one_mib), *device);
            const std::string said = !ready ? ready.error().to_string() : (*ready)->words;
            EXPECT_EQ(ready.ok(), reached) << said;
            for (const char* word : words) EXPECT_NE(said.find(word), std::string::npos) << said;
            EXPECT_EQ(device->trials, trials) << said;
        }
        EXPECT_TRUE(std::string(device->memory, device_bytes) == std::string(device_bytes, '#'))
            << "the user's bytes";
    }
}

}  // namespace
}  // namespace sidestep::wire
