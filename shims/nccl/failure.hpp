// What a call of NCCL's interface answers, and the words that ncclGetLastError finds afterwards.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <sidestep/result.hpp>
#include "shims/nccl/abi.h"

namespace sidestep::nccl {

// The number that says most about an error; README.md beside this file has the table.
ncclResult_t number_of(const Error& error);

// An error that is ncclInvalidUsage: what this library cannot do, or a call at the wrong time.
Error misuse(std::string message, std::string hint = {});
// An error that is ncclInvalidArgument.
Error bad_argument(std::string message);

// Notes "call: error" as the last message of this thread and of the process, and answers the error's number.
ncclResult_t fail(const char* call, const Error& error) noexcept;

// The last message of this thread, else that of the process, else "". Valid until this thread's next failure
// or question.
const char* last_message() noexcept;
// `text` as what a question for the last error answers: in a buffer of this thread.
const char* keep(std::string_view text) noexcept;

// A line on standard error for what fails no call, in the format of the library's own and unless SIDESTEP_LOG
// asks for errors alone.
void warn(std::string_view text) noexcept;
// Says on standard error, once a process, which library answers in the place of NCCL. As NCCL tells its version:
// only where NCCL_DEBUG is set, or SIDESTEP_LOG asks for such lines.
void announce() noexcept;

// Runs what stands behind an exported function: no exception crosses the interface.
template <typename Body>
ncclResult_t answer(const char* call, Body&& body) noexcept {
    try {
        Result<ncclResult_t> result = body();
        return result.ok() ? *result : fail(call, result.error());
    } catch (const std::exception& thrown) {
        return fail(call, Error{ErrorCode::internal, thrown.what(), {}, {}});
    } catch (...) {
        return fail(call, Error{ErrorCode::internal, {}, {}, {}});
    }
}

}  // namespace sidestep::nccl
