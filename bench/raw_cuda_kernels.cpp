// Latency and additions, by the kernels of raw_kernels.cu.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/raw_cuda_session.hpp"

namespace sidestep::bench::raw {
namespace {

using Word = unsigned long long;
constexpr Bytes node_bytes = 128;  // a cache line of the GPU, so that each load brings one of its own

// The addresses of a ring's nodes in memory at `base`: node i points to the one that comes next. Sattolo's
// shuffle gives one cycle through all nodes ("An algorithm to generate a random cyclic permutation", 1986).
std::vector<Word> shuffled_ring(Address base, Bytes bytes) {
    const std::size_t nodes = std::max<std::size_t>(bytes / node_bytes, 2);
    std::vector<std::size_t> next(nodes);
    std::iota(next.begin(), next.end(), std::size_t{0});
    std::mt19937_64 random(1);  // the same ring each time
    for (std::size_t i = nodes - 1; i > 0; --i) std::swap(next[i], next[random() % i]);
    std::vector<Word> ring(nodes * node_bytes / sizeof(Word));
    for (std::size_t i = 0; i < nodes; ++i) ring[i * node_bytes / sizeof(Word)] = base + next[i] * node_bytes;
    return ring;
}

// Two words of pinned memory that a kernel answers in.
class Answer {
public:
    Answer(Session& session, int gpu) : address_(session.memory(host, 2 * sizeof(Word), gpu)) { clear(); }
    void clear() {
        if (!address_) return;
        word(0) = 0;
        word(1) = ~Word{0};
    }
    volatile Word& word(int index) const { return reinterpret_cast<volatile Word*>(address_)[index]; }
    const Address& address() const { return address_; }

private:
    Address address_;
};

}  // namespace

Result<Samples> chase_latency(int gpu, int owner, Bytes ring, int steps, int samples) {
    if (!driver()) return driver().error();
    Session session(*driver());
    session.reach(gpu, owner);
    ring = std::max(ring / node_bytes * node_bytes, 2 * node_bytes);
    Address nodes = session.memory(owner, ring, gpu);
    const Stream stream = session.stream(gpu);
    const Function kernel = session.kernel(gpu, "sidestep_bench_chase");
    const Answer answer(session, gpu);
    SIDESTEP_CHECK(session.failed());
    const std::vector<Word> addresses = shuffled_ring(nodes, ring);
    session.write(gpu, nodes, addresses.data(), ring, stream);
    Word count = static_cast<Word>(steps);
    Address out = answer.address();
    void* arguments[] = {&nodes, &count, &out};
    Samples latency;
    for (int i = -1; i < samples && session.good(); ++i) {
        session.launch(gpu, kernel, 1, 1, stream, arguments);
        session.wait(stream);
        if (i >= 0)
            latency.values.push_back(static_cast<double>(answer.word(0)) / static_cast<double>(steps));
    }
    SIDESTEP_CHECK(session.failed());
    return latency;
}

namespace {

constexpr Word warm_rounds = 100;
constexpr Word give_up_ns = 2'000'000'000;
constexpr std::chrono::seconds host_limit{4};

// One of the two GPUs that send flags to each other.
struct Player {
    Player(Session& session, int number)
        : gpu(number),
          stream(session.stream(number)),
          kernel(session.kernel(number, "sidestep_bench_flags")),
          flag(session.memory(number, node_bytes, number)),
          answer(session, number) {}

    int gpu;
    Stream stream;
    Function kernel;
    Address flag;
    Answer answer;
};

void start(Session& session, Player& player, Player& other, Word rounds, bool first, Address stop) {
    Word warm = warm_rounds, is_first = first ? 1 : 0, limit = give_up_ns;
    Address out = player.answer.address();
    void* arguments[] = {&player.flag, &other.flag, &warm, &rounds, &is_first, &stop, &limit, &out};
    session.launch(player.gpu, player.kernel, 1, 1, player.stream, arguments);
}

// Nanoseconds of one way, or 0 after a failure. Both kernels have ended when this returns.
double play(Session& session, Player& first, Player& second, Word rounds, volatile Word& stop) {
    const Word zero = 0;
    for (Player* player : {&first, &second}) {
        player->answer.clear();
        session.write(player->gpu, player->flag, &zero, sizeof zero, player->stream);
    }
    stop = 0;
    const auto word = reinterpret_cast<Address>(&stop);
    start(session, second, first, rounds, false, word);
    start(session, first, second, rounds, true, word);
    const auto deadline = std::chrono::steady_clock::now() + host_limit;
    while (session.good() && !(session.done(first.stream) && session.done(second.stream)))
        if (std::chrono::steady_clock::now() > deadline) break;
    stop = 1;
    session.wait(first.stream);
    session.wait(second.stream);
    if (session.good() && (first.answer.word(1) != 0 || second.answer.word(1) != 0))
        session.fail({ErrorCode::timed_out,
                      fmt::format("gpu:{} and gpu:{} did not see each other's flags within 2 s", first.gpu,
                                  second.gpu),
                      "flag ping-pong",
                      {}});
    return session.good() ? static_cast<double>(first.answer.word(0)) / static_cast<double>(rounds) / 2 : 0;
}

}  // namespace

Result<Samples> flag_latency(int first, int second, int rounds, int samples) {
    if (!driver()) return driver().error();
    Session session(*driver());
    session.reach(first, second);
    session.reach(second, first);
    Player one(session, first), other(session, second);
    const Answer stop(session, first);
    SIDESTEP_CHECK(session.failed());
    Samples latency;
    for (int i = -1; i < samples && session.good(); ++i) {
        const double ns = play(session, one, other, static_cast<Word>(rounds), stop.word(0));
        if (i >= 0) latency.values.push_back(ns);
    }
    SIDESTEP_CHECK(session.failed());
    return latency;
}

namespace {

constexpr unsigned adding_threads = 256;

// One GPU's part in the additions.
struct Adder {
    Adder(Session& session, int number, bool smoke)
        : gpu(number),
          stream(session.stream(number)),
          kernel(session.kernel(number, "sidestep_bench_adds")),
          blocks(smoke ? 2 : static_cast<unsigned>(session.multiprocessors(number)) * 4),
          times(smoke ? 4 : 256) {}

    void start(Session& session, Address counters, Word count) {
        void* arguments[] = {&counters, &count, &times};
        session.launch(gpu, kernel, blocks, adding_threads, stream, arguments);
    }
    Word additions() const { return Word{blocks} * adding_threads * times; }

    int gpu;
    Stream stream;
    Function kernel;
    unsigned blocks;
    Word times;
};

struct Counters {
    Counters(Session& session, int owner, unsigned count)
        : words(count, 0), address(session.memory(owner, count * sizeof(Word), owner)) {}
    void clear(Session& session, const Adder& by) {
        std::fill(words.begin(), words.end(), 0);
        session.write(by.gpu, address, words.data(), words.size() * sizeof(Word), by.stream);
    }
    Word sum(Session& session, const Adder& by) {
        session.read(by.gpu, words.data(), address, words.size() * sizeof(Word), by.stream);
        return std::accumulate(words.begin(), words.end(), Word{0});
    }
    std::vector<Word> words;
    Address address;
};

// Nanoseconds of one addition that waits for the one before.
Samples chain_latency(Session& session, Adder& by, Counters& counters, int samples, bool smoke) {
    const Function kernel = session.kernel(by.gpu, "sidestep_bench_add_chain");
    const Answer answer(session, by.gpu);
    Word times = smoke ? 100 : 20'000;
    Address out = answer.address();
    void* arguments[] = {&counters.address, &times, &out};
    Samples latency;
    for (int i = -1; i < samples && session.good(); ++i) {
        session.launch(by.gpu, kernel, 1, 1, by.stream, arguments);
        session.wait(by.stream);
        if (i >= 0)
            latency.values.push_back(static_cast<double>(answer.word(0)) / static_cast<double>(times));
    }
    return latency;
}

}  // namespace

Result<Adds> atomic_adds(int gpu, int owner, unsigned counters, int samples, bool smoke) {
    if (!driver()) return driver().error();
    Session session(*driver());
    session.reach(gpu, owner);
    Adder far(session, gpu, smoke), near(session, owner, smoke);
    Counters memory(session, owner, counters);
    const Event begin = session.event(gpu), end = session.event(gpu);
    SIDESTEP_CHECK(session.failed());
    Adds adds;
    memory.clear(session, near);
    for (int i = -1; i < samples && session.good(); ++i) {
        session.use(gpu);
        session.record(begin, far.stream);
        far.start(session, memory.address, counters);
        session.record(end, far.stream);
        session.wait(far.stream);
        const double ms = session.ms_between(begin, end);
        if (i >= 0) adds.rate.values.push_back(static_cast<double>(far.additions()) / ms / 1e3);
    }
    memory.clear(session, near);
    far.start(session, memory.address, counters);
    near.start(session, memory.address, counters);
    session.wait(far.stream);
    session.wait(near.stream);
    adds.exact = memory.sum(session, near) == far.additions() + near.additions();
    adds.latency_ns = chain_latency(session, far, memory, samples, smoke);
    SIDESTEP_CHECK(session.failed());
    return adds;
}

}  // namespace sidestep::bench::raw
