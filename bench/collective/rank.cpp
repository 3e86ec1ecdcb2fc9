#include "bench/collective/rank.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/collective/carrier.hpp"
#include "bench/collective/elements.hpp"
#include "bench/raw_cuda_timeline.hpp"

namespace sidestep::bench::collective {
namespace {

// Up to this size every element is looked at; of more, pieces at the ends, at the seams of blocks, and in
// between.
constexpr Bytes looked_at_whole = 1_MiB;
constexpr Bytes piece = 16_KiB;
constexpr int pieces_between = 16;
constexpr Bytes fill_block = 4_MiB;

struct Range {
    std::uint64_t first = 0;  // elements
    std::uint64_t count = 0;
};

class Run {
public:
    Run(const Context& context, Group& group, int gpu, const Plan& plan)
        : context_(context),
          group_(group),
          plan_(plan),
          seat_{group.rank(), group.ranks(), gpu, plan.root, context.topology().emulated()},
          place_(Place::gpu(gpu)) {}

    Result<std::vector<std::string>> all(const RowSink& row);

private:
    Result<void> open();
    Result<void> lend(Group& group);
    Result<void> open_zero_sm();
    Result<void> open_nccl();
    // Whether all ranks say so.
    Result<bool> agree(bool well);
    // What rank 0 has, on every rank.
    Result<std::string> from_first(const std::string& bytes, std::size_t size);
    Result<void> settle();

    Result<void> fill_for(const Call& call);
    Result<Line> measure(Carrier& carrier, const Call& call);
    Result<void> time(Carrier& carrier, const Call& call, const std::function<Result<void>()>& once,
                      Line& line);
    Result<double> sample(Carrier& carrier, const std::function<Result<void>()>& work);
    Result<void> poison(std::byte* output, const std::vector<Range>& ranges);
    Result<std::int64_t> wrong(const Call& call, std::byte* output, const std::vector<Range>& ranges);
    std::vector<Range> ranges_of(const Call& call) const;
    Result<void> move(const Buffer& from, const Buffer& to) {
        SIDESTEP_CHECK(context_.copy(from, to).wait());
        return {};
    }
    Buffer on_gpu(void* address, Bytes bytes) const { return Buffer::memory(place_, address, bytes); }
    std::size_t element() const { return elements_->element_bytes(); }
    void* stream() const { return timeline_ ? timeline_->stream() : nullptr; }

    const Context& context_;
    Group& group_;
    const Plan& plan_;
    Seat seat_;
    Place place_;
    Bytes max_ = 256;
    std::unique_ptr<raw::Timeline> timeline_;  // null on emulated GPUs
    Allocation scratch_;
    GroupMemory memory_;
    std::optional<Group> zero_sm_;
    std::unique_ptr<NcclMemory> nccl_memory_;
    std::vector<std::unique_ptr<Carrier>> carriers_;
    std::optional<Elements> elements_;
    std::vector<std::string> notes_;
};

Result<void> Run::settle() {
    if (timeline_) SIDESTEP_CHECK(timeline_->wait());
    return seat_.emulated ? group_.wait() : group_.status();
}

Result<bool> Run::agree(bool well) {
    std::uint8_t word = well ? 1 : 0;
    SIDESTEP_CHECK(move(Buffer::host(&word, 1), on_gpu(scratch_.address(), 1)));
    auto* const on = static_cast<CUstream_st*>(stream());
    SIDESTEP_CHECK(group_.all_reduce(scratch_.address(), scratch_.address(), 1, Dtype::u8,
                                     Reduction::of(ReduceOp::min), on));
    SIDESTEP_CHECK(settle());
    SIDESTEP_CHECK(move(on_gpu(scratch_.address(), 1), Buffer::host(&word, 1)));
    return word == 1;
}

Result<std::string> Run::from_first(const std::string& bytes, std::size_t size) {
    std::string text = bytes;
    text.resize(size);
    const Buffer there = on_gpu(scratch_.address(), size);
    SIDESTEP_CHECK(move(Buffer::host(text.data(), size), there));
    auto* const on = static_cast<CUstream_st*>(stream());
    SIDESTEP_CHECK(group_.broadcast(scratch_.address(), scratch_.address(), size, Dtype::u8, 0, on));
    SIDESTEP_CHECK(settle());
    SIDESTEP_CHECK(move(there, Buffer::host(text.data(), size)));
    return text;
}

Result<void> Run::open() {
    if (!seat_.emulated) {
        SIDESTEP_TRY(auto opened, raw::Timeline::open(seat_.gpu));
        timeline_ = std::move(opened);
    }
    for (const Call& call : calls_of(plan_, seat_.ranks)) max_ = std::max(max_, call.bytes);
    for (Allocation* memory : {&scratch_, &memory_.send, &memory_.recv}) {
        SIDESTEP_TRY(auto made, context_.allocate(place_, memory == &scratch_ ? Bytes{4096} : max_));
        *memory = std::move(made);
    }
    SIDESTEP_CHECK(lend(group_));
    carriers_.push_back(group_carrier(group_, memory_, seat_, GroupPolicy::automatic));
    if (plan_.zero_sm) SIDESTEP_CHECK(open_zero_sm());
    return open_nccl();
}

// A graph keeps what its operations found when they were captured, and memory is mapped after its first use.
Result<void> Run::lend(Group& group) {
    for (const Allocation* memory : {&memory_.send, &memory_.recv}) {
        const auto lent = group.attach(memory->buffer());
        if (!lent && lent.error().code != ErrorCode::unsupported) return lent.error();
        if (!lent) notes_.push_back(lent.error().to_string());
    }
    return {};
}

Result<void> Run::open_zero_sm() {
    GroupOptions options;
    options.policy = GroupPolicy::zero_sm;
    SIDESTEP_TRY(auto split, group_.split(0, seat_.rank, options));
    zero_sm_ = std::move(split);
    SIDESTEP_CHECK(lend(*zero_sm_));
    carriers_.push_back(group_carrier(*zero_sm_, memory_, seat_, GroupPolicy::zero_sm));
    return {};
}

Result<void> Run::open_nccl() {
    if (plan_.nccl.empty() || seat_.emulated) {
        if (!plan_.nccl.empty()) notes_.push_back("NCCL cannot run on emulated GPUs");
        return {};
    }
    SIDESTEP_CHECK(timeline_->use());
    auto library = raw::Nccl::open(plan_.nccl);
    auto well = agree(library.ok());
    if (!well) return well.error();
    if (!*well) {
        notes_.push_back(library ? "NCCL was not found for every rank" : library.error().to_string());
        return {};
    }
    auto memory = NcclMemory::allocate(*library, max_);
    well = agree(memory.ok());
    if (!well) return well.error();
    if (!*well) {
        notes_.push_back(fmt::format("NCCL is not measured: {}", memory ? "another rank has no memory for it"
                                                                        : memory.error().to_string()));
        return {};
    }
    nccl_memory_ = std::move(*memory);
    for (const auto mode : {raw::NcclMode::standard, raw::NcclMode::registered, raw::NcclMode::symmetric,
                            raw::NcclMode::copy_engines}) {
        const auto own = seat_.rank == 0 ? (*library)->unique_id() : Result<std::string>(std::string());
        if (well = agree(own.ok()); !well) return well.error();
        if (!*well) return own ? Result<void>() : Result<void>(own.error());
        SIDESTEP_TRY(const auto id, from_first(*own, raw::Nccl::id_bytes));
        auto carrier = nccl_carrier(*library, *nccl_memory_, max_, mode, id, seat_);
        if (well = agree(carrier.ok()); !well) return well.error();
        if (*well)
            carriers_.push_back(std::move(*carrier));
        else
            notes_.push_back(
                fmt::format("NCCL, {}: not measured: {}", raw::to_string(mode),
                            carrier ? "another rank could not join" : carrier.error().to_string()));
    }
    return {};
}

// What the ranks send, in all send buffers; the same for calls of one type and reduction.
Result<void> Run::fill_for(const Call& call) {
    elements_.emplace(call, seat_.ranks);
    const std::vector<std::byte>& once = elements_->input(seat_.rank);
    std::vector<std::byte> block;
    while (block.size() < std::min<Bytes>(fill_block, max_))
        block.insert(block.end(), once.begin(), once.end());
    for (const auto& carrier : carriers_)
        for (Bytes at = 0; at < max_; at += block.size()) {
            const Bytes bytes = std::min<Bytes>(block.size(), max_ - at);
            auto* const to = static_cast<std::byte*>(carrier->send()) + at;
            SIDESTEP_CHECK(move(Buffer::host(block.data(), bytes), on_gpu(to, bytes)));
        }
    return {};
}

std::vector<Range> Run::ranges_of(const Call& call) const {
    const std::uint64_t all = received_elements(call, seat_.rank, seat_.ranks, seat_.root);
    if (all * element() <= looked_at_whole) return {{0, all}};
    const std::uint64_t some = piece / element();
    std::vector<Range> ranges;
    const auto add = [&](std::uint64_t middle) {
        const std::uint64_t first = std::min(middle < some / 2 ? 0 : middle - some / 2, all - some);
        ranges.push_back({first, some});
    };
    const auto n = static_cast<std::uint64_t>(seat_.ranks);
    for (std::uint64_t seam = 0; seam <= n; ++seam) add(all / n * seam);
    for (std::uint64_t i = 0; i < pieces_between; ++i) add(all / pieces_between * i + i * 12'345 % some);
    add(all);
    return ranges;
}

Result<void> Run::poison(std::byte* output, const std::vector<Range>& ranges) {
    for (const Range& range : ranges) {
        const std::string other(range.count * element(), 'k');
        if (other.empty()) continue;
        const Buffer there = on_gpu(output + range.first * element(), other.size());
        SIDESTEP_CHECK(move(Buffer::host(other.data(), other.size()), there));
    }
    return {};
}

Result<std::int64_t> Run::wrong(const Call& call, std::byte* output, const std::vector<Range>& ranges) {
    std::int64_t differ = 0;
    std::vector<std::byte> got;
    for (const Range& range : ranges) {
        got.resize(range.count * element());
        if (got.empty()) continue;
        const Buffer there = on_gpu(output + range.first * element(), got.size());
        SIDESTEP_CHECK(move(there, Buffer::host(got.data(), got.size())));
        for (std::uint64_t i = 0; i < range.count; ++i)
            differ += !elements_->same(got.data() + i * element(),
                                       elements_->expected(call, seat_.rank, seat_.root, range.first + i));
    }
    return differ;
}

// Microseconds. All ranks begin together: behind a barrier, on the GPU where there is a stream.
Result<double> Run::sample(Carrier& carrier, const std::function<Result<void>()>& work) {
    if (timeline_) {
        const auto barrier = [&] { return group_.barrier(static_cast<CUstream_st*>(stream())); };
        auto us = timeline_->us(barrier, work);
        SIDESTEP_CHECK(group_.status());
        return us;
    }
    SIDESTEP_CHECK(group_.barrier());
    SIDESTEP_CHECK(group_.wait());
    const auto begin = std::chrono::steady_clock::now();
    SIDESTEP_CHECK(work());
    SIDESTEP_CHECK(carrier.wait());
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

Result<void> Run::time(Carrier& carrier, const Call& call, const std::function<Result<void>()>& once,
                       Line& line) {
    const int iterations = iterations_of(plan_, call);
    const auto all = [&]() -> Result<void> {
        for (int i = 0; i < iterations; ++i) SIDESTEP_CHECK(once());
        return {};
    };
    const bool graph = call.mode == Mode::graph && timeline_;
    if (graph) {
        const auto captured = timeline_->capture(all);
        if (!captured && &carrier == carriers_.front().get()) return captured;
        // NCCL cannot have everything in a graph, which all ranks hear alike. Nothing has run yet.
        if (!captured) {
            line.missing = captured.error().to_string();
            return {};
        }
    }
    const int launches = graph ? launches_of(plan_, call) : 1;
    const std::function<Result<void>()> launch = [&]() -> Result<void> {
        for (int i = 0; i < launches; ++i) SIDESTEP_CHECK(timeline_->launch());
        return {};
    };
    const std::function<Result<void>()> work = graph ? launch : std::function<Result<void>()>(all);
    for (int i = -plan_.warmup; i < samples_of(plan_, call); ++i) {
        SIDESTEP_TRY(const auto us, sample(carrier, work));
        if (i >= 0) line.us.values.push_back(us / (iterations * launches));
    }
    if (graph) timeline_->forget();
    return {};
}

Result<Line> Run::measure(Carrier& carrier, const Call& call) {
    Line line{call, carrier.name(), {}, -1, {}, carrier.refuses(call)};
    if (!line.missing.empty()) return line;
    auto* const buffer = static_cast<std::byte*>(carrier.recv());
    std::byte* const input = call.in_place ? buffer + input_offset(call, seat_.rank) * element()
                                           : static_cast<std::byte*>(carrier.send());
    std::byte* const output = buffer + (call.in_place ? output_offset(call, seat_.rank) * element() : 0);
    const auto once = [&] { return carrier.run(call, input, output, stream()); };
    const bool verify = plan_.verify && call.operation != Collective::barrier;
    const std::vector<Range> ranges = verify ? ranges_of(call) : std::vector<Range>{};
    if (!call.in_place) SIDESTEP_CHECK(poison(output, ranges));
    SIDESTEP_CHECK(time(carrier, call, once, line));
    if (!line.missing.empty()) return line;
    line.path = carrier.path(call, input, output);
    if (!verify) return line;
    if (call.in_place) {
        // What was reduced time and again is worth nothing by now: once more with fresh input.
        const Bytes bytes = sent_elements(call, seat_.rank, seat_.ranks) * element();
        SIDESTEP_CHECK(move(on_gpu(carrier.send(), bytes), on_gpu(input, bytes)));
        SIDESTEP_CHECK(sample(carrier, once));
    }
    SIDESTEP_TRY(const auto differ, wrong(call, output, ranges));
    line.wrong = differ;
    return line;
}

Result<std::vector<std::string>> Run::all(const RowSink& row) {
    SIDESTEP_CHECK(open());
    const std::vector<Call> calls = calls_of(plan_, seat_.ranks);
    std::optional<Call> filled;
    std::vector<Line> lines;
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const Call& call = calls[i];
        const bool same = filled && filled->type == call.type &&
                          combines(filled->operation) == combines(call.operation) &&
                          (!combines(call.operation) || filled->reduction == call.reduction);
        if (!same) SIDESTEP_CHECK(fill_for(call));
        filled = call;
        for (const auto& carrier : carriers_) {
            SIDESTEP_TRY(auto line, measure(*carrier, call));
            lines.push_back(std::move(line));
        }
        if (i + 1 < calls.size() && calls[i + 1].in_place) continue;
        row(std::move(lines));
        lines.clear();
    }
    // Nobody leaves while another still reads.
    SIDESTEP_CHECK(agree(true));
    return std::move(notes_);
}

}  // namespace

Result<std::vector<std::string>> measure(const Context& context, Group& group, int gpu, const Plan& plan,
                                         const RowSink& row) {
    if (plan.root < 0 || plan.root >= group.ranks())
        return Error{ErrorCode::invalid_argument,
                     fmt::format("there is no rank {} of {}", plan.root, group.ranks()),
                     "root",
                     {}};
    Run run(context, group, gpu, plan);
    return run.all(row);
}

}  // namespace sidestep::bench::collective
