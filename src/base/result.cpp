#include <cstdio>
#include <cstdlib>

#include <sidestep/result.hpp>

namespace sidestep {

const char* to_string(ErrorCode code) {
    switch (code) {
        case ErrorCode::invalid_argument:
            return "invalid_argument";
        case ErrorCode::not_found:
            return "not_found";
        case ErrorCode::permission_denied:
            return "permission_denied";
        case ErrorCode::unsupported:
            return "unsupported";
        case ErrorCode::path_unavailable:
            return "path_unavailable";
        case ErrorCode::out_of_memory:
            return "out_of_memory";
        case ErrorCode::no_space:
            return "no_space";
        case ErrorCode::end_of_file:
            return "end_of_file";
        case ErrorCode::io_error:
            return "io_error";
        case ErrorCode::mismatch:
            return "mismatch";
        case ErrorCode::cancelled:
            return "cancelled";
        case ErrorCode::timed_out:
            return "timed_out";
        case ErrorCode::device_error:
            return "device_error";
        case ErrorCode::internal:
            return "internal";
    }
    return "unknown";
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
