// The interface between NCCL and its network plugins, versions 8 to 12, as far as it is used here. Written from the description
// and headers under plugins/net of https://github.com/NVIDIA/nccl (2.19 to 2.30); none of them is needed to build.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sidestep::driver::nccl_net {

// What every call answers; 0: it went well.
using Status = int;
constexpr Status success = 0, cuda_error = 1, system_error = 2, internal_error = 3, invalid_argument = 4,
                 invalid_usage = 5, remote_error = 6;

constexpr int oldest_version = 8, newest_version = 12;
constexpr std::size_t handle_bytes = 128;
// A sending end and a receiving end can have so many requests open.
constexpr int most_requests = 32;

// Kinds of memory that a device takes, one bit each.
constexpr int host_memory = 1, cuda_memory = 2, dma_buf_memory = 4;

constexpr int log_warn = 2;
using Log = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
using Profile = Status (*)(void** event, int type, void* handle, std::int64_t plugin, void* data);

// -1: the plugin's own choice.
struct Config {
    int traffic_class = -1;
};

struct PropertiesV8 {
    char* name;
    char* pci_path;
    std::uint64_t guid;
    int memory;
    int registration_is_global;
    int speed;  // Mb/s
    int port;
    float latency;
    int most_comms;
    int most_receives;
    int device_type;
    int device_version;
};

struct PropertiesV9 {  // to 11; 11 has one number more
    char* name;
    char* pci_path;
    std::uint64_t guid;
    int memory;
    int registration_is_global;
    int force_flush;
    int speed;
    int port;
    float latency;
    int most_comms;
    int most_receives;
    int device_type;
    int device_version;
    int parts;
    int part[4];
    std::size_t most_bytes;
    std::size_t most_collective_bytes;
    int most_requests_at_once;
};

struct PropertiesV12 {
    char* name;
    char* pci_path;
    std::uint64_t guid;
    int memory;
    int registration_is_global;
    int force_flush;
    int speed;
    int port;
    float latency;
    int most_comms;
    int most_receives;
    int device_type;
    int device_version;
    int parts;
    int part[8];
    std::size_t most_bytes;
    std::size_t most_collective_bytes;
    int most_requests_at_once;
    std::int16_t rail;
    std::int16_t plane;
};

// Functions whose arguments are not the same in all versions.
using Differs = void (*)();

// What the symbol ncclNetPlugin_vN is. Versions put the same functions at the same places; newer ones have more at the end.
struct Plugin {
    const char* name;
    Differs init;
    Status (*devices)(int* count);
    Status (*get_properties)(int device, void* properties);
    Differs listen;
    Differs connect;
    Status (*accept)(void* listening, void** receiving, void** offload);
    Status (*reg_mr)(void* comm, void* data, std::size_t size, int kind, void** region);
    Status (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int kind, std::uint64_t offset, int fd,
                             void** region);  // null where the plugin has none
    Status (*dereg_mr)(void* comm, void* region);
    Differs isend;
    Differs irecv;
    Status (*iflush)(void* receiving, int count, void** data, int* sizes, void** regions, void** request);
    Status (*test)(void* request, int* done, int* sizes);
    Status (*close_send)(void* sending);
    Status (*close_recv)(void* receiving);
    Status (*close_listen)(void* listening);
};

using InitV8 = Status (*)(Log log);                    // and 9
using InitV10 = Status (*)(Log log, Profile profile);  // 10 alone
using InitV11 = Status (*)(void** context, std::uint64_t number, Config* config, Log log, Profile profile);

using ListenV8 = Status (*)(int device, void* handle, void** listening);  // to 10
using ListenV11 = Status (*)(void* context, int device, void* handle, void** listening);

using ConnectV8 = Status (*)(int device, void* handle, void** sending, void** offload);  // and 9
using ConnectV10 = Status (*)(int device, Config* config, void* handle, void** sending, void** offload);
using ConnectV11 = Status (*)(void* context, int device, void* handle, void** sending, void** offload);

using SendV8 = Status (*)(void* sending, void* data, int size, int tag, void* region, void** request);
using SendV9 = Status (*)(void* sending, void* data, std::size_t size, int tag, void* region, void** request);
using SendV10 = Status (*)(void* sending, void* data, std::size_t size, int tag, void* region, void* event,
                           void** request);

using ReceiveV8 = Status (*)(void* receiving, int count, void** data, int* sizes, int* tags, void** regions,
                             void** request);
using ReceiveV9 = Status (*)(void* receiving, int count, void** data, std::size_t* sizes, int* tags,
                             void** regions, void** request);
using ReceiveV10 = Status (*)(void* receiving, int count, void** data, std::size_t* sizes, int* tags,
                              void** regions, void** events, void** request);

}  // namespace sidestep::driver::nccl_net
