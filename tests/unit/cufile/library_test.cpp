// The library as a table: what it lacks, what its answers mean, what it counted.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include <dlfcn.h>

#include "backends/cufile/proof.hpp"
#include "driver/cufile.hpp"

namespace sidestep::backends::cufile {
namespace {

using driver::Cufile;
using driver::CufileGpuCounts;

// FAKE_CUFILE for the length of a test.
class LibraryTest : public testing::Test {
protected:
    ~LibraryTest() override { ::unsetenv("FAKE_CUFILE"); }
    static void with(const char* words) { ::setenv("FAKE_CUFILE", words, 1); }
    static std::shared_ptr<const Cufile> load() { return Cufile::load({SIDESTEP_FAKE_CUFILE}).value(); }
};

TEST_F(LibraryTest, TellsItsVersion) {
    EXPECT_EQ(load()->version(), 1150);
    EXPECT_EQ(load()->version_text(), "1.15");
    EXPECT_TRUE(load()->has_stats());
    const auto old = Cufile::load({SIDESTEP_FAKE_CUFILE_OLD}).value();
    EXPECT_EQ(old->version(), 1070);
    EXPECT_FALSE(old->has_stats());
    ASSERT_TRUE(old->open_driver("/tmp"));
    EXPECT_EQ(old->gpu_counts().error().code, ErrorCode::unsupported);
}

TEST_F(LibraryTest, TheFirstNameThatIsThereCounts) {
    EXPECT_TRUE(Cufile::load({"libnowhere.so.0", SIDESTEP_FAKE_CUFILE}));
    const auto none = Cufile::load({"libnowhere.so.0", "/nowhere/libcufile.so.0"});
    EXPECT_EQ(none.error().code, ErrorCode::not_found);
    EXPECT_EQ(none.error().message, "libcufile.so.0 was not found");
    // A library that is none of cuFile's: the first function that it lacks is named.
    const auto other = Cufile::load({"libm.so.6"});
    EXPECT_EQ(other.error().code, ErrorCode::unsupported);
    EXPECT_NE(other.error().message.find("cuFileDriverOpen"), std::string::npos) << other.error().to_string();
}

TEST_F(LibraryTest, OpeningFailsWithTheCodeInWords) {
    with("open=5033");
    const auto failed = load()->open_driver("/tmp");
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().message, "cuFileDriverOpen failed: 5033 NVFS_SETUP_ERROR");
    EXPECT_FALSE(failed.error().hint.empty());
    with("");
    EXPECT_TRUE(load()->open_driver("/tmp"));
    with("open=5026");  // it is open already
    EXPECT_TRUE(load()->open_driver("/tmp"));
}

// The log must not land in the working directory, unless the user named a place.
TEST(Log, GoesIntoTheFolderUnlessTheUserChoseOne) {
    void* const library = ::dlopen(SIDESTEP_FAKE_CUFILE, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr);
    const auto folder = reinterpret_cast<const char* (*)()>(::dlsym(library, "fake_cufile_log_folder"));
    const auto opened = reinterpret_cast<int (*)()>(::dlsym(library, "fake_cufile_opened"));
    ASSERT_TRUE(folder && opened);
    if (opened() > 0) GTEST_SKIP() << "the driver is open in this process: it takes settings before only";
    const auto cufile = Cufile::load({SIDESTEP_FAKE_CUFILE}).value();
    ::setenv("FAKE_CUFILE", "open=5033", 1);
    ::setenv("CUFILE_LOGFILE_PATH", "/var/log/mine", 1);
    EXPECT_FALSE(cufile->open_driver("/chosen/here"));
    EXPECT_STREQ(folder(), "");
    ::unsetenv("CUFILE_LOGFILE_PATH");
    EXPECT_FALSE(cufile->open_driver("/chosen/here"));
    EXPECT_STREQ(folder(), "/chosen/here");
    EXPECT_FALSE(cufile->open_driver("/elsewhere"));
    EXPECT_STREQ(folder(), "/chosen/here") << "a folder of cufile.json stays";
    reinterpret_cast<driver::cufile_abi::Status (*)(int, const char*)>(
        ::dlsym(library, "cuFileSetParameterString"))(driver::cufile_abi::parameter_log_folder, ".");
    EXPECT_FALSE(cufile->open_driver("/elsewhere"));
    EXPECT_STREQ(folder(), "/elsewhere") << "the working directory is the library's default";
    ::unsetenv("FAKE_CUFILE");
}

TEST_F(LibraryTest, StatisticsOfAnUnknownSizeAreRefused) {
    const auto cufile = load();
    ASSERT_TRUE(cufile->open_driver("/tmp"));
    EXPECT_TRUE(cufile->gpu_counts());
    with("overrun");
    const auto counts = cufile->gpu_counts();
    ASSERT_FALSE(counts);
    EXPECT_EQ(counts.error().code, ErrorCode::unsupported);
    with("1.19");
    const auto newer = load();
    EXPECT_EQ(newer->version_text(), "1.19");
    EXPECT_TRUE(newer->gpu_counts()) << newer->gpu_counts().error().to_string();
}

TEST(Words, OfCodes) {
    EXPECT_EQ(driver::cufile_words(5001), "5001 DRIVER_NOT_INITIALIZED");
    EXPECT_EQ(driver::cufile_words(5027), "5027 HANDLE_NOT_REGISTERED");
    EXPECT_EQ(driver::cufile_words(5030), "5030 INTERNAL_ERROR");
    EXPECT_EQ(driver::cufile_words(5049), "5049 BATCH_NOCOMPAT_ERROR");
    EXPECT_EQ(driver::cufile_words(5050), "5050 IO_MAX_ERROR");
    for (const int code : {0, 5000, 5051, -5, 70000})
        EXPECT_NE(driver::cufile_words(code).find("unknown"), std::string::npos) << code;
}

// Records where the two layouts have them, by bytes and not by the struct's own idea of itself.
TEST(Statistics, AreFoundInBothLayouts) {
    for (const auto& layout : {driver::cufile_abi::stats_before_1_19, driver::cufile_abi::stats_since_1_19}) {
        std::vector<unsigned char> bytes(layout.size, 0);
        const auto put = [&](std::size_t at, std::uint64_t value) { std::memcpy(&bytes[at], &value, 8); };
        bytes[layout.size - 16 * 248 - 8] = 2;  // GPUs
        const std::size_t second = layout.size - 15 * 248;
        bytes[second] = 0x42;          // of the UUID
        put(second + 16 + 5 * 8, 3);   // p2p reads
        put(second + 16 + 6 * 8, 4);   // nvfs reads
        put(second + 16 + 7 * 8, 5);   // posix reads
        put(second + 16 + 18 * 8, 6);  // p2p writes
        put(second + 16 + 19 * 8, 7);  // nvfs writes
        put(second + 16 + 20 * 8, 8);  // posix writes
        const auto counts = driver::parse_cufile_stats(bytes.data(), layout);
        ASSERT_TRUE(counts);
        ASSERT_EQ(counts->size(), 2u);
        std::array<unsigned char, 16> uuid{};
        uuid[0] = 0x42;
        EXPECT_EQ(counts_of(*counts, uuid, false).direct, 7u);
        EXPECT_EQ(counts_of(*counts, uuid, false).posix, 5u);
        EXPECT_EQ(counts_of(*counts, uuid, true).direct, 13u);
        EXPECT_EQ(counts_of(*counts, uuid, true).posix, 8u);
        uuid[1] = 1;
        EXPECT_EQ(counts_of(*counts, uuid, true).posix, 0u) << "a GPU that is not listed";
        bytes[layout.size - 16 * 248 - 8] = 17;
        EXPECT_FALSE(driver::parse_cufile_stats(bytes.data(), layout));
    }
}

TEST(Accounts, ATrialIsAProofOnlyWhereItWasCountedAsDirect) {
    EXPECT_FALSE(what_a_trial_lacks({10, 4, 6}, {11, 5, 6}));
    EXPECT_NE(what_a_trial_lacks({10, 4, 6}, {11, 4, 7})->find("through host memory"), std::string::npos);
    EXPECT_NE(what_a_trial_lacks({10, 4, 6}, {12, 5, 7})->find("through host memory"), std::string::npos);
    EXPECT_NE(what_a_trial_lacks({10, 4, 6}, {10, 4, 6})->find("neither"), std::string::npos);
}

TEST(Accounts, OnlyWhatIsCountedIsDirect) {
    // requests, bytes, largest, all requests, direct, posix
    EXPECT_EQ(unproven_bytes({8, 32_MiB, 4_MiB, 8, 8, 0}), 0u);
    EXPECT_EQ(unproven_bytes({8, 32_MiB, 4_MiB, 8, 16, 0}), 0u) << "operations split in two";
    EXPECT_EQ(unproven_bytes({8, 32_MiB, 4_MiB, 8, 7, 1}), 4_MiB);
    EXPECT_EQ(unproven_bytes({8, 32_MiB, 4_MiB, 8, 6, 0}), 8_MiB) << "not counted at all";
    EXPECT_EQ(unproven_bytes({8, 32_MiB, 4_MiB, 8, 0, 100}), 32_MiB);
    // Another copy on the same GPU: its direct operations do not stand in for this one's.
    EXPECT_EQ(unproven_bytes({8, 32_MiB, 4_MiB, 16, 12, 0}), 16_MiB);
    EXPECT_EQ(unproven_bytes({0, 0, 0, 16, 12, 4}), 0u);
}

}  // namespace
}  // namespace sidestep::backends::cufile
