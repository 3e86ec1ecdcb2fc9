// A rank that has joined as it should, and then says what makes no sense to the service threads of the others, or writes
// it on the board that all share.
#include <fcntl.h>

#include <cstddef>
#include <future>
#include <thread>

#include <fmt/format.h>

#include "collective/exchanges.hpp"
#include "protocol/pair_blocks.hpp"
#include "tests/unit/collective/hostile.hpp"
#include "tests/unit/group/ranks.hpp"

namespace sidestep::collective {
namespace {

constexpr std::uint64_t most = ~std::uint64_t{0};

// Longer than service threads rest.
void let_them_look() {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
}

class HostileActs : public Hostile {
protected:
    void expect_survived(const std::vector<Act>& acts) const {
        std::vector<Case> cases;
        for (std::size_t i = 0; i < acts.size(); ++i)
            cases.emplace_back([&, i](Bench& bench) {
                bench.expect_act_is_survived(static_cast<unsigned>(i % ranks), acts[i]);
            });
        run(cases);
    }
};

Act saying(const std::string& name, const Message& message, int times = 1) {
    return {name, [=](FakeRank& fake) {
                for (int i = 0; i < times; ++i) fake.say_to_all(message);
            }};
}

TEST_F(HostileActs, EveryWordWithEveryNumber) {
    std::vector<Act> acts;
    for (unsigned word = 0; word <= 15; ++word)
        for (const std::uint64_t number :
             {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1023}, std::uint64_t{1024}, most})
            acts.push_back(saying(fmt::format("word {} of {}", word, number),
                                  {.word = static_cast<Word>(word),
                                   .slot = static_cast<std::uint32_t>(number),
                                   .number = number,
                                   .text = "because"}));
    expect_survived(acts);
}

TEST_F(HostileActs, Messages) {
    std::vector<Act> acts;
    const auto bytes = [&](const std::string& name, const std::string& said,
                           const std::vector<int>& descriptors = {}) {
        acts.push_back({name, [=](FakeRank& fake) {
                            for (unsigned rank = 0; rank < fake.ranks(); ++rank)
                                fake.say_bytes(rank, said, descriptors);
                        }});
    };
    const std::string goodbye = to_bytes(Message{.word = Word::goodbye});
    bytes("no bytes", "");
    bytes("a longer message than there is", std::string(100'000, 'x'));
    acts.back().says = "sent what cannot be read: a message has more than";
    bytes("noise", "noise");
    acts.back().says = "sent what cannot be read";
    bytes("a hundred descriptors", goodbye, std::vector<int>(100, 0));
    acts.back().says = "sent what cannot be read: a message came with more descriptors";
    bytes("a descriptor that nobody asked for", to_bytes(Message{.word = Word::forgotten}), {0});
    acts.push_back(saying("an end without a reason", {.word = Word::failed}));
    acts.push_back(saying("forgets what was not lent", {.word = Word::forgotten}, 100));
    acts.push_back(saying("a flood", {.word = Word::withdrawn, .blob = std::string(16'000, 'x')}, 2'000));
    acts.push_back(saying("a flood that is answered", {.word = Word::drop, .slot = 1}, 20'000));
    acts.push_back({"leaves and goes on", [](FakeRank& fake) {
                        for (const std::uint64_t steps : {most, std::uint64_t{0}})
                            fake.say_to_all({.word = Word::goodbye, .number = steps});
                        fake.say_to_all({.word = Word::share, .slot = 1, .blob = fake.arena_offer()},
                                        {fake.arena()});
                        fake.say_to_all({.word = Word::drop, .slot = 1});
                    }});
    expect_survived(acts);
}

TEST_F(HostileActs, OffersOfMemory) {
    const Zoo zoo;
    std::vector<Act> acts;
    const auto share = [](FakeRank& fake, std::uint32_t slot, const std::string& offer, int fd) {
        fake.say_to_all({.word = Word::share, .slot = slot, .blob = offer}, {fd});
    };
    for (const Zoo::Animal& animal : zoo.animals())
        acts.push_back(
            {animal.name, [&](FakeRank& fake) { share(fake, 1, fake.arena_offer(), animal.fd.get()); }});
    for (const std::size_t field : {OfferField::size, OfferField::offset})
        for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{1} << 62, most - (1 << 20), most})
            acts.push_back({fmt::format("an offer with {} in byte {}", number, field), [=](FakeRank& fake) {
                                std::string offer = fake.arena_offer();
                                put_at(offer, field, number);
                                share(fake, 1, offer, fake.arena());
                            }});
    acts.push_back({"the same slot again", [=](FakeRank& fake) {
                        for (int i = 0; i < 3; ++i) share(fake, 7, fake.arena_offer(), fake.arena());
                    }});
    acts.push_back({"every slot, and none", [=](FakeRank& fake) {
                        for (std::uint32_t slot = 1; slot < protocol::max_slots; ++slot)
                            share(fake, slot, fake.arena_offer(), fake.arena());
                        for (std::uint32_t slot = 1; slot < protocol::max_slots; ++slot)
                            fake.say_to_all({.word = Word::drop, .slot = slot});
                        let_them_look();
                    }});
    expect_survived(acts);
}

// The number of an exchange: its kind, its members, and how manieth of those it is.
constexpr std::uint64_t exchange_number(std::uint64_t kind, std::uint64_t members, std::uint64_t count) {
    return kind << 48 | members << 32 | count;
}

TEST_F(HostileActs, Exchanges) {
    constexpr std::uint64_t all = (1u << ranks) - 1;
    const auto split = static_cast<std::uint64_t>(Exchanges::Kind::split);
    std::vector<Case> cases;
    // The others are in a split, which waits for this rank.
    const auto during_split = [&](const std::string& name, const std::function<void(FakeRank&)>& act,
                                  const std::string& says = "rank") {
        cases.emplace_back(
            [name, act, says, liar = static_cast<unsigned>(cases.size() % ranks)](Bench& bench) {
                const auto in_split = [&](FakeRank& fake) {
                    auto told = std::async(std::launch::async, [&] { return bench.tell("split 0 0"); });
                    let_them_look();
                    act(fake);
                    let_them_look();
                    fake.hang_up();
                    for (const std::string& said : told.get())
                        EXPECT_NE(said.find(says), std::string::npos) << said;
                };
                bench.expect_act_is_survived(liar, {name, in_split});
            });
    };
    for (const std::size_t length : {0, 1, 7, 9, 16'000})
        during_split(fmt::format("{} bytes", length), [=](FakeRank& fake) {
            fake.say_to_all({.word = Word::exchange,
                             .slot = 1,
                             .number = exchange_number(split, all, 1),
                             .blob = std::string(length, 'x')});
        });
    for (const std::uint64_t number :
         {std::uint64_t{0}, exchange_number(split, all, 0), exchange_number(split, all, 0xffffffff),
          exchange_number(split, 0xffff, 1), exchange_number(0xffff, all, 1), most})
        for (const Word word : {Word::exchange, Word::withdraw, Word::withdrawn})
            during_split(fmt::format("word {} of {:x}", static_cast<int>(word), number), [=](FakeRank& fake) {
                fake.say_to_all({.word = word, .slot = 0xffffffff, .number = number, .blob = "12345678"});
            });
    during_split("a flood", [=](FakeRank& fake) {
        for (std::uint64_t i = 0; i < 10'000; ++i)
            fake.say_to_all(
                {.word = i % 2 == 0 ? Word::exchange : Word::withdraw, .number = exchange_number(i, all, i)});
    });
    during_split(
        "what a split needs, and then it never joins the new group",
        [=](FakeRank& fake) {
            fake.say_to_all({.word = Word::exchange,
                             .slot = 1,
                             .number = exchange_number(split, all, 1),
                             .blob = std::string(2 * sizeof(int), '\0')});
        },
        "has died or left");
    run(cases);
}

// Memory that it lends, and takes away while another rank writes there.
TEST_F(HostileActs, DropsWhatIsInUse) {
    constexpr std::size_t count = 12'000'000;
    constexpr std::uint64_t bytes = count * sizeof(int);
    constexpr std::uint32_t slot = 5;
    const unsigned liar = 2;
    const driver::Fd memory(make_memory(bytes, 0, F_SEAL_SHRINK));
    Bench bench(folder);
    const Act act{
        "drops what is in use",
        [&](FakeRank& fake) {
            std::string offer = fake.arena_offer();
            put_at(offer, OfferField::size, bytes);
            fake.say(0, {.word = Word::share, .slot = slot, .blob = offer}, {memory.get()});
            const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
            while (const auto answer = fake.hear(0, until))
                if (answer->word == Word::shared) break;
            // The lines of a receiver: everything goes to the start of that memory.
            const protocol::ArenaLayout layout{ranks};
            Operation pair{.collective = Collective::send_recv};
            const std::uint64_t words[4] = {std::uint64_t{slot} << 48, bytes, signature_of(pair), 0};
            const std::uint64_t flag = std::uint64_t{protocol::packet_flag(1)} << 32;
            for (unsigned block = 0; block < protocol::staging_blocks; ++block)
                for (unsigned word = 0; word < 4; ++word) {
                    auto* const packet = reinterpret_cast<std::atomic<std::uint64_t>*>(
                        fake.arena_of(0) + layout.post(1, block, liar) + 16 * word);
                    packet[1].store(flag | words[word] >> 32);
                    packet[0].store(flag | (words[word] & 0xffffffff));
                }
            fake.say(0, {.word = Word::drop, .slot = slot});
            (void)bench.tell("status");
        },
        Names::liar, fmt::format("pair send {} {}", count, liar)};
    for (int round = 0; round < 5; ++round) bench.expect_act_is_survived(liar, act);
}

using Write = std::function<void(BoardFile&, unsigned liar)>;

Act writing(const std::string& name, Write write, Names names = Names::anybody) {
    return {name,
            [write = std::move(write)](FakeRank& fake) {
                write(fake.board(), fake.rank());
                let_them_look();
            },
            names};
}

// As programs and the C interface get it.
class HostileCodes : public groups::GroupTest {};

TEST_F(HostileCodes, AreThoseThatThereAre) {
    for (const std::uint64_t code : {0, 15, 255}) {
        const GroupId id = *GroupId::create();
        FakeRank fake(folder.path, id, 1, 2);
        auto joined = std::async(std::launch::async, [&] {
            return Group::join(*context, {id, 0, 2, Place::gpu(0)}, {std::chrono::milliseconds(60'000)});
        });
        ASSERT_TRUE(fake.join({}));
        auto group = joined.get();
        ASSERT_TRUE(groups::ok(group));
        ASSERT_TRUE(groups::ok(group->barrier()));
        fake.board().aborted.store(2 | code << 8);
        const auto ended = group->wait();
        ASSERT_FALSE(ended.ok());
        EXPECT_EQ(ended.error().code, ErrorCode::io_error) << code;
    }
}

std::atomic<std::uint64_t>* words_of(BoardFile& board) {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(&board);
}
constexpr std::size_t words_of_board = sizeof(BoardFile) / sizeof(std::uint64_t);

TEST_F(HostileActs, Boards) {
    std::vector<Act> acts;
    // As if they had been waiting for long: then they look who waits for whom.
    const auto old = [](BoardFile& board) {
        for (BoardFile::Row& row : board.rows) {
            row.moved_ns.store(0);
            for (BoardFile::Cell& cell : row.cells) cell.time_ns.store(1);
        }
    };
    acts.push_back(writing("of more ranks than there are", [=](BoardFile& board, unsigned) {
        board.ranks.store(most);
        old(board);
    }));
    acts.push_back(writing("of no ranks", [=](BoardFile& board, unsigned) {
        board.ranks.store(0);
        old(board);
    }));
    for (const std::uint64_t number :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 63, most - 1, most}) {
        acts.push_back(writing(fmt::format("{} everywhere", number), [=](BoardFile& board, unsigned) {
            for (std::size_t i = 0; i < words_of_board; ++i) words_of(board)[i].store(number);
        }));
        acts.push_back(writing(fmt::format("{} operations", number), [=](BoardFile& board, unsigned liar) {
            board.rows[liar].enqueued.store(number);
            board.rows[liar].steps.store(number);
            for (BoardFile::Row& row : board.rows) row.done.store(number);
        }));
        acts.push_back(writing(fmt::format("state {}", number), [=](BoardFile& board, unsigned) {
            for (BoardFile::Row& row : board.rows) row.state.store(number);
        }));
        acts.push_back(writing(fmt::format("cells of {}", number), [=](BoardFile& board, unsigned) {
            for (BoardFile::Row& row : board.rows)
                for (BoardFile::Cell& cell : row.cells)
                    for (auto* word : {&cell.step, &cell.time_ns, &cell.count, &cell.what, &cell.signature})
                        word->store(number);
            old(board);
        }));
    }
    for (const std::uint64_t code : {0, 9, 15, 255})
        acts.push_back(writing(
            fmt::format("an end with code {}", code),
            [=](BoardFile& board, unsigned liar) {
                board.rows[liar].error.store(std::string(600, '\xfe'));
                board.aborted.store((liar + 1) | code << 8);
            },
            Names::liar));
    acts.push_back(writing("an end by a rank that is none",
                           [](BoardFile& board, unsigned) { board.aborted.store(200); }));
    expect_survived(acts);
}

TEST_F(HostileActs, BoardsByChance) {
    run_seeds(100, [](Bench& bench, std::uint64_t seed) {
        const auto scribble = [=](BoardFile& board, unsigned) {
            Chance chance(seed);
            for (int burst = 0; burst < 3; ++burst) {
                for (int i = 0; i < 2'000; ++i)
                    words_of(board)[chance.below(words_of_board)].store(chance.number());
                // What is looked at most: of the whole board, and in each row before the cells.
                for (int i = 0; i < 200; ++i) {
                    auto* const row =
                        reinterpret_cast<std::atomic<std::uint64_t>*>(&board.rows[chance.below(ranks)]);
                    row[chance.below(offsetof(BoardFile::Row, place) / sizeof(*row))].store(chance.number());
                    if (chance.below(10) == 0) words_of(board)[chance.below(3)].store(chance.number());
                }
                let_them_look();
            }
        };
        bench.expect_act_is_survived(static_cast<unsigned>(seed % ranks),
                                     writing(fmt::format("seed {}", seed), scribble));
    });
}

// A hundred messages in each group.
TEST_F(HostileActs, MessagesByChance) {
    const Zoo zoo;
    const auto say_one = [&](FakeRank& fake, Chance& chance) {
        Message message{.word = static_cast<Word>(1 + chance.below(14)),
                        .slot = static_cast<std::uint32_t>(chance.number()),
                        .number = chance.number(),
                        .code = static_cast<ErrorCode>(chance.below(15)),
                        .text = chance.bytes(chance.below(20)),
                        .blob = fake.arena_offer()};
        // Most of the others end the group; what comes then is answered all the same.
        if (chance.below(3) == 0) message.word = Word::share;
        if (chance.below(3) == 0) message.slot %= 8;
        if (chance.below(2) == 0) spoil(message.blob, chance);
        message.blob.resize(std::min(message.blob.size(), longest_blob));
        std::vector<int> descriptors{fake.arena()};
        if (chance.below(3) == 0) descriptors = {chance.one_of(zoo.animals()).fd.get()};
        if (chance.below(5) == 0) descriptors.clear();
        std::string bytes = to_bytes(message);
        if (chance.below(20) == 0) spoil(bytes, chance);
        fake.say_bytes(static_cast<unsigned>(chance.below(ranks)), bytes, descriptors);
    };
    run_seeds(100, [&](Bench& bench, std::uint64_t seed) {
        const auto act = [&](FakeRank& fake) {
            Chance chance(seed);
            for (int i = 0; i < 100; ++i) say_one(fake, chance);
            let_them_look();
        };
        bench.expect_act_is_survived(static_cast<unsigned>(seed % ranks),
                                     {fmt::format("seed {}", seed), act, Names::anybody});
    });
}

}  // namespace
}  // namespace sidestep::collective
