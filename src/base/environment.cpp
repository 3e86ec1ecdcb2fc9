#include "base/environment.hpp"

#include <cmath>
#include <cstdlib>

#include <sidestep/options.hpp>

#include "base/try.hpp"

namespace sidestep::base {
namespace {

std::string text_of(const char* name, std::string fallback) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? std::string(value) : std::move(fallback);
}

Error bad(const char* name, const std::string& value, const std::string& expected) {
    return Error{ErrorCode::invalid_argument, std::string(name) + "=" + value + " cannot be read",
                 "environment", "set it to " + expected};
}

Result<FileIo> parse_file_io(const std::string& text) {
    if (text == "auto") return FileIo::automatic;
    if (text == "uring") return FileIo::uring;
    if (text == "threads") return FileIo::threads;
    return bad("SIDESTEP_FILE_IO", text, "auto, uring or threads");
}

Result<Cufile> parse_cufile(const std::string& text) {
    if (text == "auto") return Cufile::automatic;
    if (text == "off") return Cufile::off;
    return bad("SIDESTEP_CUFILE", text, "auto or off");
}

Result<int> parse_threads(const std::string& text) {
    char* end = nullptr;
    const long count = std::strtol(text.c_str(), &end, 10);
    if (*end != '\0' || count < 0 || count > 1024)
        return bad("SIDESTEP_HOST_THREADS", text, "a number from 0 to 1024");
    return static_cast<int>(count);
}

// These leave the value as it is where the variable is not set.
Result<void> read_limit(const char* name, std::optional<std::chrono::milliseconds>& value) {
    const std::string text = text_of(name, "");
    if (text.empty()) return {};
    char* end = nullptr;
    const double seconds = std::strtod(text.c_str(), &end);
    constexpr auto longest = longest_limit / std::chrono::seconds(1);
    if (*end != '\0' || !(seconds >= 0 && seconds <= static_cast<double>(longest)))
        return bad(name, text, "seconds, from 0 (none) to " + std::to_string(longest));
    // To the millisecond above, so that a short limit does not become none.
    value = std::chrono::milliseconds(static_cast<long long>(std::ceil(seconds * 1000)));
    return {};
}

Result<void> read_count(const char* name, int& value) {
    const std::string text = text_of(name, "");
    if (text.empty()) return {};
    char* end = nullptr;
    const long count = std::strtol(text.c_str(), &end, 10);
    if (*end != '\0' || count < 0 || count > 1'000'000) return bad(name, text, "a number from 0 to 1000000");
    value = static_cast<int>(count);
    return {};
}

Result<Network> parse_network(const std::string& text) {
    if (text == "auto") return Network::automatic;
    if (text == "verbs") return Network::verbs;
    if (text == "ncclnet") return Network::ncclnet;
    if (text == "tcp") return Network::tcp;
    return bad("SIDESTEP_NETWORK", text, "auto, verbs, ncclnet or tcp");
}

Result<bool> parse_switch(const char* name, const std::string& text) {
    if (text == "0" || text == "1") return text == "1";
    return bad(name, text, "0 or 1");
}

Result<void> read_size(const char* name, Bytes& value) {
    const std::string text = text_of(name, "");
    if (text.empty()) return {};
    const auto bytes = parse_bytes(text);
    if (!bytes) return bad(name, text, "a size such as 4GiB");
    value = *bytes;
    return {};
}

}  // namespace

Result<Environment> Environment::read() {
    Environment environment;
    environment.machine = text_of("SIDESTEP_MACHINE", environment.machine);
    environment.probe_file = text_of("SIDESTEP_PROBE_FILE", "");
    environment.peer_folder = text_of("SIDESTEP_PEER_FOLDER", "");
    environment.nodes = text_of("SIDESTEP_NODES", "");
    environment.key_file = text_of("SIDESTEP_KEY_FILE", "");
    SIDESTEP_TRY(environment.network, parse_network(text_of("SIDESTEP_NETWORK", "auto")));
    environment.nccl_net = text_of("SIDESTEP_NCCL_NET", "");
    SIDESTEP_TRY(environment.network_checksums,
                 parse_switch("SIDESTEP_NETWORK_CHECKSUMS", text_of("SIDESTEP_NETWORK_CHECKSUMS", "0")));
    SIDESTEP_TRY(environment.network_encryption,
                 parse_switch("SIDESTEP_NETWORK_ENCRYPTION", text_of("SIDESTEP_NETWORK_ENCRYPTION", "0")));
    environment.log = text_of("SIDESTEP_LOG", environment.log);
    if (environment.log != "error" && environment.log != "warn" && environment.log != "info" &&
        environment.log != "debug")
        return bad("SIDESTEP_LOG", environment.log, "error, warn, info or debug");
    SIDESTEP_TRY(environment.host_threads, parse_threads(text_of("SIDESTEP_HOST_THREADS", "0")));
    SIDESTEP_TRY(environment.file_io, parse_file_io(text_of("SIDESTEP_FILE_IO", "auto")));
    SIDESTEP_TRY(environment.cufile, parse_cufile(text_of("SIDESTEP_CUFILE", "auto")));
    SIDESTEP_CHECK(read_size("SIDESTEP_EMULATED_GPU_MEMORY", environment.emulated_gpu_memory));
    SIDESTEP_CHECK(read_size("SIDESTEP_PINNED_POOL", environment.pinned_pool));
    SIDESTEP_CHECK(read_size("SIDESTEP_PINNED_CACHE", environment.pinned_cache));
    SIDESTEP_CHECK(read_size("SIDESTEP_RELAY_MEMORY", environment.relay_memory));
    SIDESTEP_CHECK(read_limit("SIDESTEP_GROUP_TIMEOUT", environment.group_timeout));
    environment.tuning = text_of("SIDESTEP_TUNING", "");
    environment.group_id = text_of("SIDESTEP_GROUP_ID", "");
    SIDESTEP_CHECK(read_count("SIDESTEP_RANK", environment.rank));
    SIDESTEP_CHECK(read_count("SIDESTEP_RANKS", environment.ranks));
    return environment;
}

}  // namespace sidestep::base
