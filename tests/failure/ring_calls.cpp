// What is asked of io_uring goes wrong: the calls that liburing makes for the library, and each request that it hands in.
// The linker puts these functions before liburing's (--wrap), which makes its system calls itself.
#include <liburing.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "tests/failure/calls.hpp"

namespace sidestep::failure {
namespace {

bool reads(const io_uring_sqe& request) {
    return request.opcode == IORING_OP_READ || request.opcode == IORING_OP_READ_FIXED;
}

bool moves(const io_uring_sqe& request) {
    return reads(request) || request.opcode == IORING_OP_WRITE || request.opcode == IORING_OP_WRITE_FIXED;
}

// A read of a pipe that nobody writes to, whatever it was.
void hang(io_uring_sqe& request) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    request.opcode = IORING_OP_READ;
    request.flags = 0;
    request.buf_index = 0;
    request.fd = ends[0];
    request.off = 0;
    hangs_until([from = ends[0], to = ends[1]] {
        ::close(to);
        ::close(from);
    });
}

void may_go_wrong(io_uring_sqe& request) {
    if (!moves(request)) return;
    const auto how = goes_wrong(reads(request) ? "ring read" : "ring write");
    if (how == How::fails) request.fd = -1;
    if (how == How::ends_short) request.len = static_cast<unsigned>(fewer(request.len));
    if (how == How::hangs) hang(request);
}

}  // namespace
}  // namespace sidestep::failure

using sidestep::failure::goes_wrong;
extern "C" {

int __real_io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
    return goes_wrong("io_uring_setup") ? -ENOMEM : __real_io_uring_queue_init(entries, ring, flags);
}
io_uring_probe* __real_io_uring_get_probe_ring(io_uring* ring);
io_uring_probe* __wrap_io_uring_get_probe_ring(io_uring* ring) {
    return goes_wrong("io_uring_register") ? nullptr : __real_io_uring_get_probe_ring(ring);
}
int __real_io_uring_register_iowq_max_workers(io_uring* ring, unsigned* limits);
int __wrap_io_uring_register_iowq_max_workers(io_uring* ring, unsigned* limits) {
    return goes_wrong("io_uring_register") ? -EINVAL
                                           : __real_io_uring_register_iowq_max_workers(ring, limits);
}
int __real_io_uring_register_buffers_tags(io_uring* ring, const iovec* memory, const __u64* tags,
                                          unsigned count);
int __wrap_io_uring_register_buffers_tags(io_uring* ring, const iovec* memory, const __u64* tags,
                                          unsigned count) {
    return goes_wrong("io_uring_register") ? -ENOMEM
                                           : __real_io_uring_register_buffers_tags(ring, memory, tags, count);
}
int __real_io_uring_register_buffers_update_tag(io_uring* ring, unsigned at, const iovec* memory,
                                                const __u64* tags, unsigned count);
int __wrap_io_uring_register_buffers_update_tag(io_uring* ring, unsigned at, const iovec* memory,
                                                const __u64* tags, unsigned count) {
    return goes_wrong("io_uring_register")
               ? -ENOMEM
               : __real_io_uring_register_buffers_update_tag(ring, at, memory, tags, count);
}
// The requests that are new; what a submission that failed has left was seen in that one.
int __real_io_uring_submit(io_uring* ring);
int __wrap_io_uring_submit(io_uring* ring) {
    for (unsigned at = ring->sq.sqe_head; at != ring->sq.sqe_tail; ++at)
        sidestep::failure::may_go_wrong(ring->sq.sqes[at & *ring->sq.kring_mask]);
    if (goes_wrong("io_uring_submit")) return -EAGAIN;                            // passes
    return goes_wrong("io_uring_enter") ? -EBADF : __real_io_uring_submit(ring);  // lasts
}

}  // extern "C"
