// Boards and messages of other processes: what makes no sense is refused or passed over.
#include "collective/board.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cctype>
#include <fstream>
#include <sstream>
#include <thread>

#include "collective/verdict.hpp"
#include "collective/wire.hpp"
#include "driver/local_socket.hpp"
#include "driver/shared_pages.hpp"
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
    std::string bytes(BoardFile::shown_bytes(), '\xff');
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
        board->enqueued(0, {.number = 1});
        board->show();
        EXPECT_EQ(folder.entries(), 1u);
        EXPECT_TRUE(running_groups(folder.path).value().empty());
        EXPECT_EQ(folder.entries(), 0u);
    }
    EXPECT_TRUE(running_groups(folder.path + "/nowhere").value().empty());
}

// Each in an algorithm of its own, they would wait for ever where there is no deadline.
TEST_F(Boards, RanksThatWaitInDifferentCallsAreFound) {
    auto board = Board::create(folder.path + "/group-00112233445566778899aabbccddeeff.board", 3, "id", "odd");
    ASSERT_TRUE(ok(board));
    const auto calls = [&](unsigned rank, std::uint64_t step, std::uint32_t signature) {
        const Noted noted{.number = step, .step = step, .signature = signature};
        board->note(rank, noted);
        board->enqueued(rank, noted);
    };
    for (unsigned rank = 0; rank < 3; ++rank) calls(rank, 1, 7);
    for (unsigned rank = 0; rank < 2; ++rank) calls(rank, 2, 8);
    EXPECT_FALSE(find_difference(0, board->file()));
    calls(2, 2, 9);
    for (unsigned rank = 0; rank < 3; ++rank) {
        const auto found = find_difference(rank, board->file());
        ASSERT_TRUE(found);
        EXPECT_EQ(found->number, 2u);
        EXPECT_EQ(found->peer, rank == 2 ? 0u : 2u);
        EXPECT_EQ(found->peer_signature, rank == 2 ? 8u : 9u);
    }
    board->ended(2, 2);  // as a root that is done with it
    EXPECT_FALSE(find_difference(0, board->file()));
}

// Its process number says nothing here, and the lock all.
TEST_F(Boards, RemnantsOfAnotherNamespaceAreRemoved) {
    const std::string path = folder.path + "/group-00112233445566778899aabbccddeeff.board";
    for (const bool locks : {true, false}) {
        std::string bytes;
        {
            auto board = Board::create(path, 2, "id", "far");
            ASSERT_TRUE(ok(board));
            board->join(0, "gpu:0");
            board->file().rows[0].numbering.store(1);
            if (!locks) board->file().rows[0].locked.store(0);
            board->enqueued(0, {.number = 1});
            board->show();
            const auto found = running_groups(folder.path).value();
            ASSERT_EQ(found.size(), 1u);
            EXPECT_TRUE(found[0].ranks[0].alive);
            std::ostringstream text;
            text << std::ifstream(path, std::ios::binary).rdbuf();
            bytes = text.str();
        }
        EXPECT_EQ(folder.entries(), 0u);
        // As it lies there when the process has died.
        std::ofstream(path, std::ios::binary) << bytes;
        EXPECT_EQ(running_groups(folder.path).value().size(), locks ? 0u : 1u);
        EXPECT_EQ(folder.entries(), locks ? 0u : 1u) << "what cannot be told stays";
        std::filesystem::remove(path);
    }
}

TEST_F(Boards, SocketsOfTheDeadAreRemoved) {
    const std::string dead = folder.path + "/kv";
    ASSERT_TRUE(ok(driver::LocalListener::bind(dead)));  // closed at once, and the file stays
    const auto live = driver::LocalListener::bind(folder.path + "/cache");
    std::ofstream(folder.path + "/notes") << "somebody's";
    EXPECT_TRUE(running_groups(folder.path).ok());
    EXPECT_FALSE(std::filesystem::exists(dead));
    EXPECT_EQ(folder.entries(), 2u);
}

TEST_F(Boards, ADeathIsWrittenDown) {
    const std::string path = folder.path + "/group-00112233445566778899aabbccddeeff.board";
    auto first = Board::create(path, 2, "id", "sad");
    ASSERT_TRUE(ok(first));
    first->join(0, "gpu:0");
    auto second = Board::adopt(driver::Fd(::dup(first->descriptor())), path, 2);
    ASSERT_TRUE(ok(second));
    second->join(1, "gpu:1");
    second->file().rows[1].numbering.store(1);
    first->died(1);
    const auto found = running_groups(folder.path).value();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_TRUE(found[0].ranks[0].alive);
    EXPECT_FALSE(found[0].ranks[1].alive);
    EXPECT_FALSE(found[0].ranks[1].left);
}

// What somebody does to the file reaches no rank.
TEST_F(Boards, TheFileMayBeCutShort) {
    auto groups = make(2);
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path))
        if (entry.path().extension() == ".board") path = entry.path();
    std::filesystem::resize_file(path, 0);
    groups::on_all(groups, [](Group& group) {
        EXPECT_TRUE(ok(group.barrier()));
        EXPECT_TRUE(ok(group.wait()));
    });
    const auto start = std::chrono::steady_clock::now();
    while (running_groups(folder.path).value().empty() &&
           std::chrono::steady_clock::now() - start < std::chrono::seconds(20))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(running_groups(folder.path).value().size(), 1u) << "the ranks write it anew";
}

TEST_F(Boards, AFolderThatIsMadeMeanwhileIsNoError) {
    const std::string made = folder.path + "/later";
    for (int round = 0; round < 300; ++round) {
        std::thread maker([&] { std::filesystem::create_directory(made); });
        while (!std::filesystem::exists(made)) EXPECT_TRUE(ok(running_groups(made)));
        maker.join();
        std::filesystem::remove(made);
    }
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

// Whoever notices, and whomever it noticed.
TEST_F(Boards, OfManyRanksTheOddOneIsNamed) {
    auto board = Board::create(folder.path + "/group-00112233445566778899aabbccddeeff.board", 8, "id", "odd");
    ASSERT_TRUE(ok(board));
    const auto call = [&](unsigned rank, Collective collective) {
        const bool combines = collective == Collective::all_reduce;
        const Noted noted{.number = 1,
                          .step = 1,
                          .count = 100,
                          .signature = combines ? 7u : 9u,
                          .collective = collective,
                          .combine = combines ? protocol::Combine::sum : protocol::Combine::none};
        board->file().rows[rank].process.store(100 + rank);
        board->file().rows[rank].place.store("gpu:" + std::to_string(rank));
        board->note(rank, noted);
        board->enqueued(rank, noted);
    };
    for (unsigned rank = 0; rank < 8; ++rank)
        call(rank, rank == 5 ? Collective::broadcast : Collective::all_reduce);
    const auto seen_by = [&](unsigned rank, unsigned peer) {
        const FaultSeen fault{{.kind = protocol::FaultKind::mismatch,
                               .peer = peer,
                               .number = 1,
                               .signature = rank == 5 ? 9u : 7u,
                               .peer_signature = peer == 5 ? 9u : 7u},
                              rank,
                              "rank " + std::to_string(rank),
                              "rank " + std::to_string(peer),
                              60};
        return explain_fault(fault, board->file());
    };
    for (const auto& [rank, peer] : {std::pair(2u, 5u), std::pair(5u, 2u)}) {
        const Error error = seen_by(rank, peer);
        EXPECT_EQ(error.code, ErrorCode::mismatch);
        EXPECT_EQ(error.message.find("rank 5 (process 105, gpu:5) runs broadcast"), 0u) << error.message;
        EXPECT_NE(error.message.find("as operation 1, the other 7 ranks all_reduce"), std::string::npos)
            << error.message;
    }
    // Where as many run one as the other, both are told.
    for (const unsigned rank : {1u, 3u, 7u}) call(rank, Collective::broadcast);
    EXPECT_EQ(seen_by(2, 5).message.find("rank 5 runs broadcast"), 0u) << seen_by(2, 5).message;
}

// Two ranks that enqueued operations 1 to 10 nine seconds ago, of which 2 are known to have ended.
class BusyBoards : public Boards {
protected:
    void SetUp() override {
        const std::string path = folder.path + "/group-00112233445566778899aabbccddeeff.board";
        boards.push_back(std::move(Board::create(path, 2, "id", "busy")).value());
        driver::Fd copy(::dup(boards[0].descriptor()));
        boards[0].join(0, "gpu:0");
        boards.push_back(std::move(Board::adopt(std::move(copy), path, 2)).value());
        boards[1].join(1, "gpu:1");
        for (const unsigned rank : {0u, 1u}) {
            for (std::uint64_t number = 1; number <= 10; ++number) note(rank, number);
            row(rank).done.store(2);
        }
    }
    void note(unsigned rank, std::uint64_t number) {
        const Noted noted{.number = number, .step = number, .time_ns = steady_ns() - 9'000'000'000};
        boards[rank].note(rank, noted);
        boards[rank].enqueued(rank, noted);
    }
    BoardFile::Row& row(unsigned rank) { return boards[rank].file().rows[rank]; }
    // With T for every time.
    std::string stuck() {
        for (Board& board : boards) board.show();
        std::string text = running_groups(folder.path).value().at(0).stuck;
        for (std::size_t at = text.find(" s"); at != std::string::npos; at = text.find(" s", at + 1)) {
            std::size_t first = at;
            while (first > 0 && std::isdigit(static_cast<unsigned char>(text[first - 1])) != 0) --first;
            if (first == at) continue;
            text.replace(first, at - first, "T");
            at = first + 1;
        }
        return text;
    }
    static std::string rank_1() { return "rank 1 (process " + std::to_string(::getpid()) + ", "; }

    std::vector<Board> boards;
};

TEST_F(BusyBoards, WhoIsNeverIdleMayBeHealthy) {
    EXPECT_EQ(
        stuck(),
        "ranks 0, 1 have not been idle for T s, with several operations enqueued since operation 3, barrier");
    // Of a single one it is known.
    row(0).done.store(9);
    row(1).done.store(9);
    EXPECT_EQ(stuck(), "ranks 0, 1 for T s in operation 10, barrier");
    note(0, 11);
    row(0).done.store(10);
    EXPECT_EQ(stuck(), "rank 1 for T s in operation 10, barrier; rank 0 waits for " + rank_1() +
                           "at operation 10) since T s, in operation 11, barrier");
}

TEST_F(BusyBoards, WhoCountsWhatHasEnded) {
    row(0).counts.store(1);
    row(1).counts.store(1);
    EXPECT_EQ(stuck(), "ranks 0, 1 for T s in operation 3, barrier");
    // It has called it, and is not there yet.
    row(0).done.store(3);
    EXPECT_EQ(stuck(), "rank 1 for T s in operation 3, barrier; rank 0 waits for " + rank_1() +
                           "in operation 3, barrier) since T s, in operation 4, barrier");
    // However long ago it was enqueued: its turn came just now.
    boards[0].ended(0, 4);
    boards[1].ended(1, 4);
    EXPECT_EQ(stuck(), "");
}

TEST_F(BusyBoards, OnlyGrows) {
    boards[0].ended(0, 7);
    boards[0].ended(0, 5);
    EXPECT_EQ(row(0).done.load(), 7u);
    EXPECT_EQ(boards[0].file().oldest_unfinished(0)->number, 8u);
    boards[0].ended(0, 10);
    EXPECT_FALSE(boards[0].file().oldest_unfinished(0));
    // Only so many are remembered.
    for (std::uint64_t number = 11; number <= 100; ++number) note(0, number);
    EXPECT_EQ(boards[0].file().oldest_unfinished(0)->number, 100 - BoardFile::remembered + 1);
}

// A task that waited for one gives up after the deadline: the other is not said to hang.
TEST_F(BusyBoards, WhoLeftDoesNotHang) {
    const FaultSeen fault{
        {.kind = protocol::FaultKind::timed_out, .peer = 1, .number = 10}, 0, "rank 0", "rank 1", 60};
    EXPECT_NE(
        explain_fault(fault, boards[0].file()).message.find("rank 1 enqueued operation 10, barrier too"),
        std::string::npos);
    boards[1].leave();
    for (const std::uint64_t number : {10, 11}) {
        if (number == 11) note(0, number);
        FaultSeen later = fault;
        later.record.number = number;
        const Error error = explain_fault(later, boards[0].file());
        EXPECT_EQ(error.code, ErrorCode::io_error);
        EXPECT_EQ(error.message, "rank 1 left the group without having ended operation " +
                                     std::to_string(number) + ", barrier, and rank 0 waited 60 s for it");
    }
    // One that found its memory gone has not waited.
    FaultSeen gone = fault;
    gone.record.kind = protocol::FaultKind::mismatch;
    gone.record.signature = gone.record.peer_signature = 5;
    const Error error = explain_fault(gone, boards[0].file());
    EXPECT_EQ(error.code, ErrorCode::io_error);
    EXPECT_EQ(error.message,
              "rank 1 left the group without having ended operation 10, barrier, which rank 0 is in");
}

// By another process, which may write anything there: a look at it comes to an end.
TEST_F(BusyBoards, NumbersThatNobodyCountedTo) {
    for (const std::uint64_t enqueued : {~std::uint64_t{0}, ~std::uint64_t{0} - 1, std::uint64_t{1} << 63}) {
        for (const std::uint64_t done : {std::uint64_t{0}, enqueued - 1, enqueued, ~std::uint64_t{0}}) {
            boards[0].file().rows[1].enqueued.store(enqueued);
            boards[0].file().rows[1].done.store(done);
            (void)explain_departure({1, "rank 1", 10, 0, "rank 0", 1, steady_ns()}, boards[0].file());
            (void)explain_death({1, "rank 1", 0, "rank 0"}, boards[0].file());
        }
    }
}

TEST_F(BusyBoards, MemoryThatIsNotThereNamesWhoNamedIt) {
    const FaultSeen fault{
        {.kind = protocol::FaultKind::mismatch, .peer = 1, .number = 10, .signature = 7, .peer_signature = 7},
        0,
        "rank 0",
        "rank 1",
        60};
    const Error error = explain_fault(fault, boards[0].file());
    EXPECT_EQ(error.code, ErrorCode::io_error);
    EXPECT_EQ(error.message, "rank 1 names memory that rank 0 does not have of it, in operation 10, barrier");
}

// Touching it would end in SIGBUS, whether or not the system has set huge pages aside.
TEST(SharedPages, OfHugePagesAreRefused) {
    constexpr Bytes bytes = 2 << 20;
    driver::Fd fd(::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
    if (!fd) GTEST_SKIP() << "the kernel has no huge pages";
    ASSERT_EQ(::ftruncate(fd.get(), bytes), 0);
    ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    const auto map = driver::SharedMap::open(fd.get(), bytes);
    ASSERT_FALSE(map.ok());
    EXPECT_EQ(map.error().message, "shared memory is not of ordinary pages");
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
