#include "bench/raw_cuda_ipc.hpp"

#include <dlfcn.h>

#include <chrono>
#include <cstdio>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/raw_cuda_session.hpp"

namespace sidestep::bench::raw {
namespace {

struct Handle {
    char bytes[64];  // CUipcMemHandle
};

struct IpcCalls {
    Status (*get)(Handle*, Address) = nullptr;
    Status (*open)(Address*, Handle, unsigned) = nullptr;
    Status (*close)(Address) = nullptr;
};

constexpr unsigned lazy_peer_access = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

Result<IpcCalls> ipc_calls() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    IpcCalls found;
    if (library != nullptr) {
        found.get = reinterpret_cast<decltype(found.get)>(dlsym(library, "cuIpcGetMemHandle"));
        found.open = reinterpret_cast<decltype(found.open)>(dlsym(library, "cuIpcOpenMemHandle_v2"));
        found.close = reinterpret_cast<decltype(found.close)>(dlsym(library, "cuIpcCloseMemHandle"));
    }
    if (found.get && found.open && found.close) return found;
    return Error{ErrorCode::unsupported, "libcuda.so.1 has no legacy IPC", "libcuda.so.1", {}};
}

Result<Handle> parse(const std::string& text) {
    Handle handle{};
    if (text.size() != 2 * sizeof(handle.bytes))
        return Error{ErrorCode::invalid_argument, "a handle has 128 digits", text, {}};
    for (std::size_t i = 0; i < sizeof(handle.bytes); ++i) {
        unsigned byte = 0;
        if (std::sscanf(text.c_str() + 2 * i, "%2x", &byte) != 1)
            return Error{ErrorCode::invalid_argument, "a handle has hexadecimal digits", text, {}};
        handle.bytes[i] = static_cast<char>(byte);
    }
    return handle;
}

}  // namespace

Result<std::string> ipc_handle(int gpu, const void* address) {
    SIDESTEP_TRY(const auto found, ipc_calls());
    const auto& opened = driver();
    if (!opened) return opened.error();
    Session session(*opened);
    session.use(gpu);
    Handle handle{};
    session.check(found.get(&handle, reinterpret_cast<Address>(address)), "cuIpcGetMemHandle");
    SIDESTEP_CHECK(session.failed());
    std::string text;
    for (const char byte : handle.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
}

Result<std::vector<double>> open_seconds(int gpu, const std::vector<std::string>& handles) {
    SIDESTEP_TRY(const auto found, ipc_calls());
    const auto& opened = driver();
    if (!opened) return opened.error();
    Session session(*opened);
    session.use(gpu);
    std::vector<double> seconds;
    std::vector<Address> addresses;
    for (const std::string& text : handles) {
        SIDESTEP_TRY(const auto handle, parse(text));
        Address address = 0;
        const auto before = std::chrono::steady_clock::now();
        const Status status = found.open(&address, handle, lazy_peer_access);
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
        session.check(status, "cuIpcOpenMemHandle");
        if (status == success) addresses.push_back(address);
    }
    for (const Address address : addresses) session.check(found.close(address), "cuIpcCloseMemHandle");
    SIDESTEP_CHECK(session.failed());
    return seconds;
}

}  // namespace sidestep::bench::raw
