// Links whose bytes carry checksums: what changes on its way is no owner's to see.
#include "wire/checked_link.hpp"

#include <string>
#include <vector>

#include "tests/contents.hpp"
#include "tests/network/link_rig.hpp"

namespace sidestep::wire::checked {
namespace {

using test::Came;
using test::Ends;
using test::FakeOwner;
using test::Frame;

// A link with an owner, checked or not, and the bare socket at its other end.
struct End {
    explicit End(bool checked) : link(make_link(*engine, owner, checked)) {
        Ends ends = test::connected();
        EXPECT_TRUE(link->add(test::number_of(std::move(ends.one))).ok());
        bare = std::make_unique<driver::TcpSocket>(std::move(ends.other));
    }
    ~End() { link->end(test::some_error(ErrorCode::cancelled)); }
    End(const End&) = delete;
    End& operator=(const End&) = delete;

    const std::unique_ptr<backend::NetworkEngine> engine = test::make_engine(1);
    std::shared_ptr<FakeOwner> owner = std::make_shared<FakeOwner>();
    std::shared_ptr<backend::Link> link;
    std::unique_ptr<driver::TcpSocket> bare;
};

// A frame, and its bytes in one piece or in several.
struct Sent {
    Frame frame;
    std::vector<Bytes> parts;
};

const std::vector<Sent>& samples() {
    static const std::vector<Sent> all{
        {{Frame::Kind::push, 1, 2, 3, 5000, 0, 0, 9}, {}},
        {{Frame::Kind::push, 1, 0, 3, 5000}, {}},
        {{Frame::Kind::push, 1, 0, 3, 5000}, {1, 4000, 999}},
        {{Frame::Kind::push, 1, 2, 3, 0}, {}},
        {{Frame::Kind::scatter, 1, 2, 0, 300, 0, 0, 4}, {100, 200}},
        {{Frame::Kind::places, 1, 2, 0, 32, 0, 0, 4}, {}},
    };
    return all;
}

std::string bytes_of(const Frame& frame) {
    return sidestep::test::text_of(frame.size, 7);
}

// What a link puts on the wire for it.
std::string on_the_wire(const Sent& sent) {
    const End end(true);
    std::string payload = bytes_of(sent.frame);
    backend::Outgoing one{sent.frame, payload.data(), {}};
    Bytes at = 0;
    for (const Bytes size : sent.parts) {
        one.parts.push_back({payload.data() + at, size});
        at += size;
    }
    end.link->send_all(std::span(&one, 1), {});
    std::string wire(backend::frame_bytes + payload.size(), '\0');
    EXPECT_TRUE(end.bare->receive_all(wire.data(), wire.size(), test::patience()).ok());
    return wire;
}

TEST(CheckedLink, ItsOwnerSeesWhatWasSent) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    for (const Sent& sent : samples()) {
        const End end(true);
        ASSERT_TRUE(test::say(*end.bare, on_the_wire(sent)));
        ASSERT_TRUE(test::comes([&] { return end.owner->count() == 1; }));
        const Came came = end.owner->came().front();
        EXPECT_EQ(came.frame, sent.frame);
        EXPECT_TRUE(came.payload == bytes_of(sent.frame));
    }
}

// Of every byte one bit: either it is no frame any more, or its checksum is another.
TEST(CheckedLink, AnyChangeEndsIt) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    for (const Sent& sent : samples()) {
        const std::string good = on_the_wire(sent);
        // The first bytes say what it is and how long: what they make of it may wait for bytes that never come.
        const std::size_t size_at = 32, request_at = 8;
        for (std::size_t at = request_at; at < good.size(); at += at < 100 ? 1 : 397) {
            if (at >= size_at && at < size_at + 8) continue;
            const End end(true);
            std::string bad = good;
            bad[at] = static_cast<char>(bad[at] ^ 0x10);
            ASSERT_TRUE(test::say(*end.bare, bad));
            ASSERT_TRUE(test::comes([&] { return end.owner->ends == 1; })) << at;
            EXPECT_EQ(end.owner->count(), 0u) << at;
            const ErrorCode code = end.owner->why().code;
            EXPECT_TRUE(code == ErrorCode::mismatch ||
                        (at < backend::frame_bytes && code == ErrorCode::io_error))
                << at << ": " << end.owner->why().to_string();
        }
    }
}

// One end that sends no checksums is none for the other that wants them.
TEST(CheckedLink, BytesWithoutAChecksumAreRefused) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    const Frame frame{Frame::Kind::push, 1, 2, 3, 100};
    const auto head = backend::to_bytes(frame);
    const End end(true);
    ASSERT_TRUE(test::say(*end.bare, std::string(head.begin(), head.end()) + bytes_of(frame)));
    ASSERT_TRUE(test::comes([&] { return end.owner->ends == 1; }));
    EXPECT_EQ(end.owner->why().code, ErrorCode::mismatch);
    EXPECT_EQ(end.owner->count(), 0u);
}

}  // namespace
}  // namespace sidestep::wire::checked
