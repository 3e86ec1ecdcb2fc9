#include "bench/raw_cuda_batch.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>

#include "base/try.hpp"
#include "bench/raw_cuda_session.hpp"

namespace sidestep::bench::raw {
namespace {

using Clock = std::chrono::steady_clock;
using PeerCopy = Status(Address, CudaContext, Address, CudaContext, std::size_t, Stream);
using CurrentContext = Status(CudaContext*);

template <typename Function>
Function* find(const char* name) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

// One loop, made ready.
struct Loop {
    Address from = 0;
    Address to = 0;
    CudaContext from_context = nullptr;
    CudaContext to_context = nullptr;
    int gpu = 0;
    Stream stream = nullptr;
    PeerCopy* peer_copy = nullptr;  // null with the host at one end
};

Result<Loop> make(Session& session, const Leg& leg, Bytes total) {
    Loop loop;
    loop.gpu = leg.from >= 0 ? leg.from : leg.to;
    if (leg.from >= 0 && leg.to >= 0) {
        loop.peer_copy = find<PeerCopy>("cuMemcpyPeerAsync");
        CurrentContext* const current = find<CurrentContext>("cuCtxGetCurrent");
        if (!loop.peer_copy || !current)
            return Error{
                ErrorCode::unsupported, "the NVIDIA driver lacks cuMemcpyPeerAsync", "libcuda.so.1", {}};
        session.reach(leg.to, leg.from);
        session.reach(leg.from, leg.to);
        session.use(leg.to);
        session.check(current(&loop.to_context), "cuCtxGetCurrent");
        session.use(leg.from);
        session.check(current(&loop.from_context), "cuCtxGetCurrent");
    }
    loop.from = session.memory(leg.from, total, loop.gpu);
    loop.to = session.memory(leg.to, total, loop.gpu);
    loop.stream = session.stream(loop.gpu);
    return loop;
}

double seconds(Session& session, const Loop& loop, Bytes bytes, std::size_t count) {
    session.use(loop.gpu);
    const auto start = Clock::now();
    for (std::size_t i = 0; i < count && session.good(); ++i) {
        const Address from = loop.from + i * bytes;
        const Address to = loop.to + i * bytes;
        if (loop.peer_copy)
            session.check(loop.peer_copy(to, loop.to_context, from, loop.from_context, bytes, loop.stream),
                          "cuMemcpyPeerAsync");
        else
            session.copy(to, from, bytes, loop.stream);
    }
    session.spin(loop.stream);
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Result<Samples> loop_rates(const Leg& leg, Bytes bytes, std::size_t count, int samples) {
    if (!driver()) return driver().error();
    Session session(*driver());
    const Bytes total = bytes * count;
    SIDESTEP_TRY(auto loop, make(session, leg, total));
    Samples rates;
    for (int round = -1; round < std::max(samples, 1) && session.good(); ++round) {
        const double taken = seconds(session, loop, bytes, count);
        if (round >= 0) rates.values.push_back(static_cast<double>(total) / std::max(taken, 1e-9) / 1e9);
    }
    SIDESTEP_CHECK(session.failed());
    return rates;
}

}  // namespace sidestep::bench::raw
