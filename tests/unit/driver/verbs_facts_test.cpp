#include "driver/verbs_facts.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>

#include "driver/dynamic_library.hpp"

// The made-up libraries that the build made of fake_verbs_library.cpp.
#ifndef SIDESTEP_FAKE_VERBS
#error "SIDESTEP_FAKE_VERBS is the path of the made-up library"
#endif

namespace sidestep::driver {
namespace {

const std::string verbs_library = SIDESTEP_FAKE_VERBS;
const std::string old_verbs_library = SIDESTEP_FAKE_VERBS_OLD;
const std::string broken_verbs_library = SIDESTEP_FAKE_VERBS_BROKEN;

int ask(const std::string& path, const char* what) {
    const auto same = DynamicLibrary::open(path);
    int (*answer)() = nullptr;
    if (!same.ok() || !same->bind(answer, what).ok()) return -1;
    return answer();
}

VerbsDevice device(const VerbsFacts& facts, const std::string& name) {
    for (const VerbsDevice& device : facts.devices) {
        if (device.name == name) return device;
    }
    ADD_FAILURE() << "no device " << name;
    return {};
}

// The made-up libraries lie in the build folder: a bundle that was carried elsewhere goes without.
class VerbsLibrary : public testing::Test {
protected:
    void SetUp() override {
        if (!std::filesystem::exists(verbs_library))
            GTEST_SKIP() << verbs_library << " is not here, only where it was built";
    }
};

TEST(VerbsFacts, SaysWhyTheLibraryIsNotThere) {
    const VerbsFacts facts = read_verbs_facts("libno-such-verbs.so.1");
    EXPECT_FALSE(facts.loaded);
    EXPECT_NE(facts.reason.find("libno-such-verbs.so.1"), std::string::npos) << facts.reason;
    EXPECT_TRUE(facts.devices.empty());
}

// Whatever the machine that runs this has: the system's own library, or none.
TEST(VerbsFacts, TheSystemsLibraryDoesNoHarm) {
    const VerbsFacts facts = read_verbs_facts();
    EXPECT_EQ(facts.reason.empty() || facts.devices.empty(), true) << facts.reason;
}

TEST_F(VerbsLibrary, SaysWhichFunctionIsMissing) {
    const VerbsFacts facts = read_verbs_facts(broken_verbs_library);
    EXPECT_FALSE(facts.loaded);
    EXPECT_NE(facts.reason.find("ibv_alloc_pd"), std::string::npos) << facts.reason;
}

TEST_F(VerbsLibrary, TellsWhichCardsTakeDmaBuf) {
    const VerbsFacts facts = read_verbs_facts(verbs_library);
    EXPECT_TRUE(facts.loaded);
    EXPECT_EQ(facts.reason, "");
    ASSERT_EQ(facts.devices.size(), 7U);
    EXPECT_EQ(device(facts, "takes0").dma_buf, std::optional(true));
    EXPECT_EQ(device(facts, "takes0").dma_buf_words,
              "ibv_reg_dmabuf_mr(fd -1): EBADF, it would take a real one");
    EXPECT_EQ(device(facts, "never0").dma_buf, std::optional(false));
    EXPECT_EQ(device(facts, "never0").dma_buf_words, "ibv_reg_dmabuf_mr(fd -1): EOPNOTSUPP");
    EXPECT_EQ(device(facts, "old0").dma_buf, std::optional(false));
    EXPECT_EQ(device(facts, "odd0").dma_buf, std::nullopt);
    EXPECT_EQ(device(facts, "odd0").dma_buf_words, "ibv_reg_dmabuf_mr failed: Invalid argument");
    EXPECT_EQ(device(facts, "generous0").dma_buf, std::nullopt);
}

TEST_F(VerbsLibrary, SaysWhyACardDoesNotOpen) {
    const VerbsFacts facts = read_verbs_facts(verbs_library);
    EXPECT_TRUE(device(facts, "takes0").opens);
    EXPECT_FALSE(device(facts, "shut0").opens);
    EXPECT_EQ(device(facts, "shut0").reason, "ibv_open_device failed: Permission denied");
    EXPECT_EQ(device(facts, "shut0").dma_buf, std::nullopt);
    EXPECT_TRUE(device(facts, "poor0").opens);
    EXPECT_EQ(device(facts, "poor0").dma_buf_words, "ibv_alloc_pd failed: Cannot allocate memory");
}

TEST_F(VerbsLibrary, GivesEverythingBack) {
    read_verbs_facts(verbs_library);
    EXPECT_EQ(ask(verbs_library, "fake_verbs_held"), 0);
    EXPECT_EQ(ask(verbs_library, "fake_verbs_misuse"), 0);
}

TEST_F(VerbsLibrary, OlderLibrariesCannotRegisterDmaBuf) {
    const VerbsFacts facts = read_verbs_facts(old_verbs_library);
    EXPECT_TRUE(facts.loaded);
    ASSERT_EQ(facts.devices.size(), 7U);
    EXPECT_TRUE(device(facts, "takes0").opens);
    EXPECT_EQ(device(facts, "takes0").dma_buf, std::nullopt);
    EXPECT_EQ(device(facts, "takes0").dma_buf_words,
              "libibverbs has no function ibv_reg_dmabuf_mr: rdma-core is older than 34");
}

TEST_F(VerbsLibrary, AKernelWithoutVerbsHasNoCards) {
    ::setenv("FAKE_VERBS_LIST", std::to_string(ENOSYS).c_str(), 1);
    const VerbsFacts facts = read_verbs_facts(verbs_library);
    ::unsetenv("FAKE_VERBS_LIST");
    EXPECT_TRUE(facts.loaded);
    EXPECT_TRUE(facts.devices.empty());
    EXPECT_EQ(facts.reason, "ibv_get_device_list failed: Function not implemented");
}

}  // namespace
}  // namespace sidestep::driver
