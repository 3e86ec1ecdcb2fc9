// Plain copies by the driver's copy engines.
#include "bench/raw_cuda.hpp"

#include <algorithm>
#include <chrono>

#include "base/try.hpp"
#include "bench/raw_cuda_session.hpp"

namespace sidestep::bench::raw {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int copies_a_sample = 16;

double us_between(Clock::time_point a, Clock::time_point b) {
    return std::chrono::duration<double, std::micro>(b - a).count();
}

Result<void> check_ends(const Driver& driver, const Leg& leg, Bytes bytes) {
    const int count = static_cast<int>(driver.ordinals.size());
    for (const int end : {leg.from, leg.to})
        if (end >= count || end < host)
            return Error{ErrorCode::not_found, "there is no GPU " + std::to_string(end), "raw copy", {}};
    if ((leg.from == host && leg.to == host) || bytes == 0)
        return Error{ErrorCode::invalid_argument, "a raw copy needs a GPU and bytes", "raw copy", {}};
    return {};
}

// Two blocks of memory, and a stream of the GPU that carries the copy: the source if it is a GPU.
struct Copy {
    int gpu = 0;
    Address from = 0;
    Address to = 0;
    Stream stream = nullptr;

    static Copy make(Session& session, const Leg& leg, Bytes bytes) {
        Copy copy;
        copy.gpu = leg.from >= 0 ? leg.from : leg.to;
        session.reach(leg.to, leg.from);
        session.reach(leg.from, leg.to);
        copy.from = session.memory(leg.from, bytes, copy.gpu);
        copy.to = session.memory(leg.to, bytes, copy.gpu);
        copy.stream = session.stream(copy.gpu);
        session.copy(copy.to, copy.from, bytes, copy.stream);
        session.wait(copy.stream);
        return copy;
    }
    void run(Session& session, Bytes bytes) const {
        session.use(gpu);
        session.copy(to, from, bytes, stream);
    }
};

// Milliseconds of 16 copies in a row, on the GPU's clock.
double timed_by_events(Session& session, const Copy& copy, Bytes bytes, Event begin, Event end) {
    session.use(copy.gpu);
    session.record(begin, copy.stream);
    for (int i = 0; i < copies_a_sample; ++i) copy.run(session, bytes);
    session.record(end, copy.stream);
    session.wait(copy.stream);
    return session.ms_between(begin, end);
}

// The same of several streams, on the host's clock.
double timed_by_host(Session& session, const std::vector<Copy>& copies, Bytes bytes) {
    const auto start = Clock::now();
    for (int i = 0; i < copies_a_sample; ++i)
        for (const Copy& copy : copies) copy.run(session, bytes);
    for (const Copy& copy : copies) session.wait(copy.stream);
    return us_between(start, Clock::now()) / 1000;
}

}  // namespace

Result<Samples> copy_rates(const std::vector<Leg>& legs, Bytes bytes, int samples) {
    if (!driver()) return driver().error();
    Session session(*driver());
    std::vector<Copy> copies;
    for (const Leg& leg : legs) {
        SIDESTEP_CHECK(check_ends(*driver(), leg, bytes));
        copies.push_back(Copy::make(session, leg, bytes));
    }
    const bool alone = copies.size() == 1;
    const Event begin = alone ? session.event(copies[0].gpu) : nullptr;
    const Event end = alone ? session.event(copies[0].gpu) : nullptr;
    Samples rates;
    for (int i = -1; i < std::max(samples, 1) && session.good(); ++i) {
        const double ms = alone ? timed_by_events(session, copies[0], bytes, begin, end)
                                : timed_by_host(session, copies, bytes);
        const double moved =
            static_cast<double>(bytes) * copies_a_sample * static_cast<double>(copies.size());
        if (i >= 0) rates.values.push_back(moved / 1e6 / ms);  // the first is a warm-up
    }
    SIDESTEP_CHECK(session.failed());
    return rates;
}

Result<Cost> copy_cost(int from, int to, Bytes bytes, int copies) {
    if (!driver()) return driver().error();
    SIDESTEP_CHECK(check_ends(*driver(), {from, to}, bytes));
    Session session(*driver());
    const Copy copy = Copy::make(session, {from, to}, bytes);
    session.use(copy.gpu);
    Samples submits, completes;
    for (int i = 0; i < std::max(copies, 1) && session.good(); ++i) {
        const auto start = Clock::now();
        session.copy(copy.to, copy.from, bytes, copy.stream);
        const auto submitted = Clock::now();
        session.spin(copy.stream);
        submits.values.push_back(us_between(start, submitted));
        completes.values.push_back(us_between(start, Clock::now()));
    }
    SIDESTEP_CHECK(session.failed());
    return Cost{submits.median(), completes.median()};
}

}  // namespace sidestep::bench::raw
