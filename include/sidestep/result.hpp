// How every fallible call of the library answers: with a value, or with an Error.
//
// No exception leaves the library. Both types are plain values: copyable, safe to hand to another
// thread, and free of references into the library.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <sidestep/api.h>

namespace sidestep {

// What kind of failure it was. The numeric values are part of the C ABI (sidestep.h) and never change.
enum class ErrorCode : int {
    invalid_argument = 1,   // a place, size or option that makes no sense, on any machine
    not_found = 2,          // a GPU, file, machine or name that is not there
    permission_denied = 3,  // the operating system said no
    unsupported = 4,        // understood, but this machine or build cannot do it
    path_unavailable = 5,   // `require = direct` and no direct path exists
    out_of_memory = 6,      // host, GPU or staging memory, or descriptors of the process
    no_space = 7,           // the target file's device is full, or a quota or size limit was met
    end_of_file = 8,        // a file ended before the bytes that were asked for
    io_error = 9,           // a device or file system failed
    mismatch = 10,          // verification found different bytes
    cancelled = 11,         // Transfer::cancel was called
    timed_out = 12,         // the deadline passed, or nothing moved for the stall limit
    device_error = 13,      // a GPU or its driver failed
    internal = 14,          // a defect of this library
};

// The word of docs/error_codes.md: "invalid_argument", "not_found", ...; "unknown" of any other number.
SIDESTEP_API const char* to_string(ErrorCode code);

// One failure. `message` says what was wrong, naming the thing; `where` is the place or call it came
// from (may be empty); `hint` is what to do about it (may be empty).
struct SIDESTEP_API Error {
    ErrorCode code = ErrorCode::internal;
    std::string message;
    std::string where;
    std::string hint;

    // "message (where). hint" on one line, without the parts that are empty.
    std::string to_string() const;
};

// A T, or the Error that stands in its place. Reading the value of a failed Result is a programmer's
// error and ends the process with the Error's text.
template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }

    T& value() & { return check(), std::get<0>(state_); }
    const T& value() const& { return check(), std::get<0>(state_); }
    T&& value() && { return check(), std::get<0>(std::move(state_)); }

    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    // The failure. Only to be called when ok() is false.
    const Error& error() const { return std::get<1>(state_); }

private:
    void check() const;
    std::variant<T, Error> state_;
};

// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    bool ok() const { return !error_.has_value(); }
    explicit operator bool() const { return ok(); }
    // As above.
    const Error& error() const { return error_.value(); }

private:
    std::optional<Error> error_;
};

// Prints the error and ends the process: the answer to Result::value() on a failure.
[[noreturn]] SIDESTEP_API void abort_on_error(const Error& error);

template <typename T>
void Result<T>::check() const {
    if (!ok()) abort_on_error(error());
}

}  // namespace sidestep
