#include "shims/cufile/failure.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

namespace sidestep::cufile {
namespace {

// By number above 5000; those left out are not used.
constexpr const char* names[] = {"success",
                                 "DRIVER_NOT_INITIALIZED",
                                 "DRIVER_INVALID_PROPS",
                                 "DRIVER_UNSUPPORTED_LIMIT",
                                 "DRIVER_VERSION_MISMATCH",
                                 "DRIVER_VERSION_READ_ERROR",
                                 "DRIVER_CLOSING",
                                 "PLATFORM_NOT_SUPPORTED",
                                 "IO_NOT_SUPPORTED",
                                 "DEVICE_NOT_SUPPORTED",
                                 "NVFS_DRIVER_ERROR",
                                 "CUDA_DRIVER_ERROR",
                                 "CUDA_POINTER_INVALID",
                                 "CUDA_MEMORY_TYPE_INVALID",
                                 "CUDA_POINTER_RANGE_ERROR",
                                 "CUDA_CONTEXT_MISMATCH",
                                 "INVALID_MAPPING_SIZE",
                                 "INVALID_MAPPING_RANGE",
                                 "INVALID_FILE_TYPE",
                                 "INVALID_FILE_OPEN_FLAG",
                                 "DIO_NOT_SET",
                                 "",
                                 "INVALID_VALUE",
                                 "MEMORY_ALREADY_REGISTERED",
                                 "MEMORY_NOT_REGISTERED",
                                 "PERMISSION_DENIED",
                                 "DRIVER_ALREADY_OPEN",
                                 "HANDLE_NOT_REGISTERED",
                                 "HANDLE_ALREADY_REGISTERED",
                                 "DEVICE_NOT_FOUND",
                                 "INTERNAL_ERROR",
                                 "GETNEWFD_FAILED",
                                 "",
                                 "NVFS_SETUP_ERROR",
                                 "IO_DISABLED",
                                 "BATCH_SUBMIT_FAILED",
                                 "GPU_MEMORY_PINNING_FAILED",
                                 "BATCH_FULL",
                                 "ASYNC_NOT_SUPPORTED",
                                 "INTERNAL_BATCH_SETUP_ERROR",
                                 "INTERNAL_BATCH_SUBMIT_ERROR",
                                 "INTERNAL_BATCH_GETSTATUS_ERROR",
                                 "INTERNAL_BATCH_CANCEL_ERROR",
                                 "NOMEM_ERROR",
                                 "IO_ERROR",
                                 "INTERNAL_BUF_REGISTER_ERROR",
                                 "HASH_OPR_ERROR",
                                 "INVALID_CONTEXT_ERROR",
                                 "NVFS_INTERNAL_DRIVER_ERROR",
                                 "BATCH_NOCOMPAT_ERROR",
                                 "IO_MAX_ERROR"};
constexpr int base = 5000;

// An array, not a string: it lives as long as its thread, whatever is destroyed before.
thread_local std::array<char, 1024> of_thread{};

std::atomic<bool> forked{false};

std::string_view wanted_weight() {
    const char* const wanted = std::getenv("SIDESTEP_LOG");
    return wanted != nullptr ? wanted : "warn";
}

}  // namespace

std::string words_of(int code) {
    if (code == 0) return names[0];
    const int number = code - base;
    const bool known = number > 0 && number < static_cast<int>(std::size(names)) && *names[number] != '\0';
    return fmt::format("{} {}", code, known ? names[number] : "unknown");
}

Refusal system_refusal(int number, std::string_view what) {
    int code = CU_FILE_IO_ERROR;
    if (number == EACCES || number == EPERM) code = CU_FILE_PERMISSION_DENIED;
    if (number == ENOMEM) code = CU_FILE_NOMEM_ERROR;
    return {code, number, 0, fmt::format("{}: {}", what, std::strerror(number))};
}

Refusal refusal_of(const Error& error) {
    const auto as = [&](int code, int system = 0) { return Refusal{code, system, 0, error.to_string()}; };
    switch (error.code) {
        case ErrorCode::invalid_argument:
            return as(CU_FILE_INVALID_VALUE);
        case ErrorCode::not_found:
            return as(CU_FILE_DEVICE_NOT_FOUND);
        case ErrorCode::permission_denied:
            return as(CU_FILE_PERMISSION_DENIED, EACCES);
        case ErrorCode::unsupported:
        case ErrorCode::path_unavailable:
            return as(CU_FILE_IO_NOT_SUPPORTED);
        case ErrorCode::out_of_memory:
            return as(CU_FILE_NOMEM_ERROR);
        case ErrorCode::no_space:
            return as(CU_FILE_IO_ERROR, ENOSPC);
        case ErrorCode::end_of_file:
        case ErrorCode::io_error:
            return as(CU_FILE_IO_ERROR, EIO);
        case ErrorCode::timed_out:
            return as(CU_FILE_IO_ERROR, ETIMEDOUT);
        case ErrorCode::cancelled:
            return as(CU_FILE_IO_ERROR, ECANCELED);
        case ErrorCode::device_error:
            return as(CU_FILE_CUDA_DRIVER_ERROR);
        case ErrorCode::mismatch:
        case ErrorCode::internal:
            break;
    }
    return as(CU_FILE_INTERNAL_ERROR);
}

void note(const char* call, const Refusal& refusal) noexcept {
    // Fixed room, so that this works without memory too.
    std::snprintf(of_thread.data(), of_thread.size(), "%s: %s", call,
                  refusal.words.empty() ? "out of memory" : refusal.words.c_str());
    if (wanted_weight() == "debug")
        std::fprintf(stderr, "sidestep: debug: %s (%d)\n", of_thread.data(), refusal.code);
}

const char* last_message() noexcept {
    return of_thread.data();
}

void warn(std::string_view text) noexcept {
    if (wanted_weight() == "error") return;
    std::fprintf(stderr, "sidestep: warn: %.*s\n", static_cast<int>(text.size()), text.data());
}

bool in_a_child() noexcept {
    return forked.load(std::memory_order_relaxed);
}

void watch_forks() {
    static const int watched = ::pthread_atfork(nullptr, nullptr, [] { forked = true; });
    (void)watched;
}

Refusal refused_in_a_child() {
    constexpr int cuda_not_initialized =
        3;  // cuda.h: CUDA_ERROR_NOT_INITIALIZED, which CUDA answers here too
    return {CU_FILE_DRIVER_NOT_INITIALIZED, 0, cuda_not_initialized,
            "this process was forked after the driver was opened: start programs anew instead (exec, or "
            "multiprocessing's "
            "spawn)"};
}

}  // namespace sidestep::cufile
