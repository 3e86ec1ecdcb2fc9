// What the backend of other machines is given for an end of pieces.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "wire/far.hpp"
#include "wire/session.hpp"

namespace sidestep::wire {

// A part of a region of a node, or, without one, memory of this machine.
class RemoteEnd final : public backend::Registration {
public:
    // Host memory.
    RemoteEnd(Buffer buffer, std::vector<std::shared_ptr<const void>> ready)
        : Registration(std::move(buffer)), ready_(std::move(ready)) {}
    // Memory of a GPU, and how its bytes go.
    RemoteEnd(Buffer buffer, std::shared_ptr<Region> own, std::string way)
        : Registration(std::move(buffer)), own_(std::move(own)), way_(std::move(way)) {}
    // The buffer begins `base` bytes into the region.
    RemoteEnd(Buffer buffer, std::shared_ptr<const Far> far, Bytes base)
        : Registration(std::move(buffer)),
          far_(std::move(far)),
          base_(base),
          lost_(far_->peer->links_lost()) {}

    Result<void> commit() override;
    std::vector<std::string> notes() const override;
    StorageBytes storage_bytes() const override {
        return far_ && buffer().place().is_file() ? report().storage : StorageBytes();
    }

    bool remote() const { return far_ != nullptr; }
    const Far& far() const { return *far_; }
    Bytes base() const { return base_; }
    char* address() const { return static_cast<char*>(buffer().address()); }
    const std::shared_ptr<Region>& own() const { return own_; }
    // Bytes come here over it.
    void use(std::shared_ptr<const Bridge> bridge) const {
        std::lock_guard lock(mutex_);
        used_ = std::move(bridge);
    }

private:
    std::shared_ptr<const Bridge> take_used() const {
        std::lock_guard lock(mutex_);
        return std::exchange(used_, nullptr);
    }
    Report report() const;

    const std::shared_ptr<const Far> far_{};
    const Bytes base_ = 0;
    const std::vector<std::shared_ptr<const void>> ready_{};  // memory here
    const std::shared_ptr<Region> own_{};
    const std::string way_{};
    // Since notes were taken: this is kept for the next copy.
    mutable std::atomic<int> lost_{0};  // links that the session has outlived
    mutable std::mutex mutex_;          // guards what follows
    mutable std::shared_ptr<const Bridge> used_;
};

}  // namespace sidestep::wire
