#include "tests/multiprocess/collective_checks.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

namespace sidestep::multiprocess {
namespace {

constexpr int poison = 0x5a5a5a5a;

int value(int rank, std::size_t i) {
    return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101) - 50;
}

// Memory may lie off every boundary.
template <typename T>
T load(const char* memory, std::size_t i) {
    T element;
    std::memcpy(&element, memory + i * sizeof(T), sizeof(T));
    return element;
}
template <typename T>
void store(char* memory, std::size_t i, T element) {
    std::memcpy(memory + i * sizeof(T), &element, sizeof(T));
}

char* at(char* memory, std::size_t i) {
    return memory + i * sizeof(int);
}

// What an operation gives, element by element; nothing: it is as it was. A loop for each part: a call for
// each element took a quarter of the thread sanitizer's time here.
template <typename Element>
std::function<void(std::vector<int>&)> each(const Element& element) {
    return [element](std::vector<int>& all) {
        for (std::size_t i = 0; i < all.size(); ++i)
            if (const std::optional<int> given = element(i)) all[i] = *given;
    };
}

std::uint64_t mix(std::uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// Of either sign, between about 2^-7 and 2, so that sums depend on the order: the exponent's upper bits are
// those of such numbers, everything else is arbitrary.
std::uint16_t bits_of(std::uint16_t any, Dtype dtype) {
    return dtype == Dtype::f16 ? static_cast<std::uint16_t>((any & 0x8fff) | 0x3000)
                               : static_cast<std::uint16_t>((any & 0x83ff) | 0x3c00);
}
float bits_of(float any, Dtype) {
    std::uint32_t bits;
    std::memcpy(&bits, &any, sizeof(bits));
    bits = (bits & 0x83ffffff) | 0x3c000000;
    std::memcpy(&any, &bits, sizeof(bits));
    return any;
}
double bits_of(double any, Dtype) {
    std::uint64_t bits;
    std::memcpy(&bits, &any, sizeof(bits));
    bits = (bits & 0x803fffffffffffffull) | 0x3fc0000000000000ull;
    std::memcpy(&any, &bits, sizeof(bits));
    return any;
}

template <typename T>
T float_value(int rank, std::size_t i, Dtype dtype) {
    const std::uint64_t any = mix(static_cast<std::uint64_t>(rank) << 40 ^ i);
    T element;
    std::memcpy(&element, &any, sizeof(T));
    return bits_of(element, dtype);
}

// Powers of two: what they multiply is not rounded.
double factor(int rank) {
    return rank % 3 == 0 ? 0.5 : rank % 3;
}

}  // namespace

std::string Checks::run_one(const Part& part, const std::vector<int>& wanted, char* send, char* recv) {
    const std::size_t bytes = wanted.size() * sizeof(int);
    if (!part.in_place) std::memset(recv, poison & 0xff, bytes);
    auto state = part.call(send, recv);
    if (state) state = group_.wait();
    if (!state) return fmt::format("{}: {}", part.name, state.error().to_string());
    const char* result = part.in_place ? send : recv;
    if (std::memcmp(result, wanted.data(), bytes) == 0) return "";
    std::size_t i = 0;
    while (load<int>(result, i) == wanted[i]) ++i;
    return fmt::format("{}{}: element {} is {}, not {}", part.name, part.in_place ? " in place" : "", i,
                       load<int>(result, i), wanted[i]);
}

// What is expected is worked out once: element by element it takes longer than the operation, above all under
// sanitizers.
std::string Checks::run(const std::vector<Part>& parts, char* send, char* recv, std::size_t count,
                        int rounds) {
    std::vector<int> given(all(count));
    for (std::size_t i = 0; i < given.size(); ++i) given[i] = value(rank(), i);
    std::vector<std::vector<int>> wanted;
    for (const Part& part : parts) {
        std::vector<int>& of_part = wanted.emplace_back(given);
        if (!part.in_place) std::memset(of_part.data(), poison & 0xff, of_part.size() * sizeof(int));
        part.expect(of_part);
    }
    bool is_given = false;  // what lies in `send`
    for (int round = 0; round < rounds; ++round)
        for (std::size_t i = 0; i < parts.size(); ++i) {
            if (!is_given) std::memcpy(send, given.data(), given.size() * sizeof(int));
            is_given = !parts[i].in_place;
            if (std::string wrong = run_one(parts[i], wanted[i], send, recv); !wrong.empty()) {
                group_.abort(wrong);  // the others would wait for this rank
                return fmt::format("round {}: {}", round, wrong);
            }
        }
    return "ok";
}

std::vector<Checks::Part> Checks::moving(std::size_t count) {
    const auto block = [count](std::size_t i) { return std::pair(static_cast<int>(i / count), i % count); };
    return {{"all_gather", false,
             [=, this](char* send, char* recv) { return group_.all_gather(send, recv, count, Dtype::i32); },
             each([=](std::size_t i) { return value(block(i).first, block(i).second); })},
            {"all_to_all", false,
             [=, this](char* send, char* recv) { return group_.all_to_all(send, recv, count, Dtype::i32); },
             each([=, this](std::size_t i) { return value(block(i).first, own(count) + block(i).second); })},
            {"broadcast", false,
             [=, this](char* send, char* recv) { return group_.broadcast(send, recv, count, Dtype::i32, 0); },
             each([=](std::size_t i) { return i < count ? std::optional(value(0, i)) : std::nullopt; })}};
}

std::vector<Checks::Part> Checks::reducing(std::size_t count) {
    const int before = (rank() + ranks() - 1) % ranks();
    return {
        {"all_reduce", false,
         [=, this](char* send, char* recv) { return group_.all_reduce(send, recv, count, Dtype::i32); },
         each([=, this](std::size_t i) { return i < count ? std::optional(sum(i)) : std::nullopt; })},
        {"send_recv", false,
         [=, this](char* send, char* recv) {
             group_.begin_calls();
             (void)group_.send(send, count, Dtype::i32, (rank() + 1) % ranks());
             (void)group_.recv(recv, count, Dtype::i32, before);
             return group_.end_calls();
         },
         each([=](std::size_t i) { return i < count ? std::optional(value(before, i)) : std::nullopt; })}};
}

int Checks::sum(std::size_t i) const {
    int sum = 0;
    for (int r = 0; r < ranks(); ++r) sum += value(r, i);
    return sum;
}

int Checks::max(std::size_t i) const {
    int max = value(0, i);
    for (int r = 1; r < ranks(); ++r) max = std::max(max, value(r, i));
    return max;
}

// With rank 1 as the root.
std::vector<Checks::Part> Checks::rooted(std::size_t count) {
    const bool is_root = rank() == root();
    const auto max_of = Reduction::of(ReduceOp::max);
    return {
        {"reduce", false,
         [=, this](char* send, char* recv) {
             return group_.reduce(send, is_root ? recv : nullptr, count, Dtype::i32, max_of, root());
         },
         each([=, this](std::size_t i) {
             return is_root && i < count ? std::optional(max(i)) : std::nullopt;
         })},
        {"reduce_scatter", false,
         [=, this](char* send, char* recv) { return group_.reduce_scatter(send, recv, count, Dtype::i32); },
         each([=, this](std::size_t i) {
             return i < count ? std::optional(sum(own(count) + i)) : std::nullopt;
         })},
        {"gather", false,
         [=, this](char* send, char* recv) {
             return group_.gather(send, is_root ? recv : nullptr, count, Dtype::i32, root());
         },
         each([=](std::size_t i) {
             return is_root ? std::optional(value(static_cast<int>(i / count), i % count)) : std::nullopt;
         })},
        {"scatter", false,
         [=, this](char* send, char* recv) {
             return group_.scatter(is_root ? send : nullptr, recv, count, Dtype::i32, root());
         },
         each([=, this](std::size_t i) {
             return i < count ? std::optional(value(root(), own(count) + i)) : std::nullopt;
         })}};
}

// What a sends to b, and b to a, are blocks of different lengths.
Checks::Lists Checks::lists(std::size_t count) const {
    const auto length = [count](int from, int to) {
        return count - std::min(count, static_cast<std::size_t>(2 * from + to) % 3);
    };
    Lists lists;
    for (int other = 0; other < ranks(); ++other) {
        lists.sends.push_back(length(rank(), other));
        lists.recvs.push_back(length(other, rank()));
        lists.offsets.push_back(static_cast<std::uint64_t>(other) * count);
    }
    return lists;
}

std::vector<Checks::Part> Checks::listed(std::size_t count) {
    const Lists own_lists = lists(count);
    const std::size_t bytes = own_lists.sends.size() * sizeof(std::uint64_t);
    std::array<std::uint64_t*, 3> on_device{};
    for (std::size_t which = 0; which < 3; ++which) {
        const auto& list = which == 0 ? own_lists.sends : which == 1 ? own_lists.recvs : own_lists.offsets;
        char* const memory = allocate_(bytes);
        if (memory == nullptr) return {};
        std::memcpy(memory, list.data(), bytes);
        on_device[which] = reinterpret_cast<std::uint64_t*>(memory);
    }
    const auto expected = each([=, this](std::size_t i) {
        return i % count < own_lists.recvs[i / count]
                   ? std::optional(value(static_cast<int>(i / count), own(count) + i % count))
                   : std::nullopt;
    });
    return {{"all_to_all_v", false,
             [=, this](char* send, char* recv) {
                 const std::uint64_t* const offsets = own_lists.offsets.data();
                 return group_.all_to_all_v(
                     send, recv, {own_lists.sends.data(), offsets, own_lists.recvs.data(), offsets, false},
                     Dtype::i32);
             },
             expected},
            {"all_to_all_v with lists on the GPU", false,
             [=, this](char* send, char* recv) {
                 return group_.all_to_all_v(
                     send, recv, {on_device[0], on_device[2], on_device[1], on_device[2], true}, Dtype::i32);
             },
             expected}};
}

std::vector<Checks::Part> Checks::in_place(std::size_t count) {
    return {{"all_reduce", true,
             [=, this](char* data, char*) { return group_.all_reduce(data, data, all(count), Dtype::i32); },
             each([=, this](std::size_t i) { return sum(i); })},
            {"all_gather", true,
             [=, this](char* data, char*) {
                 return group_.all_gather(at(data, own(count)), data, count, Dtype::i32);
             },
             each([=](std::size_t i) { return value(static_cast<int>(i / count), i); })},
            {"reduce_scatter", true,
             [=, this](char* data, char*) {
                 return group_.reduce_scatter(data, at(data, own(count)), count, Dtype::i32);
             },
             each([=, this](std::size_t i) {
                 return static_cast<int>(i / count) == rank() ? std::optional(sum(i)) : std::nullopt;
             })},
            {"all_to_all", true,
             [=, this](char* data, char*) { return group_.all_to_all(data, data, count, Dtype::i32); },
             each([=, this](std::size_t i) {
                 return value(static_cast<int>(i / count), own(count) + i % count);
             })}};
}

// Of those with a root, it alone has both buffers.
std::vector<Checks::Part> Checks::rooted_in_place(std::size_t count) {
    const bool is_root = rank() == root();
    const std::size_t block = static_cast<std::size_t>(root()) * count;
    return {{"broadcast", true,
             [=, this](char* data, char*) {
                 return group_.broadcast(is_root ? data : nullptr, data, count, Dtype::i32, root());
             },
             each([=, this](std::size_t i) {
                 return i < count ? std::optional(value(root(), i)) : std::nullopt;
             })},
            {"reduce", true,
             [=, this](char* data, char*) {
                 return group_.reduce(data, is_root ? data : nullptr, count, Dtype::i32, {}, root());
             },
             each([=, this](std::size_t i) {
                 return is_root && i < count ? std::optional(sum(i)) : std::nullopt;
             })},
            {"gather", true,
             [=, this](char* data, char*) {
                 return group_.gather(is_root ? at(data, block) : data, is_root ? data : nullptr, count,
                                      Dtype::i32, root());
             },
             each([=, this](std::size_t i) {
                 const auto from = static_cast<int>(i / count);
                 return is_root && from != root() ? std::optional(value(from, i % count)) : std::nullopt;
             })},
            {"scatter", true,
             [=, this](char* data, char*) {
                 return group_.scatter(is_root ? data : nullptr, is_root ? at(data, block) : data, count,
                                       Dtype::i32, root());
             },
             each([=, this](std::size_t i) {
                 return !is_root && i < count ? std::optional(value(root(), own(count) + i)) : std::nullopt;
             })}};
}

std::string Checks::some(std::size_t count, int rounds, bool combines) {
    char* const send = allocate_(all(count) * sizeof(int));
    char* const recv = allocate_(all(count) * sizeof(int));
    if (send == nullptr || recv == nullptr) return "no memory";
    std::vector<Part> parts = moving(count);
    if (combines)
        for (Part& part : reducing(count)) parts.push_back(std::move(part));
    return run(parts, send, recv, count, rounds);
}

std::string Checks::gathered(char* send, char* recv, std::size_t count) {
    return run({moving(count).front()}, send, recv, count, 3);
}

std::string Checks::others(std::size_t count, int rounds, std::size_t offset) {
    char* const send = allocate_(all(count) * sizeof(int) + offset);
    char* const recv = allocate_(all(count) * sizeof(int) + offset);
    if (send == nullptr || recv == nullptr) return "no memory";
    std::vector<Part> parts;
    for (auto more : {moving(count), reducing(count), rooted(count), listed(count), in_place(count),
                      rooted_in_place(count)})
        parts.insert(parts.end(), more.begin(), more.end());
    return run(parts, send + offset, recv + offset, count, rounds);
}

template <typename T>
std::string Checks::floats_of(Dtype dtype, std::size_t count, std::size_t offset, std::uint64_t& hash) {
    const std::size_t bytes = all(count) * sizeof(T);
    std::array<char*, 4> memory{};
    for (char*& one : memory) {
        one = allocate_(bytes + offset);
        if (one == nullptr) return "no memory";
        one += offset;
    }
    char* const scale = allocate_(sizeof(T));
    if (scale == nullptr) return "no memory";
    auto& [send, whole, other, data] = memory;
    for (std::size_t i = 0; i < all(count); ++i) store(send, i, float_value<T>(rank(), i, dtype));
    const Reduction scaled = Reduction::scaled(factor(rank()), dtype);
    std::memcpy(scale, scaled.scale.data(), sizeof(T));
    const Reduction scaled_on_device{ReduceOp::scaled_sum, {}, scale};
    const bool is_root = rank() == root();
    for (const Reduction& reduction :
         {Reduction::sum(), Reduction::of(ReduceOp::avg), rank() % 2 == 0 ? scaled : scaled_on_device}) {
        const bool scales = reduction.op == ReduceOp::scaled_sum;
        std::memcpy(data, send, bytes);
        std::memset(other, 0, bytes);
        const char* const own_block = whole + own(count) * sizeof(T);
        auto state = group_.all_reduce(send, whole, all(count), dtype, reduction);
        if (state) state = group_.all_reduce(data, data, all(count), dtype, reduction);
        if (state) state = group_.reduce_scatter(send, other, count, dtype, reduction);
        if (state) state = group_.wait();
        if (!state) return state.error().to_string();
        if (std::memcmp(data, whole, bytes) != 0) return "all_reduce in place has other bits";
        if (std::memcmp(other, own_block, count * sizeof(T)) != 0) return "reduce_scatter has other bits";
        state = group_.reduce(send, is_root ? other : nullptr, all(count), dtype, reduction, root());
        if (state) state = group_.wait();
        if (!state) return state.error().to_string();
        if (is_root && std::memcmp(other, whole, bytes) != 0) return "reduce has other bits";
        hash = mix(hash ^ std::hash<std::string_view>{}({whole, bytes}));
        if constexpr (std::is_floating_point_v<T>) {
            // A share of them: all ranks have the same bits.
            const auto step = static_cast<std::size_t>(ranks());
            for (auto i = static_cast<std::size_t>(rank()); i < all(count); i += step) {
                T wanted = 0;
                for (int r = 0; r < ranks(); ++r) {
                    const T term = float_value<T>(r, i, dtype) * static_cast<T>(scales ? factor(r) : 1);
                    wanted = r == 0 ? term : wanted + term;
                }
                if (reduction.op == ReduceOp::avg) wanted /= static_cast<T>(ranks());
                if (const T got = load<T>(whole, i); got != wanted)
                    return fmt::format("{} {}: element {} is {:a}, not {:a}", to_string(dtype),
                                       to_string(reduction.op), i, got, wanted);
            }
        }
    }
    return "";
}

std::string Checks::floats(std::size_t count, std::size_t offset) {
    std::uint64_t hash = count;
    std::string wrong = floats_of<float>(Dtype::f32, count, offset, hash);
    if (wrong.empty()) wrong = floats_of<double>(Dtype::f64, count, offset, hash);
    if (wrong.empty()) wrong = floats_of<std::uint16_t>(Dtype::f16, count, offset, hash);
    if (wrong.empty()) wrong = floats_of<std::uint16_t>(Dtype::bf16, count, offset, hash);
    if (wrong.empty()) return fmt::format("ok {:016x}", hash);
    group_.abort(wrong);
    return wrong;
}

}  // namespace sidestep::multiprocess
