// A library that is loaded while the program runs, and its functions.
#pragma once

#include <string>

#include <sidestep/result.hpp>

namespace sidestep::driver {

// Owns one reference to a loaded library. The library itself stays in the process until its end, even
// after the last DynamicLibrary is gone: GPU drivers start threads and exit handlers that would
// otherwise run in unmapped code. Movable, not copyable; const methods may be called from several
// threads at once.
class DynamicLibrary {
public:
    // Loads `name`: a file name that the loader searches ("libcuda.so.1"), or a path. Fails with
    // ErrorCode::not_found where there is no such file and with ErrorCode::unsupported where it cannot
    // be loaded; the message holds the loader's own words. `own_first`: it finds its own symbols before those
    // that another library of the process shows under the same names.
    static Result<DynamicLibrary> open(const std::string& name, bool own_first = false);

    DynamicLibrary(DynamicLibrary&& other) noexcept;
    DynamicLibrary& operator=(DynamicLibrary&& other) noexcept;
    DynamicLibrary(const DynamicLibrary&) = delete;
    DynamicLibrary& operator=(const DynamicLibrary&) = delete;
    ~DynamicLibrary();

    const std::string& name() const { return name_; }

    // The address of a symbol, or null where the library does not have it.
    void* address(const char* symbol) const;

    // Puts the function `symbol` into `function`; ErrorCode::unsupported names it where it is missing.
    template <typename Function>
    Result<void> bind(Function*& function, const char* symbol) const {
        function = reinterpret_cast<Function*>(address(symbol));
        if (function == nullptr) return missing(symbol);
        return {};
    }

    // The same for a function that the caller can do without: null where it is missing.
    template <typename Function>
    void bind_optional(Function*& function, const char* symbol) const {
        function = reinterpret_cast<Function*>(address(symbol));
    }

private:
    DynamicLibrary(std::string name, void* handle);
    Error missing(const char* symbol) const;
    void close() noexcept;

    std::string name_;
    void* handle_ = nullptr;
};

}  // namespace sidestep::driver
