// Every environment variable, with good values and bad ones, and the log that obeys one of them.
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <sidestep/options.hpp>

#include "base/environment.hpp"
#include "base/log.hpp"

namespace sidestep::base {
namespace {

// Gives each test an environment without any of the library's variables, and puts the old one back.
class EnvironmentTest : public testing::Test {
protected:
    EnvironmentTest() {
        for (const char* name :
             {"SIDESTEP_MACHINE", "SIDESTEP_PEER_FOLDER", "SIDESTEP_NETWORK", "SIDESTEP_NCCL_NET",
              "SIDESTEP_LOG", "SIDESTEP_HOST_THREADS", "SIDESTEP_FILE_IO", "SIDESTEP_CUFILE",
              "SIDESTEP_EMULATED_GPU_MEMORY", "SIDESTEP_PINNED_POOL", "SIDESTEP_PINNED_CACHE",
              "SIDESTEP_RELAY_MEMORY", "SIDESTEP_GROUP_TIMEOUT", "SIDESTEP_TUNING", "SIDESTEP_GROUP_ID",
              "SIDESTEP_RANK", "SIDESTEP_RANKS"}) {
            const char* value = std::getenv(name);
            before_[name] = value != nullptr ? std::optional<std::string>(value) : std::nullopt;
            ::unsetenv(name);
        }
    }
    ~EnvironmentTest() override {
        for (const auto& [name, value] : before_) {
            if (value)
                ::setenv(name.c_str(), value->c_str(), 1);
            else
                ::unsetenv(name.c_str());
        }
    }

    static Result<Environment> read_with(const char* name, const char* value) {
        ::setenv(name, value, 1);
        return Environment::read();
    }

    static void expect_refused(const char* name, const char* value) {
        const auto environment = read_with(name, value);
        ASSERT_FALSE(environment.ok()) << name << "=" << value;
        EXPECT_EQ(environment.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(environment.error().message.find(std::string(name) + "=" + value), std::string::npos)
            << environment.error().message;
        EXPECT_NE(environment.error().hint.find("set it to "), std::string::npos);
        ::unsetenv(name);
    }

private:
    std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(EnvironmentTest, DefaultsWhereNothingIsSet) {
    const auto environment = Environment::read();
    ASSERT_TRUE(environment.ok());
    EXPECT_EQ(environment->machine, "live");
    EXPECT_EQ(environment->peer_folder, "");
    EXPECT_EQ(environment->log, "warn");
    EXPECT_EQ(environment->host_threads, 0);
    EXPECT_EQ(environment->file_io, FileIo::automatic);
    EXPECT_EQ(environment->emulated_gpu_memory, 0u);
}

TEST_F(EnvironmentTest, EmptyMeansUnset) {
    for (const char* name : {"SIDESTEP_MACHINE", "SIDESTEP_LOG", "SIDESTEP_HOST_THREADS", "SIDESTEP_FILE_IO",
                             "SIDESTEP_EMULATED_GPU_MEMORY"})
        ::setenv(name, "", 1);
    const auto environment = Environment::read();
    ASSERT_TRUE(environment.ok()) << environment.error().to_string();
    EXPECT_EQ(environment->machine, "live");
    EXPECT_EQ(environment->log, "warn");
}

TEST_F(EnvironmentTest, Machine) {
    EXPECT_EQ(read_with("SIDESTEP_MACHINE", "dgx-h100")->machine, "dgx-h100");
    EXPECT_EQ(read_with("SIDESTEP_MACHINE", "./recorded.json")->machine, "./recorded.json");
}

TEST_F(EnvironmentTest, Log) {
    for (const char* level : {"error", "warn", "info", "debug"})
        EXPECT_EQ(read_with("SIDESTEP_LOG", level)->log, level);
    for (const char* level : {"loud", "WARN", "2", " info", "warning"}) expect_refused("SIDESTEP_LOG", level);
}

TEST_F(EnvironmentTest, HostThreads) {
    EXPECT_EQ(read_with("SIDESTEP_HOST_THREADS", "0")->host_threads, 0);
    EXPECT_EQ(read_with("SIDESTEP_HOST_THREADS", "8")->host_threads, 8);
    EXPECT_EQ(read_with("SIDESTEP_HOST_THREADS", "1024")->host_threads, 1024);
    for (const char* count : {"-1", "1025", "8x", "x", "1.5", "99999999999999999999"})
        expect_refused("SIDESTEP_HOST_THREADS", count);
}

TEST_F(EnvironmentTest, FileIo) {
    EXPECT_EQ(read_with("SIDESTEP_FILE_IO", "auto")->file_io, FileIo::automatic);
    EXPECT_EQ(read_with("SIDESTEP_FILE_IO", "uring")->file_io, FileIo::uring);
    EXPECT_EQ(read_with("SIDESTEP_FILE_IO", "threads")->file_io, FileIo::threads);
    for (const char* way : {"io_uring", "Threads", "aio", "0"}) expect_refused("SIDESTEP_FILE_IO", way);
    EXPECT_EQ(read_with("SIDESTEP_CUFILE", "off")->cufile, Cufile::off);
    EXPECT_EQ(read_with("SIDESTEP_CUFILE", "auto")->cufile, Cufile::automatic);
    for (const char* way : {"on", "OFF", "1"}) expect_refused("SIDESTEP_CUFILE", way);
}

TEST_F(EnvironmentTest, Network) {
    EXPECT_EQ(read_with("SIDESTEP_NETWORK", "auto")->network, Network::automatic);
    EXPECT_EQ(read_with("SIDESTEP_NETWORK", "verbs")->network, Network::verbs);
    EXPECT_EQ(read_with("SIDESTEP_NETWORK", "ncclnet")->network, Network::ncclnet);
    EXPECT_EQ(read_with("SIDESTEP_NETWORK", "tcp")->network, Network::tcp);
    EXPECT_EQ(Environment::read()->nccl_net, "");
    EXPECT_EQ(read_with("SIDESTEP_NCCL_NET", "ofi")->nccl_net, "ofi");
    for (const char* engine : {"rdma", "TCP", "tcp,verbs", "1"}) expect_refused("SIDESTEP_NETWORK", engine);
}

TEST_F(EnvironmentTest, EmulatedGpuMemory) {
    EXPECT_EQ(read_with("SIDESTEP_EMULATED_GPU_MEMORY", "4GiB")->emulated_gpu_memory, 4_GiB);
    EXPECT_EQ(read_with("SIDESTEP_EMULATED_GPU_MEMORY", "65536")->emulated_gpu_memory, 65536u);
    for (const char* size : {"lots", "-4GiB", "4gib", "99999999999TiB"})
        expect_refused("SIDESTEP_EMULATED_GPU_MEMORY", size);
}

TEST_F(EnvironmentTest, BoundsOfMemory) {
    const auto defaults = Environment::read();
    EXPECT_EQ(defaults->pinned_pool, 1_GiB);
    EXPECT_EQ(defaults->pinned_cache, 1_GiB);
    EXPECT_EQ(defaults->relay_memory, 64_MiB);
    EXPECT_EQ(read_with("SIDESTEP_PINNED_POOL", "0")->pinned_pool, 0u);
    EXPECT_EQ(read_with("SIDESTEP_PINNED_CACHE", "2GiB")->pinned_cache, 2_GiB);
    EXPECT_EQ(read_with("SIDESTEP_RELAY_MEMORY", "1MiB")->relay_memory, 1_MiB);
    for (const char* name : {"SIDESTEP_PINNED_POOL", "SIDESTEP_PINNED_CACHE", "SIDESTEP_RELAY_MEMORY"})
        for (const char* size : {"lots", "-1", "1gib"}) expect_refused(name, size);
}

TEST_F(EnvironmentTest, Groups) {
    const auto defaults = Environment::read();
    EXPECT_FALSE(defaults->group_timeout.has_value());
    EXPECT_EQ(defaults->rank, -1);
    using std::chrono::milliseconds;
    EXPECT_EQ(read_with("SIDESTEP_GROUP_TIMEOUT", "2.5")->group_timeout, milliseconds(2500));
    EXPECT_EQ(read_with("SIDESTEP_GROUP_TIMEOUT", "0")->group_timeout, milliseconds(0));
    EXPECT_EQ(read_with("SIDESTEP_GROUP_TIMEOUT", "0.0001")->group_timeout, milliseconds(1));
    EXPECT_EQ(read_with("SIDESTEP_GROUP_TIMEOUT", "31536000")->group_timeout, longest_limit);
    for (const char* time : {"-1", "soon", "nan", "inf", "10s", "31536000.1", "1e300"})
        expect_refused("SIDESTEP_GROUP_TIMEOUT", time);
    EXPECT_EQ(read_with("SIDESTEP_RANK", "3")->rank, 3);
    EXPECT_EQ(read_with("SIDESTEP_RANKS", "4")->ranks, 4);
    EXPECT_EQ(read_with("SIDESTEP_GROUP_ID", "job")->group_id, "job");
    EXPECT_EQ(read_with("SIDESTEP_TUNING", "/x")->tuning, "/x");
    for (const char* name : {"SIDESTEP_RANK", "SIDESTEP_RANKS"})
        for (const char* count : {"-1", "one", "1.5"}) expect_refused(name, count);
}

TEST_F(EnvironmentTest, TheLogSaysWhatIsOfTheWeightAskedFor) {
    ::setenv("SIDESTEP_LOG", "warn", 1);
    testing::internal::CaptureStderr();
    log(LogLevel::error, "one");
    log(LogLevel::warn, "two");
    log(LogLevel::info, "three");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "sidestep: error: one\nsidestep: warn: two\n");
}

}  // namespace
}  // namespace sidestep::base
