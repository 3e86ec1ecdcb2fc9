// Boards and messages of other processes: what makes no sense is refused or passed over.
#include "collective/board.hpp"

#include <fstream>

#include "collective/wire.hpp"
#include "tests/unit/group/ranks.hpp"

namespace sidestep::collective {
namespace {

using groups::ok;

class Boards : public groups::GroupTest {};

TEST_F(Boards, WhatMakesNoSenseIsPassedOver) {
    const std::string path = folder.path + "/group-00112233445566778899aabbccddeeff.board";
    std::ofstream(path) << "no board";
    EXPECT_TRUE(running_groups(folder.path).value().empty());
    // The right size and mark, and any bytes behind.
    std::string bytes(sizeof(BoardFile), '\xff');
    std::memcpy(bytes.data(), &BoardFile::right_magic, 8);
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_TRUE(running_groups(folder.path).value().empty());  // too many ranks
    const std::uint64_t ranks = 16;
    std::memcpy(bytes.data() + 8, &ranks, 8);
    for (unsigned seed = 1; seed < 40; ++seed) {
        for (std::size_t i = 24; i < bytes.size(); ++i)
            bytes[i] = static_cast<char>((i * 2654435761u * seed) >> 11);
        std::ofstream(path, std::ios::binary) << bytes;
        EXPECT_TRUE(running_groups(folder.path).ok());
    }
}

TEST_F(Boards, RemnantsAreRemoved) {
    {
        auto board =
            Board::create(folder.path + "/group-00112233445566778899aabbccddeeff.board", 2, "id", "gone");
        ASSERT_TRUE(ok(board));
        board->join(0, "gpu:0");
        // As if the process had died: its id belongs to nobody.
        board->file().rows[0].process.store(1 << 22);
        EXPECT_EQ(folder.entries(), 1u);
        EXPECT_TRUE(running_groups(folder.path).value().empty());
        EXPECT_EQ(folder.entries(), 0u);
    }
    EXPECT_TRUE(running_groups(folder.path + "/nowhere").value().empty());
}

// Between its making and rank 0's joining nobody is in it: it is not a remnant.
TEST_F(Boards, OneThatIsBeingMadeIsLeftAlone) {
    auto board = Board::create(folder.path + "/group-00112233445566778899aabbccddeeff.board", 2, "id", "new");
    ASSERT_TRUE(ok(board));
    EXPECT_TRUE(running_groups(folder.path).value().empty());
    EXPECT_EQ(folder.entries(), 1u);
    board->join(0, "gpu:0");
    EXPECT_EQ(running_groups(folder.path).value().size(), 1u);
}

TEST(Wire, RefusesWhatMakesNoSense) {
    const Message message{.word = Word::share,
                          .slot = 3,
                          .number = 1ull << 40,
                          .code = ErrorCode::mismatch,
                          .text = "text",
                          .blob = "blob"};
    const std::string bytes = to_bytes(message);
    const auto back = parse_message(bytes);
    ASSERT_TRUE(ok(back));
    EXPECT_EQ(back->slot, 3u);
    EXPECT_EQ(back->number, 1ull << 40);
    EXPECT_EQ(back->code, ErrorCode::mismatch);
    EXPECT_EQ(back->text + back->blob, "textblob");
    for (std::size_t length = 0; length < bytes.size(); ++length)
        EXPECT_FALSE(parse_message(bytes.substr(0, length)).ok());
    EXPECT_FALSE(parse_message(bytes + "x").ok());
    std::string other = bytes;
    other[0] = 1;
    EXPECT_EQ(parse_message(other).error().code, ErrorCode::unsupported);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        std::string wrong = bytes;
        wrong[i] = '\xff';
        (void)parse_message(wrong);  // an error or not, never more
    }
    Hello hello;
    hello.rank = 2;
    hello.ranks = 2;
    EXPECT_FALSE(parse_hello(to_bytes(hello)).ok());
    hello.ranks = 3;
    EXPECT_TRUE(ok(parse_hello(to_bytes(hello))));
}

}  // namespace
}  // namespace sidestep::collective
