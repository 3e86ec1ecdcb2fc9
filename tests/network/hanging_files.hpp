// A backend of files whose file system does not answer.
#pragma once

#include <atomic>

#include "backend/backend.hpp"

namespace sidestep::wire::test {

class HangingFiles final : public backend::Backend {
public:
    // Calls do not come back while the one is set; the other counts them.
    HangingFiles(std::atomic<bool>& hangs, std::atomic<int>& calls) : hangs_(hangs), calls_(calls) {}
    std::string_view name() const override { return "hanging files"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes({}); }
    std::vector<backend::Capability> capabilities() const override { return {}; }
    Result<std::optional<backend::Description>> describe(const Buffer&) override {
        ++calls_;
        hangs_.wait(true);
        return no();
    }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer&,
                                                          const backend::AttachOptions&) override {
        return no();
    }
    Result<backend::Progress> start(const backend::Piece&, backend::Flight&) override { return no(); }

private:
    static Error no() { return {ErrorCode::unsupported, "nothing here moves files", "test", {}}; }
    std::atomic<bool>& hangs_;
    std::atomic<int>& calls_;
};

}  // namespace sidestep::wire::test
