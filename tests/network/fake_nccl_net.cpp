// A network plugin for tests: TCP over loopback. It is strict where real ones are not always: memory has to be registered with
// the very comm, requests are counted, and each comm is called on the thread that made it. A fault is asked for by
// fake_nccl_net_fault(), or SIDESTEP_FAKE_NCCL_NET for those of the start.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "driver/nccl_net_abi.hpp"
#include "tests/network/cuda_copies.hpp"

#ifndef FAKE_NCCL_NET_VERSION
#define FAKE_NCCL_NET_VERSION 0  // 8 and 10
#endif

namespace {

using namespace sidestep::driver::nccl_net;

std::mutex fault_mutex;
std::string fault_name;
std::atomic<int> open_things{0};
std::atomic<unsigned> calls{0};
std::atomic<int> flushes{0};
// Device 0 is slow, and not to be used.
constexpr int most_devices = 41;
std::atomic<int> sends_by[most_devices] = {};
int context_marker = 0;

bool fails(const char* name) {
    const std::lock_guard lock(fault_mutex);
    return fault_name == name;
}

std::atomic<int> hanging{0};

// Until the fault is taken back.
void hang(const char* name) {
    ++hanging;
    while (fails(name)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --hanging;
}

struct Comm;

struct Region {
    Comm* comm = nullptr;
    char* begin = nullptr;
    std::size_t size = 0;
    bool of_a_device = false;
    sidestep::test::CudaCopies cuda{};
    void* context = nullptr;  // of CUDA, where a processor does not touch it
};

struct Request {
    Comm* comm = nullptr;
    char* data = nullptr;
    std::size_t size = 0;
    std::uint64_t head = 0;  // what the sender says that it is
    std::size_t moved = 0;   // of head and bytes
    bool done = false;
    // Of memory that a processor does not touch: its bytes, and where they belong.
    const Region* region = nullptr;
    char* there = nullptr;
    std::vector<char> here{};

    // What has come is where it belongs; at once where it came there.
    bool land() const {
        return region == nullptr || region->cuda.to_device(region->context, there, here.data(), head);
    }
};

struct Comm {
    Comm(int number, int of) : fd(number), device(of), sends(of >= 0) { ++open_things; }
    ~Comm() {
        ::close(fd);
        for (Request* one : requests) delete one;
        --open_things;
    }
    bool here() const { return std::this_thread::get_id() == thread; }

    const int fd;
    const int device;  // of one that sends; else -1
    const bool sends;
    const std::thread::id thread = std::this_thread::get_id();
    std::set<Region*> regions;
    std::set<Request*> requests;
    std::deque<Request*> queue;
    bool broken = false;
};

struct Listener {
    int fd = -1;
};

// What stands in a handle; the state is the connecting end's, as in real plugins.
struct Handle {
    std::uint32_t magic;
    std::uint16_t port;
    int socket;  // one more than its number
};
constexpr std::uint32_t magic = 0xfa4e0001;

void not_blocking(int fd) {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Status start() {
    if (const char* set = std::getenv("SIDESTEP_FAKE_NCCL_NET"); set != nullptr) {
        const std::lock_guard lock(fault_mutex);
        fault_name = set;
    }
    hang("init-hangs");
    return fails("init") ? system_error : success;
}

int device_count() {
    return fails("no-devices") ? 0 : fails("many-devices") ? most_devices : 3;
}

bool is_quick(int device) {
    return device > 0 && device < device_count();
}

Status devices(int* count) {
    *count = device_count();
    return success;
}

template <typename Properties>
void describe(int device, Properties& to) {
    static std::array<std::string, most_devices> names = [] {
        std::array<std::string, most_devices> all{"slow0"};
        for (std::size_t i = 1; i < all.size(); ++i) all[i] = "fast" + std::to_string(i - 1);
        return all;
    }();
    std::memset(&to, 0, sizeof(to));
    to.name = names[static_cast<std::size_t>(device)].data();
    // Cards of the built-in machine dgx-h100.
    static char paths[most_devices][48] = {"", "/sys/devices/pci0000:15/0000:18:00.0",
                                           "/sys/devices/pci0000:c7/0000:ce:00.0"};
    to.pci_path = fails("no-paths") ? nullptr : paths[device];
    to.memory = fails("no-host-memory")  ? cuda_memory
                : fails("no-gpu-memory") ? host_memory
                                         : host_memory | cuda_memory | dma_buf_memory;
    to.speed = device == 0 ? 1000 : 100'000;
    to.most_comms = 1 << 10;
    to.most_receives = 1;
    if constexpr (requires { to.most_bytes; }) {
        to.parts = 1;
        to.most_bytes = std::size_t{1} << 30;
    }
}

template <typename Properties>
Status get_properties(int device, void* to) {
    if (device < 0 || device >= device_count()) return invalid_argument;
    describe(device, *static_cast<Properties*>(to));
    return success;
}

Status listen_at(int device, void* to, void** listening) {
    if (!is_quick(device) || fails("listen")) return invalid_argument;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 4) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
        return system_error;
    not_blocking(fd);
    const Handle handle{magic, address.sin_port, 0};
    std::memcpy(to, &handle, sizeof(handle));
    ++open_things;
    *listening = new Listener{fd};
    return success;
}

Status connect_to(int device, void* to, void** sending) {
    *sending = nullptr;
    Handle handle{};
    std::memcpy(&handle, to, sizeof(handle));
    if (!is_quick(device) || handle.magic != magic || fails("connect")) return remote_error;
    if (fails("connect-never")) return success;
    if (handle.socket == 0) {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) return system_error;
        not_blocking(fd);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = handle.port;
        if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 &&
            errno != EINPROGRESS) {
            ::close(fd);
            return system_error;
        }
        handle.socket = fd + 1;
        std::memcpy(to, &handle, sizeof(handle));
        return success;
    }
    pollfd ready{handle.socket - 1, POLLOUT, 0};
    if (::poll(&ready, 1, 0) == 0) return success;
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
        ::close(ready.fd);
        return remote_error;
    }
    *sending = new Comm(ready.fd, device);
    return success;
}

Status accept_one(void* listening, void** receiving, void**) {
    *receiving = nullptr;
    if (fails("accept")) return system_error;
    const int fd = ::accept4(static_cast<Listener*>(listening)->fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? success : system_error;
    not_blocking(fd);
    *receiving = new Comm(fd, -1);
    return success;
}

Status reg_mr(void* of, void* data, std::size_t size, int kind, void** made) {
    auto* const comm = static_cast<Comm*>(of);
    const bool of_a_device = kind == cuda_memory;
    if (fails("regMr") || (kind != host_memory && !of_a_device) || !comm->here()) return invalid_argument;
    if (of_a_device && fails("regMr-gpu")) return system_error;
    // As where memory may not be locked.
    if (fails("regMr-large") && size > std::size_t{1} << 20) return system_error;
    auto* const region = new Region{comm, static_cast<char*>(data), size, of_a_device};
    if (of_a_device) region->context = region->cuda.context_of(data);
    comm->regions.insert(region);
    ++open_things;
    *made = region;
    return success;
}

Status reg_mr_dma_buf(void* of, void* data, std::size_t size, int kind, std::uint64_t offset, int fd,
                      void** made) {
    struct stat status {};
    if (fails("regMr-gpu") || ::fstat(fd, &status) != 0) return system_error;
    if (offset + size > static_cast<std::size_t>(status.st_size)) return invalid_argument;
    return kind == cuda_memory ? reg_mr(of, data, size, kind, made) : invalid_argument;
}

Status dereg_mr(void* of, void* what) {
    auto* const comm = static_cast<Comm*>(of);
    auto* const region = static_cast<Region*>(what);
    if (!comm->here() || comm->regions.erase(region) == 0) return invalid_argument;
    delete region;
    --open_things;
    return success;
}

// Some requests are not taken at first.
bool not_now() {
    return fails("not-now") && ++calls % 3 != 0;
}

Status begin(Comm* comm, bool sends, void* data, std::size_t size, void* with, void** request) {
    *request = nullptr;
    if (!comm->here() || comm->sends != sends) return invalid_usage;
    if (fails(sends ? "isend" : "irecv")) return internal_error;
    if (sends) ++sends_by[comm->device];
    auto* const region = static_cast<Region*>(with);
    if (comm->regions.count(region) == 0) return invalid_argument;
    auto* const at = static_cast<char*>(data);
    if (at < region->begin || size > region->size ||
        static_cast<std::size_t>(at - region->begin) > region->size - size)
        return invalid_argument;
    if (region->of_a_device && fails("gpu-io")) return system_error;
    if (not_now()) return success;
    if (comm->requests.size() >= static_cast<std::size_t>(most_requests)) return internal_error;
    auto* const made = new Request{comm, at, size, size};
    comm->requests.insert(made);
    if (region->context != nullptr) {
        made->region = region;
        made->there = at;
        made->here.resize(size);
        made->data = made->here.data();
        if (sends && !region->cuda.to_host(region->context, made->data, at, size)) return system_error;
    }
    comm->queue.push_back(made);
    ++open_things;
    *request = made;
    return success;
}

// What has come into memory of a GPU is seen there.
Status flush(void* of, int count, void** data, int* sizes, void** regions, void** request) {
    auto* const comm = static_cast<Comm*>(of);
    auto* const region = static_cast<Region*>(*regions);
    if (!comm->here() || comm->sends || count != 1 || *sizes <= 0 || comm->regions.count(region) == 0 ||
        !region->of_a_device || *data < region->begin)
        return invalid_argument;
    if (fails("iflush")) return system_error;
    if (fails("gpu-bytes")) ++*static_cast<char*>(*data);
    auto* const made = new Request{comm};
    made->done = true;
    comm->requests.insert(made);
    ++open_things;
    ++flushes;
    *request = made;
    return success;
}

// As far as the socket takes it; whether the first of the queue is done.
bool step(Comm* comm) {
    Request* const first = comm->queue.front();
    constexpr std::size_t head = sizeof(first->head);
    char* const begin = first->moved < head ? reinterpret_cast<char*>(&first->head) + first->moved
                                            : first->data + first->moved - head;
    const std::size_t all = first->moved < head ? head : head + static_cast<std::size_t>(first->head);
    const ssize_t moved = comm->sends ? ::send(comm->fd, begin, all - first->moved, MSG_NOSIGNAL)
                                      : ::recv(comm->fd, begin, all - first->moved, 0);
    if (moved <= 0) {
        comm->broken = moved == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
        return false;
    }
    first->moved += static_cast<std::size_t>(moved);
    // More than there is room for is an error.
    if (first->moved == head && first->head > first->size) return !(comm->broken = true);
    if (first->moved < head || first->moved < head + first->head) return true;
    first->done = true;
    if (!comm->sends && !first->land()) return !(comm->broken = true);
    comm->queue.pop_front();
    return true;
}

Status test(void* what, int* done, int* size) {
    auto* const request = static_cast<Request*>(what);
    Comm* const comm = request->comm;
    *done = 0;
    hang("test-hangs");
    if (!comm->here()) return invalid_usage;
    if (fails("test")) return system_error;
    if (fails("test-never")) return success;
    while (!comm->queue.empty() && !comm->broken && step(comm)) continue;
    if (!request->done) return comm->broken ? remote_error : success;
    *done = 1;
    *size = static_cast<int>(request->head) / (fails("short") ? 2 : 1);
    comm->requests.erase(request);
    delete request;
    --open_things;
    return success;
}

Status close_comm(void* what) {
    auto* const comm = static_cast<Comm*>(what);
    hang("close-hangs");
    if (!comm->here() || !comm->regions.empty()) return invalid_usage;
    open_things -= static_cast<int>(comm->requests.size());
    delete comm;
    return fails("close") ? system_error : success;
}

Status close_listener(void* what) {
    auto* const listener = static_cast<Listener*>(what);
    ::close(listener->fd);
    delete listener;
    --open_things;
    return success;
}

// The same under the arguments of each version.
[[maybe_unused]] Status init_v8(Log log) {
    log(log_warn + 1, 0, __FILE__, __LINE__, "a plugin for tests, %s", "version 8 or 9");
    return start();
}
[[maybe_unused]] Status init_v10(Log log, Profile profile) {
    return log != nullptr && profile != nullptr ? start() : invalid_argument;
}
[[maybe_unused]] Status init_v11(void** context, std::uint64_t, Config* config, Log, Profile) {
    *context = &context_marker;
    return config->traffic_class == -1 ? start() : invalid_argument;
}
[[maybe_unused]] Status listen_v11(void* context, int device, void* handle, void** listening) {
    return context == &context_marker ? listen_at(device, handle, listening) : invalid_argument;
}
[[maybe_unused]] Status connect_v8(int device, void* handle, void** sending, void** offload) {
    return *offload == nullptr ? connect_to(device, handle, sending) : invalid_argument;
}
[[maybe_unused]] Status connect_v10(int device, Config* config, void* handle, void** sending,
                                    void** offload) {
    return config->traffic_class == -1 ? connect_v8(device, handle, sending, offload) : invalid_argument;
}
[[maybe_unused]] Status connect_v11(void* context, int device, void* handle, void** sending, void** offload) {
    return context == &context_marker ? connect_v8(device, handle, sending, offload) : invalid_argument;
}
[[maybe_unused]] Status send_v8(void* comm, void* data, int size, int, void* region, void** request) {
    return begin(static_cast<Comm*>(comm), true, data, static_cast<std::size_t>(size), region, request);
}
[[maybe_unused]] Status send_v9(void* comm, void* data, std::size_t size, int, void* region, void** request) {
    return begin(static_cast<Comm*>(comm), true, data, size, region, request);
}
[[maybe_unused]] Status send_v10(void* comm, void* data, std::size_t size, int, void* region, void*,
                                 void** request) {
    return begin(static_cast<Comm*>(comm), true, data, size, region, request);
}
[[maybe_unused]] Status receive_v8(void* comm, int, void** data, int* sizes, int*, void** regions,
                                   void** request) {
    return begin(static_cast<Comm*>(comm), false, *data, static_cast<std::size_t>(*sizes), *regions, request);
}
[[maybe_unused]] Status receive_v9(void* comm, int, void** data, std::size_t* sizes, int*, void** regions,
                                   void** request) {
    return begin(static_cast<Comm*>(comm), false, *data, *sizes, *regions, request);
}
[[maybe_unused]] Status receive_v10(void* comm, int, void** data, std::size_t* sizes, int*, void** regions,
                                    void**, void** request) {
    return begin(static_cast<Comm*>(comm), false, *data, *sizes, *regions, request);
}

template <typename Function>
Differs any(Function* function) {
    return reinterpret_cast<Differs>(function);
}

template <typename Properties>
Plugin table(Differs init, Differs listen, Differs connect, Differs send, Differs receive) {
    return {"Stand-in",     init,     devices,    get_properties<Properties>,
            listen,         connect,  accept_one, reg_mr,
            reg_mr_dma_buf, dereg_mr, send,       receive,
            flush,          test,     close_comm, close_comm,
            close_listener};
}

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void fake_nccl_net_fault(const char* name) {
    const std::lock_guard lock(fault_mutex);
    fault_name = name;
}

// Comms, regions and requests that nobody has closed.
EXPORTED int fake_nccl_net_open() {
    return open_things;
}

EXPORTED int fake_nccl_net_flushes() {
    return flushes;
}

// Messages that the device has sent, or was asked to and did not then.
EXPORTED int fake_nccl_net_sends(int device) {
    return sends_by[device];
}

// Calls that hang now.
EXPORTED int fake_nccl_net_hanging() {
    return hanging;
}

#if FAKE_NCCL_NET_VERSION == 0 || FAKE_NCCL_NET_VERSION == 8
EXPORTED Plugin ncclNetPlugin_v8 =
    table<PropertiesV8>(any(init_v8), any(listen_at), any(connect_v8), any(send_v8), any(receive_v8));
#endif
#if FAKE_NCCL_NET_VERSION == 9
EXPORTED Plugin ncclNetPlugin_v9 =
    table<PropertiesV9>(any(init_v8), any(listen_at), any(connect_v8), any(send_v9), any(receive_v9));
#endif
#if FAKE_NCCL_NET_VERSION == 0 || FAKE_NCCL_NET_VERSION == 10
EXPORTED Plugin ncclNetPlugin_v10 =
    table<PropertiesV9>(any(init_v10), any(listen_at), any(connect_v10), any(send_v10), any(receive_v10));
#endif
#if FAKE_NCCL_NET_VERSION == 11
EXPORTED Plugin ncclNetPlugin_v11 =
    table<PropertiesV9>(any(init_v11), any(listen_v11), any(connect_v11), any(send_v10), any(receive_v10));
#endif
#if FAKE_NCCL_NET_VERSION == 12
EXPORTED Plugin ncclNetPlugin_v12 =
    table<PropertiesV12>(any(init_v11), any(listen_v11), any(connect_v11), any(send_v10), any(receive_v10));
#endif
}
