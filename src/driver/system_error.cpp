#include "driver/system_error.hpp"

#include <cerrno>
#include <system_error>

namespace sidestep::driver {
namespace {

ErrorCode code_of(int number) {
    switch (number) {
        case ENOENT:
        case ENOTDIR:
        case ENXIO:
        case ENODEV:
        case ESRCH:
            return ErrorCode::not_found;
        case EACCES:
        case EPERM:
        case EROFS:
        case ETXTBSY:
            return ErrorCode::permission_denied;
        case ENOMEM:
        case EMFILE:
        case ENFILE:
            return ErrorCode::out_of_memory;
        case ENOSPC:
        case EDQUOT:
        case EFBIG:
            return ErrorCode::no_space;
        case EINVAL:
        case ENAMETOOLONG:
        case ELOOP:
        case EISDIR:
            return ErrorCode::invalid_argument;
        case ENOSYS:
        case EOPNOTSUPP:
            return ErrorCode::unsupported;
        default:
            return ErrorCode::io_error;
    }
}

std::string hint_of(int number) {
    switch (number) {
        case EROFS:
            return "the file system is mounted read-only";
        case EDQUOT:
            return "free some of the quota";
        case ENOSPC:
            return "free some space on the target's file system";
        case EFBIG:
            return "the file system, or `ulimit -f`, allows no file of that size";
        case EMFILE:
            return "raise the limit on open files (ulimit -n)";
        case EIO:
            return "the device failed; the kernel log (dmesg) says more";
        case ENODATA:  // what O_DIRECT gets where a drive reports bad blocks
            return "the device cannot read or write these blocks; the kernel log (dmesg) says more";
        case ETXTBSY:
            return "the file is a program that is running";
        default:
            return {};
    }
}

}  // namespace

std::string system_words(int number) {
    return std::generic_category().message(number);
}

Error system_error(int number, std::string message, std::string where, std::string hint) {
    if (hint.empty()) hint = hint_of(number);
    return {code_of(number), std::move(message) + ": " + system_words(number), std::move(where),
            std::move(hint)};
}

}  // namespace sidestep::driver
