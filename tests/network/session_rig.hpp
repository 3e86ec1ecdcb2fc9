// What tests of sessions share.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "tests/contents.hpp"
#include "tests/network/link_rig.hpp"
#include "wire/session.hpp"

namespace sidestep::wire::test {

constexpr Bytes mib = Bytes{1} << 20;

// A flight that counts its ends.
class Moving final : public backend::PieceOwner {
public:
    ~Moving() override { close(); }

    bool over() const {
        return comes([this] { return ends > 0; });
    }
    // What it ended with; 0: well.
    int code() const { return flight.result().ok() ? 0 : static_cast<int>(flight.result().error().code); }

    backend::Flight flight{*this};
    std::atomic<int> ends{0};

private:
    void ended() override { ++ends; }
};

// What a session answered that was told to begin: one that is done at once ends its flight here, as who asked would.
inline bool begun(Moving& moving, const Result<backend::Progress>& answer) {
    if (answer && *answer == backend::Progress::done) moving.flight.end({});
    return answer.ok();
}
inline bool begun(Moving&, const Result<void>& answer) {
    return answer.ok();
}

// How often somebody was told, and of how many errors.
struct Heard {
    Session::Told told() {
        return [this](const Result<void>& result) {
            errors += !result;
            ++times;
        };
    }
    bool once() const {
        return comes([this] { return times > 0; }) && times == 1;
    }
    std::atomic<int> errors{0};
    std::atomic<int> times{0};
};

// A frame of places, and one with what goes there.
inline std::string list(const std::vector<backend::RegionPart>& places, std::uint64_t request,
                        std::uint64_t region, Bytes at = 0) {
    const std::string bytes = backend::to_bytes(places);
    return said({Frame::Kind::places, request, region, 0, bytes.size(), 0, 0, at}, bytes);
}

inline std::string scatter(const std::string& bytes, std::uint64_t request, std::uint64_t region,
                           Bytes at = 0) {
    return said({Frame::Kind::scatter, request, region, 0, bytes.size(), 0, 0, at}, bytes);
}

// Memory with bytes before and behind that nobody may touch.
class Guarded {
public:
    explicit Guarded(Bytes size, std::uint64_t seed = 0) : bytes_(size + 2 * guard, '#') {
        sidestep::test::fill(data(), size, seed);
    }
    unsigned char* data() { return reinterpret_cast<unsigned char*>(bytes_.data()) + guard; }
    Bytes size() const { return bytes_.size() - 2 * guard; }
    std::string text() const { return bytes_.substr(guard, size()); }
    bool whole() const {
        const std::string kept(guard, '#');
        return bytes_.starts_with(kept) && bytes_.ends_with(kept);
    }

private:
    static constexpr std::size_t guard = 256;
    std::string bytes_;
};

inline std::shared_ptr<Region> region_of(Guarded& memory, bool readable = true, bool writable = true) {
    auto region = std::make_shared<Region>();
    region->size = memory.size();
    region->readable = readable;
    region->writable = writable;
    region->address = memory.data();
    region->name = "memory of a test";
    return region;
}

// A session whose other end is a bare socket, or more of them. Ends before what it moves goes.
struct Alone {
    explicit Alone(std::size_t sockets = 1) {
        session->use(engine->link(session));
        for (std::size_t i = 0; i < sockets; ++i) join();
    }
    void join() {
        Ends ends = connected();
        EXPECT_TRUE(session->link()->add(number_of(std::move(ends.one))).ok());
        bare.push_back(std::move(ends.other));
    }
    ~Alone() {
        session->give_up(some_error(ErrorCode::cancelled));
        session->link()->end(some_error(ErrorCode::cancelled));
    }
    // A new link, with a new bare socket.
    void renew() {
        EXPECT_TRUE(session->renew(engine->link(session)).ok());
        join();
    }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

    bool has_ended() const {
        return comes([this] { return session->end().has_value(); });
    }
    bool says(const std::string& bytes, std::size_t socket = 0) const { return say(bare[socket], bytes); }
    // The next frame that it sends, with its bytes.
    Came hears(std::size_t socket = 0) const {
        std::string head(backend::frame_bytes, '\0');
        Came came;
        const auto first = bare[socket].receive_all(head.data(), head.size(), patience());
        EXPECT_TRUE(first.ok());
        auto frame = first ? backend::parse_frame(reinterpret_cast<const unsigned char*>(head.data()))
                           : Result<Frame>(first.error());
        if (!frame) return came;
        came.frame = *frame;
        came.payload.resize(frame->has_payload() ? frame->size : 0);
        EXPECT_TRUE(bare[socket].receive_all(came.payload.data(), came.payload.size(), patience()).ok());
        return came;
    }

    const std::unique_ptr<backend::NetworkEngine> engine = make_engine(2);
    std::shared_ptr<Session> session = std::make_shared<Session>("node7");
    std::vector<driver::TcpSocket> bare;
};

// Two sessions that are joined.
struct BothEnds {
    explicit BothEnds(std::size_t sockets) {
        one->use(engine->link(one));
        other->use(engine->link(other));
        join(sockets);
    }
    void renew(std::size_t sockets) {
        EXPECT_TRUE(one->renew(engine->link(one)).ok());
        EXPECT_TRUE(other->renew(engine->link(other)).ok());
        join(sockets);
    }
    void join(std::size_t sockets) {
        for (std::size_t i = 0; i < sockets; ++i) {
            Ends ends = connected();
            EXPECT_TRUE(one->link()->add(number_of(std::move(ends.one))).ok());
            EXPECT_TRUE(other->link()->add(number_of(std::move(ends.other))).ok());
        }
    }
    ~BothEnds() {
        one->give_up(some_error(ErrorCode::cancelled));
        other->give_up(some_error(ErrorCode::cancelled));
        one->link()->end(some_error(ErrorCode::cancelled));
        other->link()->end(some_error(ErrorCode::cancelled));
    }
    BothEnds(const BothEnds&) = delete;
    BothEnds& operator=(const BothEnds&) = delete;

    const std::unique_ptr<backend::NetworkEngine> engine = make_engine(2);
    std::shared_ptr<Session> one = std::make_shared<Session>("the other");
    std::shared_ptr<Session> other = std::make_shared<Session>("the one");
};

}  // namespace sidestep::wire::test
