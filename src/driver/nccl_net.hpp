// A network plugin of NCCL (libnccl-net.so), loaded while the program runs: one face over the versions of its interface.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

#include "driver/dynamic_library.hpp"
#include "driver/nccl_net_abi.hpp"

namespace sidestep::driver {

struct NcclNetDevice {
    std::string name;
    std::string pci_path{};  // in sysfs; empty: the plugin does not tell
    int number = 0;
    int memory = 0;      // nccl_net::host_memory and so on
    int speed = 0;       // Mb/s
    Bytes most = 0;      // in one message
    int most_comms = 0;  // 0: it says nothing
};

// What lets another machine connect to something that listens. The plugin writes into it while it connects: the same one is
// to be given each time.
using NcclNetHandle = std::array<unsigned char, nccl_net::handle_bytes>;

// Which libraries are tried for a name: a path or a library's name as it is, "ofi" as libnccl-net-ofi.so too.
std::vector<std::string> nccl_net_libraries(const std::string& name);

// A call is what the plugin makes of it: it runs on the caller's thread, and may be made by one thread at a time for each
// device. An error of the plugin is io_error, names plugin and call, and leaves nothing behind. What is made here is closed by
// its close function, after that no call may name it.
class NcclNet {
public:
    // The first of `libraries` that is there. not_found, unsupported: with what to do.
    static Result<std::shared_ptr<NcclNet>> load(const std::vector<std::string>& libraries);

    // What the plugin calls itself, "AWS Libfabric" for one.
    const std::string& name() const { return name_; }
    const std::string& library() const { return library_.name(); }
    int version() const { return version_; }

    // Before all else, once in a process.
    Result<void> init();
    Result<std::vector<NcclNetDevice>> devices() const;

    using Comm = void*;
    using Region = void*;
    using Request = void*;

    Result<Comm> listen(int device, NcclNetHandle& handle) const;
    // Null: not yet, call again.
    Result<Comm> connect(int device, NcclNetHandle& handle) const;
    Result<Comm> accept(Comm listening) const;
    // `kind`: host_memory, cuda_memory.
    Result<Region> register_memory(Comm comm, void* address, Bytes size, int kind) const;
    // unsupported where the plugin takes no dma-buf.
    Result<Region> register_dma_buf(Comm comm, void* address, Bytes size, int kind, Bytes offset,
                                    int fd) const;
    Result<void> deregister(Comm comm, Region region) const;
    // Null: not now, call again. What one end sends goes into what the other receives into, in the order of the calls.
    Result<Request> send(Comm sending, const void* data, Bytes size, Region region) const;
    Result<Request> receive(Comm receiving, void* data, Bytes size, Region region) const;
    // What was received into the memory of a GPU is seen there after it. Null: not now, or nothing is to be done.
    Result<Request> flush(Comm receiving, void* data, Bytes size, Region region) const;
    // The number of bytes, once it is done. A request must not be tested again after that.
    Result<std::optional<Bytes>> test(Request request) const;
    Result<void> close_send(Comm sending) const;
    Result<void> close_receive(Comm receiving) const;
    Result<void> close_listen(Comm listening) const;

private:
    explicit NcclNet(DynamicLibrary library) : library_(std::move(library)) {}
    Result<void> find_version();
    Result<void> check(nccl_net::Status status, const char* call) const;
    Result<NcclNetDevice> device(int number) const;

    const DynamicLibrary library_;
    const nccl_net::Plugin* plugin_ = nullptr;
    int version_ = 0;
    std::string name_;
    void* context_ = nullptr;  // from version 11 on
    nccl_net::Config config_;  // the plugin may keep where it lies
};

}  // namespace sidestep::driver
