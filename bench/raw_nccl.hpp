// NVIDIA's NCCL, found at run time: what the library's collectives are measured beside.
//
// Its interface is declared here by hand, as far as it is called (NCCL 2.19 to 2.30, nccl.h). The library
// that stands in for NCCL is refused, since it would be measured beside itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <sidestep/collective.hpp>
#include <sidestep/result.hpp>

namespace sidestep::bench::raw {

// How NCCL is told about the memory, and what may move the bytes.
enum class NcclMode {
    standard,      // not at all: what a program gets that knows no more
    registered,    // ncclCommRegister
    symmetric,     // ncclCommWindowRegister, symmetric
    copy_engines,  // that, and the policy that no multiprocessor is used
};
const char* to_string(NcclMode mode);

// What a communicator is asked to do. `count` as Call's; root and blocks where they play a part.
struct NcclCall {
    Collective operation = Collective::all_reduce;
    const void* send = nullptr;
    void* recv = nullptr;
    std::uint64_t count = 0;
    Dtype type = Dtype::f32;
    ReduceOp reduction = ReduceOp::sum;
    double scale = 1;  // of scaled_sum
    int root = 0;
    const BlockLists* blocks = nullptr;  // of all_to_all_v
    void* stream = nullptr;              // a CUstream
};

class Nccl {
public:
    // `file` is a path, or a name that the dynamic loader finds; "libnccl.so.2" is looked for beside the CUDA
    // toolkit too. NCCL's NVLink multicast is turned off first, unless NCCL_NVLS_ENABLE says otherwise. Never
    // unloaded.
    static Result<std::shared_ptr<Nccl>> open(const std::string& file);
    ~Nccl();

    std::string version() const;  // "2.28.9"
    std::string file() const;     // where it was found

    static constexpr std::size_t id_bytes = 128;
    Result<std::string> unique_id();
    // Memory that every mode can use, on the current GPU; free it before the library goes.
    Result<void*> allocate(std::size_t bytes);
    void free(void* memory);

    // Whether the library has what a mode needs, and the operation in it; else why not.
    std::string lacks(NcclMode mode, Collective operation) const;

    struct Calls;

private:
    explicit Nccl(std::unique_ptr<Calls> calls);
    std::unique_ptr<Calls> calls_;
    friend class NcclRank;
};

// One communicator. Belongs to one thread, whose current CUDA context is that of the rank's GPU.
class NcclRank {
public:
    // Returns when all ranks have joined. `send` and `recv`, of `bytes` bytes each, are told to NCCL as the
    // mode says.
    static Result<std::unique_ptr<NcclRank>> join(std::shared_ptr<Nccl> library, NcclMode mode,
                                                  const std::string& id, int rank, int ranks, void* send,
                                                  void* recv, std::size_t bytes);
    ~NcclRank();
    NcclRank(const NcclRank&) = delete;
    NcclRank& operator=(const NcclRank&) = delete;

    // Enqueues.
    Result<void> run(const NcclCall& call);

private:
    struct State;
    explicit NcclRank(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace sidestep::bench::raw
