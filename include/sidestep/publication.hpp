// A name under which other processes reach memory.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace sidestep {

struct PublishOptions {
    // Of the whole call, which waits for the file system of the folder of names; 0: none.
    std::chrono::milliseconds deadline{0};
};

// Keeps memory published under a name (Context::publish). Move-only; the destructor withdraws the name, and
// copies of other processes that have not begun then fail with ErrorCode::not_found. Copies of theirs in
// flight may still use the memory for as long as they run: agree on the end before you free it.
class Publication {
public:
    Publication() = default;
    Publication(std::string name, std::shared_ptr<void> held)
        : name_(std::move(name)), held_(std::move(held)) {}
    Publication(Publication&&) noexcept = default;
    Publication& operator=(Publication&&) noexcept = default;
    Publication(const Publication&) = delete;
    Publication& operator=(const Publication&) = delete;

    const std::string& name() const { return name_; }
    explicit operator bool() const { return held_ != nullptr; }

private:
    std::string name_;
    std::shared_ptr<void> held_;
};

}  // namespace sidestep
