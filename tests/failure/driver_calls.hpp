// CUDA's driver as a caller of the library uses it beside the library: by calls that do not go wrong.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

struct CUstream_st;

namespace sidestep::failure {

// The context that is current on this thread; null where there is none, or no driver.
#ifdef SIDESTEP_FAILURE_OVER_DRIVER
void* current_context();
#else
inline void* current_context() {
    return nullptr;
}
#endif

// A caller's stream on the driver's first GPU.
class CallersStream {
public:
    CallersStream();
    ~CallersStream();  // lets go, and waits for all that is on it
    CallersStream(const CallersStream&) = delete;
    CallersStream& operator=(const CallersStream&) = delete;

    CUstream_st* get() const { return stream_; }
    // What is put on it from now on waits until let_go().
    void hold();
    void let_go();
    void copy(void* to, const void* from, std::size_t bytes);
    bool ends_within(std::chrono::milliseconds limit);

private:
    struct Hold;
    template <typename Work>
    void in_context(Work work);

    std::unique_ptr<Hold> hold_;
    void* context_ = nullptr;
    CUstream_st* stream_ = nullptr;
};

}  // namespace sidestep::failure
