#include "shims/nccl/failure.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <dlfcn.h>

#include <sidestep/version.hpp>

namespace sidestep::nccl {
namespace {

// Arrays, not strings: they live as long as their thread, whatever is destroyed before.
using Text = std::array<char, 2048>;
thread_local Text of_thread{};
thread_local Text answered{};

struct Shared {
    std::mutex lock;
    Text text{};
};
// Never destroyed: threads may fail while the process ends.
Shared& of_process() {
    static auto& shared = *new Shared;
    return shared;
}

void put(Text& text, std::string_view words) {
    const std::size_t length = std::min(words.size(), text.size() - 1);
    std::memcpy(text.data(), words.data(), length);
    text[length] = '\0';
}

std::string_view variable(const char* name) {
    const char* const set = std::getenv(name);
    return set != nullptr ? set : "";
}

// In the format of the library's own lines.
void put_line(const char* weight, std::string_view text) noexcept {
    try {
        const std::string line = std::string("sidestep: ") + weight + ": " + std::string(text) + "\n";
        std::fputs(line.c_str(), stderr);
    } catch (...) {
        // Not even memory for the words.
    }
}

}  // namespace

ncclResult_t number_of(const Error& error) {
    switch (error.code) {
        case ErrorCode::invalid_argument:
            return ncclInvalidArgument;
        case ErrorCode::unsupported:
        case ErrorCode::path_unavailable:
        case ErrorCode::mismatch:
            return ncclInvalidUsage;
        case ErrorCode::not_found:
        case ErrorCode::permission_denied:
        case ErrorCode::no_space:
        case ErrorCode::end_of_file:
            return ncclSystemError;
        case ErrorCode::out_of_memory:
        case ErrorCode::device_error:
            return ncclUnhandledCudaError;
        case ErrorCode::io_error:
        case ErrorCode::timed_out:
        case ErrorCode::cancelled:
            return ncclRemoteError;
        case ErrorCode::internal:
            break;
    }
    return ncclInternalError;
}

Error misuse(std::string message, std::string hint) {
    return {ErrorCode::unsupported, std::move(message), {}, std::move(hint)};
}

Error bad_argument(std::string message) {
    return {ErrorCode::invalid_argument, std::move(message), {}, {}};
}

ncclResult_t fail(const char* call, const Error& error) noexcept {
    const ncclResult_t number = number_of(error);
    try {
        std::string words = call;
        words += ": ";
        words += error.message.empty() ? "out of memory, or an exception of unknown type" : error.to_string();
        put(of_thread, words);
        const std::lock_guard guard(of_process().lock);
        put(of_process().text, words);
    } catch (...) {
        // Not even memory for the words: the number has to do.
        put(of_thread, call);
    }
    return number;
}

const char* last_message() noexcept {
    if (of_thread[0] != '\0') return of_thread.data();
    const std::lock_guard guard(of_process().lock);
    answered = of_process().text;
    return answered.data();
}

void warn(std::string_view text) noexcept {
    if (variable("SIDESTEP_LOG") == "error") return;
    put_line("warn", text);
}

void announce() noexcept {
    static std::once_flag once;
    try {
        std::call_once(once, [] {
            const std::string_view log = variable("SIDESTEP_LOG");
            const std::string_view debug = variable("NCCL_DEBUG");
            if (log != "info" && log != "debug" && (debug.empty() || debug == "NONE")) return;
            Dl_info found{};
            const bool known = ::dladdr(reinterpret_cast<const void*>(&announce), &found) != 0;
            put_line("info", std::string("Sidestep ") + version() + " answers in the place of NCCL: " +
                                 (known ? found.dli_fname : "its file is not known"));
        });
    } catch (...) {
        // Not even memory for the words.
    }
}

const char* keep(std::string_view text) noexcept {
    put(answered, text);
    return answered.data();
}

}  // namespace sidestep::nccl
