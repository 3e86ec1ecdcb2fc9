#include "peer/offer.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace sidestep::peer {
namespace {

MemoryOffer good() {
    MemoryOffer offer;
    offer.publisher.fill(7);
    offer.scheme = "memfd";
    offer.handle = std::string("a\0b", 3);
    offer.place = Place::gpu(3);
    offer.memory = MemoryKind::vmm;
    offer.size = 12345;
    offer.offset = 4096;
    offer.identity = 99;
    offer.address = 0x7f0000000000;
    offer.publication = 17;
    offer.has_descriptor = true;
    return offer;
}

TEST(MemoryOffer, SurvivesTheWay) {
    const auto message = to_message(good());
    ASSERT_TRUE(message) << message.error().to_string();
    const auto offer = parse_offer(*message);
    ASSERT_TRUE(offer) << offer.error().to_string();
    EXPECT_EQ(offer->publisher, good().publisher);
    EXPECT_EQ(offer->scheme, "memfd");
    EXPECT_EQ(offer->handle, good().handle);
    EXPECT_EQ(offer->place, Place::gpu(3));
    EXPECT_EQ(offer->memory, MemoryKind::vmm);
    EXPECT_EQ(offer->size, 12345u);
    EXPECT_EQ(offer->offset, 4096u);
    EXPECT_EQ(offer->identity, 99u);
    EXPECT_EQ(offer->address, 0x7f0000000000u);
    EXPECT_EQ(offer->publication, 17u);
    EXPECT_TRUE(offer->has_descriptor);
    MemoryOffer host = good();
    host.place = Place::host();
    host.memory = MemoryKind::pageable;
    EXPECT_EQ(parse_offer(*to_message(host))->place, Place::host());
}

TEST(MemoryOffer, LongestFits) {
    MemoryOffer offer = good();
    offer.scheme = std::string(32, 's');
    offer.handle = std::string(1024, 'h');
    const auto message = to_message(offer);
    ASSERT_TRUE(message) << message.error().to_string();
    EXPECT_LE(message->size(), longest_offer);
    EXPECT_EQ(parse_offer(*message)->handle.size(), 1024u);
}

TEST(MemoryOffer, FieldsThatDoNotFitAreRefused) {
    const auto refused = [](auto change) {
        MemoryOffer offer = good();
        change(offer);
        return !to_message(offer);
    };
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.size = 0; }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.size = std::numeric_limits<Bytes>::max(); }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.offset = std::numeric_limits<Bytes>::max() - 5; }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.scheme = ""; }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.scheme = std::string(33, 's'); }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.handle = std::string(1025, 'h'); }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.place = Place::gpu(-1); }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.place = Place::gpu(1'000'000); }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.place = Place::file("x"); }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.memory = MemoryKind::storage; }));
    EXPECT_TRUE(refused([](MemoryOffer& o) { o.memory = MemoryKind::automatic; }));
    EXPECT_FALSE(refused([](MemoryOffer&) {}));
}

TEST(MemoryOffer, NoPartOfAMessageIsAMessage) {
    const std::string message = *to_message(good());
    for (std::size_t size = 0; size < message.size(); ++size)
        EXPECT_FALSE(parse_offer(message.substr(0, size))) << size;
    std::string longer = message;
    longer += 'x';
    EXPECT_FALSE(parse_offer(longer));
    std::string newer = message;
    newer[4] = 3;
    const auto other = parse_offer(newer);
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, ErrorCode::unsupported);
    EXPECT_NE(other.error().message.find("version 3"), std::string::npos) << other.error().message;
}

TEST(PeerMessage, SurvivesTheWayAndNoPartOfItDoes) {
    for (const Word word :
         {Word::welcome, Word::refused, Word::ask, Word::offered, Word::absent, Word::withdrawn}) {
        const std::string bytes = to_message({word, 1ull << 40, std::string(64, 'n')});
        EXPECT_LE(bytes.size(), longest_question);
        const auto message = parse_message(bytes);
        ASSERT_TRUE(message) << message.error().to_string();
        EXPECT_EQ(message->word, word);
        EXPECT_EQ(message->number, 1ull << 40);
        EXPECT_EQ(message->text, std::string(64, 'n'));
        for (std::size_t size = 0; size < bytes.size(); ++size)
            EXPECT_FALSE(parse_message(bytes.substr(0, size))) << size;
        EXPECT_FALSE(parse_message(bytes + "x"));
    }
    EXPECT_FALSE(parse_message(to_message({static_cast<Word>(6), 0, {}})));
    MemoryOffer longest = good();
    longest.scheme = std::string(32, 's');
    longest.handle = std::string(1024, 'h');
    EXPECT_LE(to_message({Word::offered, 1, *to_message(longest)}).size(), longest_message);
}

// Whichever version speaks first, the other one finds its number where all have it.
TEST(PeerMessage, OtherVersionsAreToldApart) {
    const std::string welcome = to_message({Word::welcome, 0, "1:2"});
    EXPECT_EQ(welcome.substr(0, 6), (*to_message(good())).substr(0, 6));
    std::string old = *to_message(good());
    old[4] = 1;
    const auto other = parse_message(old);
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, ErrorCode::unsupported);
    EXPECT_NE(other.error().message.find("version 1"), std::string::npos) << other.error().message;
}

}  // namespace
}  // namespace sidestep::peer
