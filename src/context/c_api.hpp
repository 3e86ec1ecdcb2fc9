// What the files of the C interface share. They decide nothing; they translate, and let no exception out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include <sidestep/sidestep.h>
#include <sidestep/context.hpp>

struct sidestep_context {
    sidestep::Context context;
};

namespace sidestep::context::capi {

// Keep the calling thread's last failure, and answer its status; the second for failures that a new string may not survive.
sidestep_status keep(Error error) noexcept;
sidestep_status keep_constant(ErrorCode code, const char* message) noexcept;

// Runs `call`, which returns a Result<void>; what it throws becomes a status.
template <typename Call>
sidestep_status guarded(Call&& call) noexcept {
    try {
        Result<void> result = call();
        return result ? SIDESTEP_OK : keep(result.error());
    } catch (const std::bad_alloc&) {
        return keep_constant(ErrorCode::out_of_memory, "host memory is exhausted");
    } catch (...) {
        return keep_constant(ErrorCode::internal, "an exception reached the C interface");
    }
}

Error null_argument(const char* name);
Result<Buffer> read_buffer(const sidestep_buffer* buffer, const char* name);
// A copy that sidestep_free() frees, with a zero behind it.
Result<void> hand_out(const std::string& text, char** out);

// Brings the caller's struct, which may be that of another version, to this version's, `options` being the defaults. Its
// first version ended with `first_version` bytes: that stays where later members follow. NULL: the defaults.
template <typename Options>
Result<Options> read_struct(const Options* given, Options options, std::size_t first_version,
                            const char* name) {
    if (given == nullptr) return options;
    if (given->struct_size < first_version || given->struct_size > 4096)
        return Error{ErrorCode::invalid_argument, "struct_size is " + std::to_string(given->struct_size),
                     name, "start with the initializer beside the struct"};
    const auto* bytes = reinterpret_cast<const unsigned char*>(given);
    for (std::size_t i = sizeof(options); i < given->struct_size; ++i)
        if (bytes[i] != 0)
            return Error{ErrorCode::unsupported, "an option was set that this version does not know", name,
                         "use the header of the library that is linked in"};
    std::memcpy(&options, given, std::min(given->struct_size, sizeof(options)));
    return options;
}

}  // namespace sidestep::context::capi
