#include "bench/text_file.hpp"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include <fmt/format.h>
#include <sidestep/units.hpp>

namespace sidestep::bench {

Result<std::string> read_text(const std::string& path, std::size_t max) {
    const auto failed = [&path](int number) {
        const ErrorCode code = number == ENOENT || number == ENOTDIR ? ErrorCode::not_found
                               : number == EACCES                    ? ErrorCode::permission_denied
                               : number == EISDIR                    ? ErrorCode::invalid_argument
                                                                     : ErrorCode::io_error;
        return Error{code,
                     fmt::format("the file cannot be read: {}", std::generic_category().message(number)),
                     path,
                     {}};
    };
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) return failed(errno);
    std::string text;
    char block[1 << 16];
    while (const std::size_t got = std::fread(block, 1, sizeof block, file.get())) {
        text.append(block, got);
        if (text.size() > max)
            return Error{ErrorCode::invalid_argument,
                         fmt::format("the file is larger than {}", format_bytes(max)),
                         path,
                         {}};
    }
    if (std::ferror(file.get())) return failed(errno);
    return text;
}

}  // namespace sidestep::bench
