#include <cstdio>
#include <cstdlib>

#include <sidestep/result.hpp>

namespace sidestep {

const char* to_string(ErrorCode code) {
    switch (code) {
        case ErrorCode::invalid_argument:
            return "invalid argument";
        case ErrorCode::not_found:
            return "not found";
        case ErrorCode::permission_denied:
            return "permission denied";
        case ErrorCode::unsupported:
            return "unsupported";
        case ErrorCode::path_unavailable:
            return "path unavailable";
        case ErrorCode::out_of_memory:
            return "out of memory";
        case ErrorCode::no_space:
            return "no space";
        case ErrorCode::end_of_file:
            return "end of file";
        case ErrorCode::io_error:
            return "I/O error";
        case ErrorCode::mismatch:
            return "mismatch";
        case ErrorCode::cancelled:
            return "cancelled";
        case ErrorCode::timed_out:
            return "timed out";
        case ErrorCode::device_error:
            return "device error";
        case ErrorCode::internal:
            return "internal error";
    }
    return "unknown error";
}

std::string Error::to_string() const {
    std::string text = message;
    if (!where.empty()) text += " (" + where + ")";
    if (!hint.empty()) text += ". " + hint;
    return text;
}

void abort_on_error(const Error& error) {
    std::fprintf(stderr, "sidestep: value of a failed result was read: %s\n", error.to_string().c_str());
    std::abort();
}

}  // namespace sidestep
