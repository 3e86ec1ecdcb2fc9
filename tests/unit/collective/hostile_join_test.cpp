// A rank that lies while it joins: the others end with an error that names it, before their deadline.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include <fmt/format.h>

#include "tests/unit/collective/hostile.hpp"

namespace sidestep::collective {
namespace {

using At = Said::At;

// Of what is said at this place, to everybody.
Lie lie_at(At at, std::function<void(Said&)> change) {
    return [at, change = std::move(change)](Said& said) {
        if (said.at == at) change(said);
    };
}

Lie spoiled(At at, std::function<void(std::string&)> change) {
    return lie_at(at, [change = std::move(change)](Said& said) { said.spoil = change; });
}

Lie with_hello(std::function<void(Hello&)> change) {
    return lie_at(At::hello, [change = std::move(change)](Said& said) {
        Hello hello = parse_hello(said.message.blob).value();
        change(hello);
        said.message.blob = to_bytes(hello);
    });
}

template <typename Number>
Lie with_offer(std::size_t field, Number number) {
    return lie_at(At::arena, [=](Said& said) { put_at(said.message.blob, field, number); });
}

std::string name_of(At at) {
    return at == At::hello ? "hello" : at == At::arena ? "arena" : "ready";
}

// What can be done to any message.
std::vector<Lying> lies_at(At at) {
    std::vector<Lying> lies;
    const auto add = [&](const std::string& what, Lie lie) {
        lies.push_back({fmt::format("{} {}", name_of(at), what), std::move(lie)});
    };
    add("twice", lie_at(at, [](Said& said) { said.times = 2; }));
    add("a hundred times", lie_at(at, [](Said& said) { said.times = 100; }));
    add("of no bytes", spoiled(at, [](std::string& bytes) { bytes.clear(); }));
    add("cut by a byte", spoiled(at, [](std::string& bytes) { bytes.pop_back(); }));
    add("with a byte more", spoiled(at, [](std::string& bytes) { bytes += 'x'; }));
    add("of noise", spoiled(at, [](std::string& bytes) { bytes = "\x01\x02 noise"; }));
    add("longer than any", spoiled(at, [](std::string& bytes) { bytes.resize(100'000, 'x'); }));
    add("of another version", spoiled(at, [](std::string& bytes) { bytes[0] = '\x7f'; }));
    add("with three descriptors", lie_at(at, [](Said& said) { said.descriptors.assign(3, 0); }));
    add("with a hundred descriptors", lie_at(at, [](Said& said) { said.descriptors.assign(100, 0); }));
    add("with texts that are none",
        lie_at(at, [](Said& said) { said.message.text = std::string(900, '\xff'); }));
    for (unsigned word = 0; word <= 15; ++word)
        add(fmt::format("as word {}", word),
            lie_at(at, [=](Said& said) { said.message.word = static_cast<Word>(word); }));
    for (const std::uint64_t number : {std::uint64_t{1}, ~std::uint64_t{0}})
        add(fmt::format("with the number {}", number), lie_at(at, [=](Said& said) {
                said.message.number = number;
                said.message.slot = static_cast<std::uint32_t>(number);
            }));
    return lies;
}

class HostileJoin : public Hostile {
protected:
    void expect_found(const std::vector<Lying>& lies,
                      std::initializer_list<unsigned> liars = {0, 1, 2}) const {
        std::vector<Case> cases;
        for (const Lying& lie : lies)
            for (const unsigned liar : liars)
                cases.emplace_back([&lie, liar](Bench& bench) { bench.expect_lie_is_found(liar, lie); });
        run(cases);
    }
};

TEST_F(HostileJoin, Hellos) {
    std::vector<Lying> lies = lies_at(At::hello);
    for (const std::uint32_t rank : {0u, 1u, 2u, 3u, 15u, 16u, ~0u})
        lies.push_back(
            {fmt::format("hello as rank {}", rank), with_hello([=](Hello& hello) { hello.rank = rank; })});
    for (const std::uint32_t number : {0u, 2u, 4u, 16u, 17u, ~0u})
        lies.push_back({fmt::format("hello of {} ranks", number),
                        with_hello([=](Hello& hello) { hello.ranks = number; })});
    lies.push_back(
        {"hello from a place that is none", with_hello([](Hello& hello) { hello.place = "the moon\n"; })});
    lies.push_back({"hello with the name of a GPU",
                    with_hello([](Hello& hello) { hello.gpu = std::string(64, '\xff'); })});
    expect_found(lies);
}

// Which rank 0 alone sends.
TEST_F(HostileJoin, FiguresAndBoards) {
    std::vector<Lying> lies;
    for (const std::string& figures :
         {std::string("{"), std::string(8000, '['), std::string(8000, '\xff'), std::string("[]"),
          std::string(R"({"version": 1, "max_blocks": 18446744073709551615})"),
          std::string(R"({"version": 1, "link_gb_per_s": -1e308})"),
          std::string(R"({"version": 1, "lines_max": 1e400})")})
        lies.push_back(
            {"figures " + figures.substr(0, 60), with_hello([=](Hello& hello) { hello.figures = figures; })});
    lies.push_back({"no board", lie_at(At::hello, [](Said& said) { said.descriptors.clear(); })});
    driver::Fd empty(make_memory(sizeof(BoardFile), 0, F_SEAL_SHRINK));
    lies.push_back(
        {"an empty board", lie_at(At::hello, [&](Said& said) { said.descriptors = {empty.get()}; })});
    const Zoo zoo;
    for (const Zoo::Animal& animal : zoo.animals())
        lies.push_back({fmt::format("a board that is {}", animal.name),
                        lie_at(At::hello, [&](Said& said) { said.descriptors = {animal.fd.get()}; })});
    expect_found(lies, {0});
}

TEST_F(HostileJoin, Arenas) {
    std::vector<Lying> lies = lies_at(At::arena);
    const auto add = [&](const std::string& what, Lie lie) {
        lies.push_back({"arena " + what, std::move(lie)});
    };
    for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 20,
                                     std::uint64_t{1} << 40, ~std::uint64_t{0} - 1, ~std::uint64_t{0}})
        add(fmt::format("of {} bytes", size), with_offer(OfferField::size, size));
    for (const std::uint64_t offset :
         {std::uint64_t{1}, std::uint64_t{1} << 20, std::uint64_t{1} << 63, ~std::uint64_t{0}})
        add(fmt::format("from byte {} on", offset), with_offer(OfferField::offset, offset));
    for (const std::int32_t index : {-2, -1, 7, 8, 1'000'000, 0x7fffffff})
        add(fmt::format("of gpu:{}", index), with_offer(OfferField::index, index));
    add("of host memory", with_offer(OfferField::on_gpu, std::uint8_t{0}));
    for (const int kind : {0, 1, 4, 200})
        add(fmt::format("of kind {}", kind), with_offer(OfferField::memory, static_cast<std::uint8_t>(kind)));
    add("said to have no descriptor", with_offer(OfferField::has_descriptor, std::uint8_t{0}));
    add("without its descriptor", lie_at(At::arena, [](Said& said) { said.descriptors.clear(); }));
    add("of another scheme", with_offer(OfferField::scheme + 2, 'M'));
    const Zoo zoo;
    for (const Zoo::Animal& animal : zoo.animals())
        add(fmt::format("that is {}", animal.name),
            lie_at(At::arena, [&](Said& said) { said.descriptors = {animal.fd.get()}; }));
    expect_found(lies, {0, 2});
}

TEST_F(HostileJoin, Readies) {
    expect_found(lies_at(At::ready), {0, 2});
}

// The deadline is waited for.
TEST_F(HostileJoin, Silence) {
    std::vector<Case> cases;
    for (const At at : {At::hello, At::arena, At::ready})
        for (const unsigned liar : {0u, 2u})
            cases.emplace_back([=](Bench& bench) {
                bench.expect_lie_is_found(
                    liar, {"no " + name_of(at), lie_at(at, [](Said& said) { said.times = 0; })});
            });
    cases.emplace_back([](Bench& bench) {
        bench.expect_act_is_survived(1, {"nothing", [&](FakeRank&) { (void)bench.tell("wait"); }});
    });
    run(cases);
}

// A copy of the number that only ranks of one process have; what it says of its memory then is an address.
TEST_F(HostileJoin, WhoSaysThatItIsTheSameProcess) {
    Bench bench(folder);
    const Lie lie = [&](Said& said) {
        if (said.at == At::hello) {
            Hello hello = parse_hello(said.message.blob).value();
            const Hello& theirs = bench.fake().hello_of(said.to);
            hello.program = theirs.program;
            hello.process = theirs.process;
            said.message.blob = to_bytes(hello);
        }
        if (said.at != At::arena) return;
        put_at(said.message.blob, OfferField::on_gpu, std::uint8_t{0});
        put_at(said.message.blob, OfferField::address, std::uint64_t{4096});
        put_at(said.message.blob, OfferField::has_descriptor, std::uint8_t{0});
        said.message.blob.replace(OfferField::scheme, 2 + 5, std::string("\x07\0address", 9));
        said.descriptors.clear();
    };
    bench.expect_lie_is_found(0, {"the same process", lie});
}

// The socket would let anybody in: who comes is asked of the kernel.
TEST_F(HostileJoin, AnotherUsersRankIsNoRank) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    const Bench bench(folder);
    const GroupId group = *GroupId::create();
    const std::string door = fmt::format("{}/group-{}.0", folder.path(), group.to_string());
    const std::string hello = to_bytes(Message{
        .word = Word::hello, .blob = to_bytes(Hello{.rank = 1, .ranks = 2, .process = 1, .place = "gpu:1"})});
    // The second one comes once the stranger has gone.
    std::promise<void> gone;
    auto joined = std::async(std::launch::async, [&] {
        return bench.tell([&](unsigned rank) {
            if (rank == 1) gone.get_future().wait();
            return fmt::format("join {} {} 2 60000", group.to_string(), rank);
        });
    });
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (driver::look_at_socket(door).value() != driver::SocketPath::live &&
           std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(::chmod(folder.path().c_str(), 0755), 0);
    EXPECT_EQ(::chmod(door.c_str(), 0666), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        constexpr uid_t nobody = 65534;
        if (::setuid(nobody) != 0) ::_exit(1);
        const auto socket = driver::LocalSocket::connect(door, until);
        if (!socket || !socket->send(hello)) ::_exit(2);
        // Nobody greets it, or says why not: it is hung up on.
        const auto answer = socket->receive(longest_message, until);
        ::_exit(!answer && answer.error().code == ErrorCode::not_found ? 0 : 3);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 0);
    gone.set_value();
    EXPECT_EQ(joined.get(), (std::vector<std::string>{"ok", "ok"}));
    EXPECT_EQ(bench.tell("checked 100 1"), (std::vector<std::string>{"ok", "ok"}));
}

// One message in each group, told to one of the others or to both.
TEST_F(HostileJoin, ByChance) {
    const Zoo zoo;
    run_seeds(200, [&](Bench& bench, std::uint64_t seed) {
        Chance chance(seed);
        const auto liar = static_cast<unsigned>(chance.below(ranks));
        const auto at = static_cast<At>(chance.below(3));
        const bool to_all = chance.below(2) == 0;
        const auto to = static_cast<unsigned>(chance.below(ranks));
        const std::uint64_t way = chance.below(4);
        const Lie lie = [&](Said& said) {
            if (said.at != at || !(to_all || said.to == to)) return;
            if (way == 0) said.descriptors = {chance.one_of(zoo.animals()).fd.get()};
            if (way == 1) spoil(said.message.blob, chance);
            if (way == 1) said.message.blob.resize(std::min(said.message.blob.size(), longest_blob));
            if (way == 2) said.message.slot = static_cast<std::uint32_t>(chance.number());
            if (way == 2) said.message.number = chance.number();
            if (way == 3) said.spoil = [&](std::string& bytes) { spoil(bytes, chance); };
        };
        bench.expect_lie_is_found(liar, {fmt::format("seed {}", seed), lie, Names::anybody});
    });
}

}  // namespace
}  // namespace sidestep::collective
