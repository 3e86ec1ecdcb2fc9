// What a call of cuFile's interface answers where it is refused, and the words that sidestepCufileLastError() finds afterwards.
#pragma once

#include <cerrno>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <sidestep/result.hpp>
#include "shims/cufile/abi.h"

namespace sidestep::cufile {

// Nothing wrong where `code` is 0.
struct Refusal {
    int code = CU_FILE_SUCCESS;
    int system = 0;  // errno, where the operating system failed: reads and writes answer -1 with it then
    int cuda = 0;    // cu_err
    std::string words;

    explicit operator bool() const { return code != CU_FILE_SUCCESS; }
};

inline Refusal refusal(int code, std::string words) {
    return {code, 0, 0, std::move(words)};
}
// Of the operating system: CU_FILE_IO_ERROR, or what fits better, where a code is asked for.
Refusal system_refusal(int number, std::string_view what);
// The codes that say most about an error of the engine; README.md beside this file has the table.
Refusal refusal_of(const Error& error);

// "5027 HANDLE_NOT_REGISTERED"; "success" for 0.
std::string words_of(int code);

// Notes "call: words" as the last message of this thread; with SIDESTEP_LOG=debug also on standard error.
void note(const char* call, const Refusal& refusal) noexcept;
const char* last_message() noexcept;
// A line on standard error, unless SIDESTEP_LOG is error.
void warn(std::string_view text) noexcept;

// Of a child of fork(): no thread of the library lives there, and CUDA refuses too.
bool in_a_child() noexcept;
// From now on a child is one; from the first opening of the driver on.
void watch_forks();
Refusal refused_in_a_child();

// Carries out one call. errno stays as it is.
template <typename Work>
CUfileError_t answer(const char* call, Work&& work) noexcept {
    const int before = errno;
    Refusal refused;
    try {
        refused = in_a_child() ? refused_in_a_child() : work();
    } catch (const std::bad_alloc&) {
        refused.code = CU_FILE_NOMEM_ERROR;
    } catch (...) {
        refused.code = CU_FILE_INTERNAL_ERROR;
    }
    if (refused) note(call, refused);
    errno = before;
    return {refused.code, refused.cuda};
}

}  // namespace sidestep::cufile
