// Several calls in one task: of each kind, in sizes that are no whole packets, from and to places of their own.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "jobs.hpp"

namespace sidestep::collective_seat::coalesced {
namespace {

using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Element;
using protocol::Shape;

enum class What { all_reduce, reduce_scatter, all_gather, all_to_all };

struct Kind {
    What what = What::all_reduce;
    Element element = Element::f32;
    bool in_place = false;
    bool sends_blocks() const { return what == What::reduce_scatter || what == What::all_to_all; }
    bool receives_blocks() const { return what == What::all_gather || what == What::all_to_all; }
    bool combines() const { return !receives_blocks(); }
};

void PrintTo(const Kind& kind, std::ostream* to) {
    static constexpr const char* names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"};
    *to << names[static_cast<unsigned>(kind.what)] << " of " << name_of(kind.element)
        << (kind.in_place ? ", in place" : "");
}

// In elements; the last fills up what the lanes hold.
std::vector<std::uint64_t> counts_of(unsigned size, unsigned ranks) {
    std::vector<std::uint64_t> counts{1, 1000, 3, 64, 17, 9, 250};
    std::uint64_t used = 0;
    for (const std::uint64_t count : counts) used += (count * size + 7) / 8 * 8;
    counts.push_back((protocol::ArenaLayout{ranks}.packet_payload() - used) / size);
    return counts;
}

class Coalesced : public testing::TestWithParam<std::tuple<unsigned, Kind>> {
protected:
    static constexpr std::size_t heap = 24 << 20;
    static constexpr std::size_t gap = 40;  // between the buffers of calls

    static void TearDownTestSuite() { crews.clear(); }
    void SetUp() override {
        auto& crew = crews[n()];
        if (!crew) crew = std::make_unique<Crew>(n(), std::uint64_t{30'000'000'000}, heap);
        crew_ = crew.get();
        if (!crew_->ready()) GTEST_SKIP() << "there are fewer than " << n() << " GPUs";
    }
    unsigned n() const { return std::get<0>(GetParam()); }
    const Kind& kind() const { return std::get<1>(GetParam()); }
    unsigned size() const { return protocol::size_of(kind().element); }

    struct Call {
        std::size_t send = 0;
        std::size_t recv = 0;
        std::uint64_t bytes = 0;  // of a block
        std::vector<Values> given;
    };

    // Everything lies at odd multiples of elements.
    std::vector<Call> calls() {
        std::vector<Call> calls;
        std::size_t send = 8 + size();
        std::size_t recv = heap / 2 + size();
        for (const std::uint64_t count : counts_of(size(), n())) {
            Call call{send, recv, count * size(), {}};
            for (unsigned rank = 0; rank < n(); ++rank)
                call.given.push_back(some_values(kind().element, Combine::sum,
                                                 count * (kind().sends_blocks() ? n() : 1), n(), random_));
            send += call.given[0].size() + gap;
            recv += count * size() * (kind().receives_blocks() ? n() : 1) + gap;
            calls.push_back(std::move(call));
        }
        return calls;
    }

    // In place where the rank's own block lies.
    std::size_t send_of(const Call& call, unsigned rank) const {
        if (!kind().in_place) return call.send;
        if (kind().what == What::all_gather) return call.recv + rank * call.bytes;
        return kind().what == What::reduce_scatter ? call.recv - rank * call.bytes : call.recv;
    }

    CollectiveTask task(unsigned rank, const std::vector<Call>& calls) const {
        CollectiveTask task;
        task.shape = Shape::coalesced;
        task.blocks = 7;
        task.signature = 77;
        task.element = kind().combines() ? kind().element : Element::u8;
        task.combine = kind().combines() ? Combine::sum : Combine::none;
        task.send_blocks = kind().sends_blocks();
        task.recv_blocks = kind().receives_blocks();
        task.send = crew_->at(rank, calls[2].send);  // others lie before and behind it
        task.recv = crew_->at(rank, calls[2].recv);
        std::uint64_t unit = 0;
        for (const Call& call : calls) {
            task.set_call(task.calls,
                          {send_of(call, rank) - calls[2].send, call.recv - calls[2].recv, call.bytes, unit});
            unit = task.call(task.calls++).end();
        }
        return task;
    }

    Values block(const Call& call, unsigned from, unsigned to) const {
        const auto begin = call.given[from].begin() +
                           static_cast<std::ptrdiff_t>(kind().sends_blocks() ? to * call.bytes : 0);
        return {begin, begin + static_cast<std::ptrdiff_t>(call.bytes)};
    }

    void check(const Call& call, unsigned rank) {
        const unsigned blocks = kind().receives_blocks() ? n() : 1;
        const Values got = crew_->read(rank, call.recv, call.bytes * blocks);
        if (kind().combines()) {
            std::vector<Values> inputs;
            for (unsigned from = 0; from < n(); ++from) inputs.push_back(block(call, from, rank));
            EXPECT_EQ(wrong_element(kind().element, Combine::sum, inputs, {}, got), "") << "rank " << rank;
            return;
        }
        for (unsigned from = 0; from < n(); ++from) {
            const auto begin = got.begin() + static_cast<std::ptrdiff_t>(from * call.bytes);
            EXPECT_EQ(Values(begin, begin + static_cast<std::ptrdiff_t>(call.bytes)), block(call, from, rank))
                << "from rank " << from << " to " << rank << ", " << call.bytes << " bytes";
        }
        EXPECT_EQ(crew_->read(rank, call.recv + got.size(), gap / 2), Values(gap / 2, 0x3c)) << "behind";
    }

    static inline std::map<unsigned, std::unique_ptr<Crew>> crews;  // one for each number of ranks

    Random random_{5};
    Crew* crew_ = nullptr;
};

TEST_P(Coalesced, EachCallGetsItsOwn) {
    for (int round = 0; round < 3; ++round) {  // both parities
        std::vector<Call> all = calls();
        std::vector<CollectiveTask> tasks;
        for (unsigned rank = 0; rank < n(); ++rank) {
            crew_->fill(rank, heap / 2, all.back().recv + all.back().bytes * n() + gap - heap / 2, 0x3c);
            for (const Call& call : all) crew_->write(rank, send_of(call, rank), call.given[rank]);
            tasks.push_back(task(rank, all));
        }
        crew_->run(tasks);
        for (unsigned rank = 0; rank < n(); ++rank)
            for (const Call& call : all) check(call, rank);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Coalesced,
    testing::Combine(testing::Values(2u, 3u, 4u, 8u),
                     testing::Values(Kind{What::all_reduce}, Kind{What::all_reduce, Element::bf16, true},
                                     Kind{What::all_reduce, Element::i64}, Kind{What::reduce_scatter},
                                     Kind{What::reduce_scatter, Element::f16},
                                     Kind{What::all_gather, Element::u8},
                                     Kind{What::all_gather, Element::u8, true},
                                     Kind{What::all_to_all, Element::f64},
                                     Kind{What::all_to_all, Element::u8, true})));

}  // namespace
}  // namespace sidestep::collective_seat::coalesced
