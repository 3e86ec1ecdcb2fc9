// A seat that passes every call on, for tests that look at some, and a backend that puts such seats around real ones.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "backend/registry.hpp"

namespace sidestep::groups {

class SeatAround : public backend::Seat {
public:
    explicit SeatAround(std::unique_ptr<backend::Seat> seat) : seat_(std::move(seat)) {}
    const Buffer& arena() const override { return called(), seat_->arena(); }
    Result<backend::Extent> extent(const void* address) override { return called(), seat_->extent(address); }
    Result<Allocation> open(const backend::Exported& exported) override {
        return called(), seat_->open(exported);
    }
    Result<void> admit(const Buffer& memory) override { return called(), seat_->admit(memory); }
    Result<void> reach(unsigned rank, unsigned slot, std::span<char> memory) override {
        return called(), seat_->reach(rank, slot, memory);
    }
    Result<void> run(const protocol::CollectiveTask& task, void* stream) override {
        return called(), seat_->run(task, stream);
    }
    Result<bool> idle() override { return called(), seat_->idle(); }
    std::optional<protocol::FaultRecord> fault() const override { return called(), seat_->fault(); }
    void abort() noexcept override { called(), seat_->abort(); }
    void set_deadline(std::uint64_t ns) override { called(), seat_->set_deadline(ns); }

protected:
    // Before each call.
    virtual void called() const {}

private:
    std::unique_ptr<backend::Seat> seat_;
};

class SeatsAround : public backend::Backend, public backend::Seats {
public:
    using Make = std::function<std::unique_ptr<backend::Seat>(std::unique_ptr<backend::Seat>)>;
    SeatsAround(const backend::Registry& real, Make make) : real_(real), make_(std::move(make)) {}
    std::string_view name() const override { return "around"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes("for tests"); }
    std::vector<backend::Capability> capabilities() const override { return {}; }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer&,
                                                          const backend::AttachOptions&) override {
        return Error{};
    }
    Result<backend::Progress> start(const backend::Piece&, backend::Flight&) override { return Error{}; }
    backend::Seats* seats() override { return this; }
    Result<std::unique_ptr<backend::Seat>> seat(const backend::SeatRequest& request) override {
        for (backend::Backend* backend : real_.usable())
            if (backend->seats() != nullptr)
                if (auto seat = backend->seats()->seat(request)) return make_(std::move(*seat));
        return Error{};
    }

private:
    const backend::Registry& real_;
    const Make make_;
};

}  // namespace sidestep::groups
