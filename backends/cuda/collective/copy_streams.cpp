#include "backends/cuda/collective/copy_streams.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

using Kind = SharedStreams::Kind;

// A stream that has not answered by then may be held up, and others are asked as well. A mark takes some 3
// us.
constexpr std::chrono::microseconds patience{200};
// Streams wait for events and for each other whenever their owners like, so an answer of a stream for copies
// within the GPU is good for so long from when it was seen, and until another stream is told to wait for
// ranks. Streams that wait behind copies to other GPUs are rare: answers of streams for those hold for the
// task.
constexpr std::chrono::microseconds good_for{100};
// Long enough that a busy stream, or a thread without a processor, is not taken for a stuck one.
constexpr std::chrono::milliseconds long_wait{50};
// How many queries a stream that does not answer is left with.
constexpr std::uint64_t max_unanswered = 64;
constexpr unsigned number_bits = 4;

// Whether a rank's arena lies on this GPU, not on another one nor in host memory.
bool is_near(const Gpu& gpu, const CopyPost& post, unsigned rank) {
    if (rank == post.rank) return true;
    CUmemorytype type = {};
    int ordinal = -1;
    std::array names{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    std::array<void*, names.size()> values{&type, &ordinal};
    const auto at = reinterpret_cast<CUdeviceptr>(post.slots->find(rank, 0));
    const CUresult status =
        gpu.context()->cuda().cuPointerGetAttributes(names.size(), names.data(), values.data(), at);
    return status == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE && ordinal == gpu.context()->device();
}

}  // namespace

Result<std::unique_ptr<CopyStreams>> CopyStreams::create(Seats& seats, Gpu& gpu, const CopyPost& post) {
    std::unique_ptr<CopyStreams> streams(new CopyStreams(seats, gpu, post));
    SIDESTEP_CHECK(streams->set_up());
    return streams;
}

Result<void> CopyStreams::check(const Gpu& gpu) {
    const driver::Cuda& cuda = gpu.context()->cuda();
    int able = 0;
    const CUresult status = cuda.cuDeviceGetAttribute(
        &able, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, gpu.context()->device());
    SIDESTEP_CHECK(cuda.check(status, "cuDeviceGetAttribute"));
    if (able) return {};
    return Error{ErrorCode::unsupported, "streams of this GPU cannot wait for words of 64 bits",
                 "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS", "use GroupPolicy::automatic"};
}

Result<const std::uint64_t*> CopyStreams::prime(Seats& seats, const Gpu& gpu, const CopyPost& post) {
    const auto spare = [&](unsigned rank) {  // used on emulated GPUs only
        return reinterpret_cast<CUdeviceptr>(post.slots->find(rank, 0)) +
               protocol::ArenaLayout{post.ranks}.copy_row();
    };
    const auto take = [&seats] { return seats.pages.take(); };
    using Direction = SharedStreams::Direction;
    const auto next_line = spare(post.rank) + sizeof(protocol::CopyLine);
    SIDESTEP_CHECK(seats.shared_streams.prime(gpu, Direction::home, next_line, spare(post.rank), take));
    for (unsigned rank = 0; rank < post.ranks; ++rank)
        if (!is_near(gpu, post, rank))
            return seats.shared_streams.prime(gpu, Direction::away, spare(rank), spare(post.rank), take);
    return nullptr;
}

Result<void> CopyStreams::set_up() {
    SIDESTEP_TRY(void* const words, seats_.pages.take());
    ended_ = static_cast<std::uint64_t*>(words);
    const CUresult status = cuda().cuMemHostGetDevicePointer(&ended_on_gpu_, words, 0);
    SIDESTEP_CHECK(cuda().check(status, "cuMemHostGetDevicePointer"));
    for (unsigned rank = 0; rank < post_.ranks; ++rank) near_[rank] = is_near(gpu_, post_, rank);
    SIDESTEP_TRY(primed_, prime(seats_, gpu_, post_));
    for (unsigned lane = 0; lane < lanes_.size(); ++lane)
        lanes_[lane].stream = lane == home ? all_away : lane % usual_away;
    return {};
}

// Where something is still to be written the words stay with it.
CopyStreams::~CopyStreams() {
    if (!ended_) return;
    for (unsigned number = 0; number < all; ++number)
        if (uses_[number].unmarked || ended_of(number) < uses_[number].marks) return;
    seats_.pages.give_back(ended_);
}

Result<CUstream> CopyStreams::stream(unsigned number) {
    const Kind kind = number >= all_away ? Kind::home : number >= usual_away ? Kind::away_else : Kind::away;
    auto& list = streams_[static_cast<std::size_t>(kind)];
    if (!list) {
        SIDESTEP_TRY(list, seats_.shared_streams.of(gpu_, kind));
    }
    const unsigned first = kind == Kind::home ? all_away : kind == Kind::away_else ? usual_away : 0;
    return (*list)[number - first].get();
}

std::unique_lock<std::mutex> CopyStreams::enqueue_waits() {
    std::unique_lock lock(waits_.calls);
    ++waits_.count;
    return lock;
}

// Until end_step().
void CopyStreams::keep_waits_out() {
    if (!calls_.owns_lock()) calls_.lock();
}

void CopyStreams::begin() {
    for (Use& use : uses_) use.question = 0;
    for (Lane& lane : lanes_) lane.waits_since = {};
}

// Words of streams for other GPUs go the way that copies do, once the first copy has ended.
Result<void> CopyStreams::ask(unsigned number) {
    Use& use = uses_[number];
    if (use.question != 0 || use.marks - ended_of(number) >= max_unanswered) return {};
    if (number < all_away && std::atomic_ref(const_cast<std::uint64_t&>(primed_[number])).load() == 0)
        return {};
    if (number >= all_away) {
        keep_waits_out();
        use.waits = waits_.count;
    }
    SIDESTEP_TRY(use.question, mark_stream(number));
    use.asked = Clock::now();
    use.answered = {};
    return {};
}

// An answer that is seen now for the first time is a good one, however late this thread has come to look.
bool CopyStreams::answers(unsigned number) {
    Use& use = uses_[number];
    if (use.unmarked) return true;
    if (use.question == 0 || ended_of(number) < use.question) return false;
    if (number < all_away) return true;
    const auto now = Clock::now();
    if (use.answered == Clock::time_point{}) use.answered = now;
    keep_waits_out();
    if (use.waits == waits_.count && now - use.answered <= good_for) return true;
    use.question = 0;
    return false;
}

Result<bool> CopyStreams::ready(unsigned lane) {
    Lane& own = lanes_[lane];
    if (answers(own.stream)) {
        own.waits_since = {};
        return true;
    }
    SIDESTEP_CHECK(ask(own.stream));
    const auto now = Clock::now();
    if (own.waits_since == Clock::time_point{}) own.waits_since = now;
    const Use& first_choice = uses_[own.stream];
    if (first_choice.question != 0 && now - first_choice.asked < patience) return false;
    const unsigned first = lane == home ? all_away : 0, behind = lane == home ? all : all_away;
    for (unsigned number = first; number < behind; ++number) {
        if (!answers(number)) {
            SIDESTEP_CHECK(ask(number));
            continue;
        }
        own.stream = number;
        own.waits_since = {};
        return true;
    }
    return false;
}

bool CopyStreams::held_up() const {
    const auto now = Clock::now();
    return std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
        return lane.waits_since != Clock::time_point{} && now - lane.waits_since > long_wait;
    });
}

Result<void> CopyStreams::copy(unsigned lane, char* to, const char* from, std::uint64_t bytes) {
    SIDESTEP_TRY(const CUstream carrier, stream(lanes_[lane].stream));
    const CUresult status = cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                                 reinterpret_cast<CUdeviceptr>(from), bytes, carrier);
    SIDESTEP_CHECK(cuda().check(status, "cuMemcpyAsync"));
    uses_[lanes_[lane].stream].unmarked = true;
    return {};
}

Result<std::uint64_t> CopyStreams::mark(unsigned lane) {
    const unsigned number = lanes_[lane].stream;
    SIDESTEP_TRY(const std::uint64_t mark, mark_stream(number));
    uses_[number].behind_copies = mark;
    uses_[number].unmarked = false;
    return mark << number_bits | number;
}

// With CU_STREAM_WRITE_VALUE_DEFAULT the word is seen after all that came before it on the stream, by the
// whole system.
Result<std::uint64_t> CopyStreams::mark_stream(unsigned number) {
    SIDESTEP_TRY(const CUstream carrier, stream(number));
    const CUresult status =
        cuda().cuStreamWriteValue64(carrier, ended_on_gpu_ + number * sizeof(std::uint64_t),
                                    uses_[number].marks + 1, CU_STREAM_WRITE_VALUE_DEFAULT);
    SIDESTEP_CHECK(cuda().check(status, "cuStreamWriteValue64"));
    return ++uses_[number].marks;
}

bool CopyStreams::ended(unsigned, std::uint64_t mark) {
    return ended_of(mark & ((1u << number_bits) - 1)) >= mark >> number_bits;
}

void CopyStreams::close() {
    for (unsigned number = 0; number < all; ++number) {
        if (!uses_[number].unmarked) continue;
        const auto mark = mark_stream(number);
        if (mark) uses_[number].behind_copies = *mark;
        uses_[number].unmarked = false;
    }
}

bool CopyStreams::quiet() {
    for (unsigned number = 0; number < all; ++number)
        if (ended_of(number) < uses_[number].behind_copies) return false;
    return true;
}

std::string CopyStreams::missing() {
    std::string text;
    for (unsigned number = 0; number < all; ++number) {
        const std::uint64_t done = ended_of(number), all_marks = uses_[number].behind_copies;
        if (done < all_marks)
            text +=
                fmt::format("{}stream {}: {} of {} marks", text.empty() ? "" : ", ", number, done, all_marks);
    }
    return text;
}

}  // namespace sidestep::backends::cuda
