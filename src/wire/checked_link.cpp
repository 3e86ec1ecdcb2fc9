#include "wire/checked_link.hpp"

#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/xxh3.hpp"

namespace sidestep::wire {
namespace {

using backend::Frame;
using backend::Landing;
using backend::Memory;
using backend::Outgoing;

// A fault's words are for people.
bool carries_sum(const Frame& frame) {
    return frame.has_payload() && frame.kind != Frame::Kind::fault;
}

// Of the bytes where they lie, and of what the frame says of them. Never 0, which stands for none.
std::uint64_t sum_of(Frame frame, const void* payload, std::span<const Memory> parts) {
    frame.target = 0;
    const auto head = backend::to_bytes(frame);
    const std::uint64_t seed = base::xxh3(head.data(), head.size());
    std::uint64_t sum = 0;
    if (parts.empty()) {
        sum = base::xxh3(payload, payload != nullptr ? frame.size : 0, seed);
    } else {
        std::vector<base::Xxh3Piece> pieces;
        for (const Memory& part : parts) pieces.push_back({part.address, part.size});
        sum = base::xxh3(pieces, seed);
    }
    return sum != 0 ? sum : 1;
}

Frame with_sum(Frame frame, const void* payload, std::span<const Memory> parts) {
    if (carries_sum(frame)) frame.target = sum_of(frame, payload, parts);
    return frame;
}

Frame finish(const Frame& frame, const void* payload) {
    return with_sum(frame, payload, {});
}

// The sum is made where the frame is sent, so that many are made at a time; of parts at once.
Outgoing summed(const Outgoing& out) {
    Outgoing sent = out;
    if (!carries_sum(out.frame)) return sent;
    if (out.parts.empty())
        sent.finish = finish;
    else
        sent.frame = with_sum(out.frame, out.payload, out.parts);
    return sent;
}

// Between a session and the engine's link.
class CheckedLink final : public backend::Link, public backend::LinkOwner {
public:
    explicit CheckedLink(std::weak_ptr<backend::LinkOwner> owner) : owner_(std::move(owner)) {}
    void use(std::shared_ptr<backend::Link> link) { link_ = std::move(link); }

    Result<void> add(int socket, const backend::SocketKeys& keys) override {
        return link_->add(socket, keys);
    }
    std::size_t sockets() const override { return link_->sockets(); }
    bool scatters() const override { return link_->scatters(); }
    // A processor reads what it makes a sum of: memory of GPUs goes through that of the host.
    Bytes direct_above() const override { return never; }
    bool takes_direct() const { return link_->direct_above() != never; }
    std::string_view engine() const override { return link_->engine(); }
    std::string over() const override { return link_->over(); }
    void send(const Frame& frame, const void* payload, std::function<void()> sent) override {
        const Outgoing one = summed({frame, payload});
        link_->send_all({&one, 1}, std::move(sent));
    }
    void send_all(std::span<const Outgoing> frames, std::function<void()> sent) override {
        std::vector<Outgoing> all;
        for (const Outgoing& one : frames) all.push_back(summed(one));
        link_->send_all(all, std::move(sent));
    }
    void look() override { link_->look(); }
    void resume(Resume whom) override { link_->resume(whom); }
    void close(Error why) override { link_->close(std::move(why)); }
    void end(Error why) override { link_->end(std::move(why)); }

    Result<Landing> landing(const Frame& frame) override {
        const auto owner = owner_.lock();
        return owner ? owner->landing(plain(frame)) : Landing{};
    }
    Result<void> arrived(const Frame& frame, Landing landing) override {
        const bool here = landing.kind == Landing::Kind::here;
        if (here && carries_sum(frame) && frame.target != sum_of(frame, landing.address, landing.parts))
            return Error{ErrorCode::mismatch,
                         fmt::format("{} changed on their way, by their checksum", format_bytes(frame.size)),
                         "link",
                         {}};
        const auto owner = owner_.lock();
        return owner ? owner->arrived(plain(frame), std::move(landing)) : Result<void>();
    }
    void caught_up() override {
        if (const auto owner = owner_.lock()) owner->caught_up();
    }
    void ended(Error error) override {
        if (const auto owner = owner_.lock()) owner->ended(std::move(error));
    }

private:
    static Frame plain(Frame frame) {
        if (carries_sum(frame)) frame.target = 0;
        return frame;
    }

    const std::weak_ptr<backend::LinkOwner> owner_;
    std::shared_ptr<backend::Link> link_;  // constant from use() on
};

}  // namespace

std::string_view why_never_direct(const backend::Link& link) {
    const auto* const checked = dynamic_cast<const CheckedLink*>(&link);
    return checked != nullptr && checked->takes_direct() ? "a processor makes their checksums" : "";
}

std::shared_ptr<backend::Link> make_link(backend::NetworkEngine& engine,
                                         std::weak_ptr<backend::LinkOwner> owner, bool checked) {
    if (!checked) return engine.link(std::move(owner));
    auto link = std::make_shared<CheckedLink>(std::move(owner));
    link->use(engine.link(link));
    return link;
}

}  // namespace sidestep::wire
