#include "driver/dynamic_library.hpp"

#include <dlfcn.h>

#include <utility>

namespace sidestep::driver {

namespace {

// The loader says "cannot open shared object file: No such file or directory" of a library that is not
// there. It names the same words for a missing dependency, but begins with that one's name then.
bool is_absent(const std::string& name, const std::string& words) {
    return words.rfind(name + ":", 0) == 0 && words.find("No such file or directory") != std::string::npos;
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::open(const std::string& name, bool own_first) {
    // RTLD_NOW: a library with unresolved symbols fails here and not in the middle of a transfer.
    // RTLD_LOCAL: its symbols do not stand in for those of other libraries.
    void* handle =
        ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | (own_first ? RTLD_DEEPBIND : 0));
    if (handle != nullptr) return DynamicLibrary(name, handle);

    const char* said = ::dlerror();
    const std::string words = said != nullptr ? said : "no reason given";
    if (is_absent(name, words)) return Error{ErrorCode::not_found, name + " was not found", "dlopen", ""};
    return Error{ErrorCode::unsupported, name + " cannot be loaded: " + words, "dlopen", ""};
}

DynamicLibrary::DynamicLibrary(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}

DynamicLibrary::DynamicLibrary(DynamicLibrary&& other) noexcept
    : name_(std::move(other.name_)), handle_(std::exchange(other.handle_, nullptr)) {}

DynamicLibrary& DynamicLibrary::operator=(DynamicLibrary&& other) noexcept {
    if (this != &other) {
        close();
        name_ = std::move(other.name_);
        handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
}

DynamicLibrary::~DynamicLibrary() {
    close();
}

void* DynamicLibrary::address(const char* symbol) const {
    // A null handle would be RTLD_DEFAULT, which finds symbols of the whole process.
    return handle_ != nullptr ? ::dlsym(handle_, symbol) : nullptr;
}

Error DynamicLibrary::missing(const char* symbol) const {
    return Error{ErrorCode::unsupported, name_ + " has no function " + symbol, "dlsym",
                 "the driver is older than this program needs: update it"};
}

void DynamicLibrary::close() noexcept {
    if (handle_ != nullptr) ::dlclose(handle_);
    handle_ = nullptr;
}

}  // namespace sidestep::driver
